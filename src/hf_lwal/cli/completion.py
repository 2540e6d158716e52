"""``hf-lwal completion``: a script that lets the shell complete commands and flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import CommandError
from .flags import Parser, argument, takes_truth
from .train_checks import MEASURED

TAKE_FILES = (
    *("config", "data", "dataset", "deepspeed", "file", "folder", "fsdp_config", "grid", "inputs", "model"),
    *("output", "output_dir", "results", "test_data", "validation_data"),
)
"""Options after which the shell completes names of files."""
TAKE_FOLDERS = ("data_root",)
"""Options after which it completes names of folders."""


@dataclass(frozen=True)
class CompletionOptions:
    """Print a script for the shell that completes commands and flags.

    For bash: hf-lwal completion bash > ~/.local/share/bash-completion/completions/hf-lwal
    """

    shell: Literal["bash", "zsh", "tcsh"] = argument("the shell")


def script(parser: Parser, shell: str) -> str:
    """Return the script for a parser."""
    try:
        import shtab
    except ImportError as error:
        raise CommandError('Completion needs shtab: pip install "hf-lwal[completion]".') from error
    values = list_values()
    for action in parser.every_action():
        if action.dest in TAKE_FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.dest in TAKE_FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.choices is None:
            # Offered, and not the only ones: the parser is used for nothing else.
            action.choices = ("true", "false") if takes_truth(action) else values.get(action.dest)
    return str(shtab.complete(parser, shell))


def list_values() -> dict[str, tuple[str, ...]]:
    """Values that options know besides others, such as names of methods."""
    from ..bench.grid import OPTIMIZERS
    from ..bench.grid import PRESETS as GRIDS
    from ..bench.methods import METHODS
    from ..modeling.setting_rules import INITIAL_HEADS
    from ..objectives import OBJECTIVES
    from ..settings.presets import PRESETS
    from ..settings.training_args import NOISY_LABELS

    return {
        "label_method": tuple(OBJECTIVES),
        "lwal_preset": tuple(PRESETS),
        "lwal_space": ("features", "embeddings"),
        "lwal_init": ("class_means", "one_hot"),
        "lwal_initial_head": INITIAL_HEADS,
        "lwal_scale": ("auto",),
        "lwal_eval_refresh": ("auto", "no", "evaluate", "epoch"),
        "lwal_class_weights": ("balanced",),
        "lwal_noisy_labels": NOISY_LABELS,
        "metric_for_best_model": MEASURED,
        "preset": GRIDS,
        "method": tuple(METHODS),
        "optimizer": tuple(OPTIMIZERS),
    }
