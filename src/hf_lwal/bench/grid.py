"""A grid of trainings: settings whose combinations are its cells, from YAML, a preset or flags."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import CommandError
from .datasets import dataset_spec, source_of
from .methods import HEADS, PEERS, parse_method

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw_torch": {"optim": "adamw_torch", "lr_scheduler_type": "linear"},
    # Without weight decay AdamW is Adam. Keras: epsilon 1e-7, a constant rate, gradients not clipped.
    "adam": {"optim": "adamw_torch", "lr_scheduler_type": "constant", "adam_epsilon": 1e-7, "max_grad_norm": 0.0},
}
"""Name → training arguments."""

SAME_MODELS = {"minilm": "minilm_pooled"}
"""Name of a model → the name that its cells have, so that what it is called does not matter."""
OLD_MODELS = {"minilm": "minilm_first_token"}
"""Name of a model in kept lines → what it is called today. No cell of today has one of these names."""

PRESETS = ("fair", "paper", "peers")


@dataclass(frozen=True)
class Cell:
    """One training.

    Attributes:
        dataset: key of ``DATASETS``.
        source: where its rows come from: "data root", "embedded" or "hub".
        model: key of ``MODELS``, none of `SAME_MODELS`.
        method: ``name`` and fields of the training arguments.
        batch_size: rows per optimizer step; "50x" for 50 times the number of labels.
        learning_rate: peak learning rate.
        seed: of the head, of weights from scratch and of the order of the rows.
        steps: optimizer steps, or None to count in epochs.
        epochs: passes over the rows, or None to count in steps.
        evaluations: evaluations after the first step, equally spaced; None for one per epoch.
        optimizer: key of `OPTIMIZERS`.
        train_rows: rows to learn from; None for all.
        test_rows: rows to measure on; None for all.
        from_config: random weights instead of pretrained ones.
        rows_per_label: rows of each label to learn from, drawn anew by every seed; None for ``train_rows``.
    """

    dataset: str
    source: str
    model: str
    method: Mapping[str, Any]
    batch_size: int | str
    learning_rate: float
    seed: int
    steps: int | None
    epochs: int | None
    evaluations: int | None
    optimizer: str
    train_rows: int | None
    test_rows: int | None
    from_config: bool
    rows_per_label: int | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """All settings, as JSON knows them; kept lines of cells that take all rows do not name the newest one."""
        settings = asdict(self)
        if self.rows_per_label is None:
            del settings["rows_per_label"]
        return settings

    @property
    def draw(self) -> tuple[int | None, int]:
        """Rows per label and the seed that draws them."""
        return self.rows_per_label, 0 if self.rows_per_label is None else self.seed

    @property
    def key(self) -> str:
        """The settings as one line that is the same for the same cell."""
        return key_of(self.settings)

    def __str__(self) -> str:
        return (
            f"{self.dataset} {self.model} {self.method['name']} batch {self.batch_size} lr {self.learning_rate:g} "
            f"seed {self.seed}"
        )


def key_of(settings: Mapping[str, Any]) -> str:
    """Settings as one line, whatever their order."""
    return json.dumps(settings, sort_keys=True)


@dataclass(frozen=True)
class Grid:
    """Settings whose combinations are cells; all values are lists, apart from those that every cell shares."""

    datasets: Sequence[str] = ()
    models: Sequence[str] = ()
    methods: Sequence[str | Mapping[str, Any]] = ("one_hot", "one_hot_class_means", "default")
    batch_sizes: Sequence[int | str] = (32,)
    learning_rates: Sequence[float] = (1e-4,)
    seeds: Sequence[int] = (12, 123, 1234)
    steps: int | None = None
    epochs: int | None = None
    evaluations: int | None = None
    optimizer: str = "adamw_torch"
    train_rows: int | None = None
    test_rows: int | None = None
    from_config: bool = field(default=False)
    rows_per_label: int | None = None
    """Of each label, drawn anew by every seed."""

    def cells(self, data_root: str | None = None) -> list[Cell]:
        """All combinations, the seeds running slowest, so that a first picture of everything comes early."""
        self.check()
        methods = [parse_method(method) for method in self.methods]
        sources = {name: source_of(name, data_root) for name in self.datasets}
        shared = {name: getattr(self, name) for name in (entry.name for entry in fields(Cell)) if hasattr(self, name)}
        return [
            Cell(
                dataset=dataset,
                source=sources[dataset],
                model=_cell_name(model),
                method=method,
                batch_size=int(size) if str(size).isdigit() else size,
                learning_rate=rate,
                seed=seed,
                **shared,
            )
            for seed, dataset, model, size, rate, method in itertools.product(
                self.seeds, self.datasets, self.models, self.batch_sizes, self.learning_rates, methods
            )
        ]

    def check(self) -> None:
        """Raise CommandError for settings that no training could have."""
        for name in ("datasets", "models", "methods", "batch_sizes", "learning_rates", "seeds"):
            if not getattr(self, name):
                raise CommandError(f"The grid has no {name}.")
        if (self.steps is None) == (self.epochs is None):
            raise CommandError(
                f"A grid counts in steps or in epochs: give one of them, not steps {self.steps} and epochs "
                f"{self.epochs}."
            )
        if self.steps is not None and self.evaluations is None:
            raise CommandError("A grid that counts in steps needs the number of evaluations.")
        if self.optimizer not in OPTIMIZERS:
            raise CommandError(f"Unknown optimizer {self.optimizer!r}: choose one of {', '.join(OPTIMIZERS)}.")
        _check_numbers(self)
        for dataset, model in itertools.product(self.datasets, self.models):
            _check_pair(dataset, model)
        for method, model in itertools.product(map(parse_method, self.methods), self.models):
            if "peer" in method:
                check_encoder(method, model, self.steps, self.from_config)


def _check_numbers(grid: Grid) -> None:
    counts = {name: getattr(grid, name) for name in ("steps", "epochs", "evaluations", "train_rows", "test_rows")}
    counts["rows_per_label"] = grid.rows_per_label
    if grid.rows_per_label is not None and grid.train_rows is not None:
        raise CommandError(
            f"A grid has train_rows ({grid.train_rows}) or rows_per_label ({grid.rows_per_label}), not both."
        )
    for name, value in counts.items():
        if value is not None and (type(value) is not int or value < 1):  # True is an int, too
            raise CommandError(f"{name} must be a whole number above 0, got {value!r}.")
    for seed in grid.seeds:
        if type(seed) is not int or not 0 <= seed < 2**32:
            raise CommandError(f"A seed must be a whole number from 0 to {2**32 - 1}, got {seed!r}.")
    for size in grid.batch_sizes:
        batch_rows(size, 1)
    for rate in grid.learning_rates:
        if not isinstance(rate, float) or not rate > 0.0:
            raise CommandError(f"A learning rate must be a number above 0 such as 0.001 or 1.0e-3, got {rate!r}.")


def _check_pair(dataset: str, model: str) -> None:
    from .models import model_spec

    if dataset_spec(dataset).kind != model_spec(model).kind:
        raise CommandError(
            f"{dataset} holds {dataset_spec(dataset).kind} and {model} reads {model_spec(model).kind}: choose a model "
            "that reads what the data set holds."
        )


def check_encoder(method: Mapping[str, Any], model: str, steps: int | None, from_config: bool) -> Callable[[], str]:
    """What gives the folder or name of the sentence encoder that a peer trains.

    Args:
        method: its name and fields.
        model: key of ``MODELS``.
        steps: optimizer steps, or None for a cell that counts in epochs.
        from_config: whether the cell has random weights.

    Raises:
        CommandError: no peer can train such a cell.
    """
    from .models import model_spec

    name, peer, kind = method["name"], method["peer"], method.get("peer_head", HEADS[0])
    if peer not in PEERS or kind not in HEADS:
        raise CommandError(
            f"Unknown peer {peer!r} with head {kind!r}: choose of {', '.join(PEERS)} and {', '.join(HEADS)}."
        )
    encoder = model_spec(model).sentence_encoder
    if encoder is None:
        raise CommandError(
            f"{name} needs a sentence encoder, which {model} is not: choose minilm, or leave {name} out."
        )
    if steps is None:
        raise CommandError(f"{name} counts in steps: give the grid steps instead of epochs.")
    if from_config:
        raise CommandError(f"{name} has pretrained weights only: leave --from-config or {name} out.")
    return encoder


def batch_rows(size: int | str, num_labels: int) -> int:
    """Rows per step.

    Args:
        size: a number, or a multiple of the number of labels such as "50x".
        num_labels: C.

    >>> batch_rows("50x", 10)
    500
    """
    text = str(size)
    number = text.removesuffix("x")
    if not number.isdigit() or int(number) < 1:
        raise CommandError(f"A batch size must be a number, or a multiple of the labels such as 50x, got {size!r}.")
    return int(number) * (num_labels if text.endswith("x") else 1)


def load_grids(source: str) -> list[Grid]:
    """Read the grids of a YAML file or of a preset: shared settings, and a list ``grids`` that overrides them."""
    import yaml

    place: Any = files(__package__) / "presets" / f"{source}.yaml" if source in PRESETS else Path(source).expanduser()
    try:
        content = yaml.safe_load(place.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise CommandError(f"The grid {source!r} could not be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise CommandError(
            f"The grid {source!r} must hold `setting: value` lines, but holds {type(content).__name__}."
        )
    shared = {name: value for name, value in content.items() if name != "grids"}
    listed = content.get("grids", [{}])
    if not isinstance(listed, list) or not listed or not all(isinstance(own, dict) for own in listed):
        raise CommandError(
            f"`grids` in {source!r} must be a list of grids, each with `setting: value` lines, got {listed!r}."
        )
    return [_grid(settings) for own in listed for settings in _spelled_out({**shared, **own})]


def _spelled_out(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One grid for each of several numbers of rows per label."""
    counts = settings.get("rows_per_label")
    several = counts if isinstance(counts, list) else [counts]
    return [{**settings, "rows_per_label": count} if count is not None else dict(settings) for count in several]


def _grid(settings: Mapping[str, Any]) -> Grid:
    known = {entry.name: entry.default for entry in fields(Grid)}
    for name, value in settings.items():
        if name not in known:
            raise CommandError(f"A grid has no setting {name!r}: choose from {', '.join(known)}.")
        if isinstance(known[name], tuple) != isinstance(value, list):
            raise CommandError(
                f"{name} must {'' if isinstance(known[name], tuple) else 'not '}be a list, got {value!r}."
            )
    return Grid(**settings)


def select(grids: Iterable[Grid], datasets: Sequence[str], models: Sequence[str]) -> list[Grid]:
    """Keep the grids that have the wanted data sets and models, and of those only these.

    One that no grid lists runs with the settings of the grids for its kind of rows.
    """
    from .models import model_spec

    chosen = list(grids)
    for part, wanted, spec in (("datasets", datasets, dataset_spec), ("models", models, model_spec)):
        if not wanted:
            continue
        kept = []
        for name in wanted:
            kind = spec(name).kind
            listing = [grid for grid in chosen if _cell_name(name) in map(_cell_name, getattr(grid, part))]
            alike = [grid for grid in chosen if dataset_spec(grid.datasets[0]).kind == kind]
            for grid in listing or alike[:1]:
                only: dict[str, Any] = {part: (name,)}
                kept.append(replace(grid, **only))
        if not kept:
            raise CommandError(f"The grid has nothing for {part} {', '.join(wanted)}.")
        chosen = kept
    return chosen


def _cell_name(name: str) -> str:
    return SAME_MODELS.get(name, name)


def unique_cells(grids: Iterable[Grid], data_root: str | None) -> list[Cell]:
    """The cells of several grids, each once."""
    cells = [cell for grid in grids for cell in grid.cells(data_root)]
    return list({cell.key: cell for cell in cells}.values())
