"""What a checkpoint must hold, and what becomes of its label table when other labels are asked for."""

from __future__ import annotations

import logging
import os
import re
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NoReturn, TypeVar
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import PreTrainedConfig

from .building import no_larger_than, unpartitioned
from .configuration_lwal import HUB_KEYWORDS, LwALConfig, generic_label_names
from .core import LabelTableModel
from .hub_code import broken_download
from .label_rows import ROW_TENSORS
from .stored_files import REMEDY, Shapes

logger = logging.getLogger(__name__)

Loaded = TypeVar("Loaded")

NOT_IN_THE_CONFIG = ("dtype", "torch_dtype", "quantization_config")
"""Keywords of ``from_pretrained`` that transformers keeps from the configuration, which would swallow them."""
TABLE_SIZES = "classifier.label_vectors"
"""The tensor whose shape is the number of labels and their dimension."""
LARGEST = 1e15
"""Weights and label vectors beyond make sums of squares that overflow; no training ends with them."""
CHECKED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""Types of weights whose numbers are looked at; packed ones are not numbers by themselves."""
MOST_LOADS = 20
"""How often a model is loaded anew that is saved at the same time."""
SHOWN = 8
"""How many names an error lists."""


def configuration_of(
    name: str | os.PathLike[str], config: Any, keywords: dict[str, Any]
) -> tuple[Any, dict[str, Any], dict[int, str] | None]:
    """Configuration to load an LwAL checkpoint with, the keywords that are left, and the names of its own labels.

    Args:
        name: Hub id or local folder.
        config: what ``from_pretrained`` takes as ``config``.
        keywords: of ``from_pretrained``.

    Returns:
        The configuration with the labels that were asked for; ``config`` itself where none can be read, as from an
        adapter's folder. The names are None where the checkpoint does not say them.

    Raises:
        ValueError: the checkpoint is that of a plain model.
    """
    hub = {key: keywords[key] for key in HUB_KEYWORDS if key in keywords}
    if not isinstance(config, PreTrainedConfig):
        kept = {key: value for key, value in keywords.items() if key in NOT_IN_THE_CONFIG or key in hub}
        rest = {key: value for key, value in keywords.items() if key not in kept}
        source = name if config is None else config
        try:
            refuse_other_types(source, PreTrainedConfig.get_config_dict(source, **hub)[0])
            config, unused = LwALConfig.from_pretrained(source, return_unused_kwargs=True, **hub, **rest)
        except OSError:  # transformers finds the model that an adapter belongs to, or says what is missing
            if os.path.isdir(source) and not Path(source, "adapter_config.json").exists():
                raise
            return config, keywords, None
        keywords = kept | unused
    return config, keywords, stored_label_names(name, hub)


def load_whole(name: Any, load: Callable[[], Loaded]) -> Loaded:
    """What ``load`` returns, called again as long as the files that it reads are replaced meanwhile.

    A configuration of before and weights of after would be a model with the names of other labels.

    Args:
        name: Hub id or local folder; only files of a folder are looked at.
        load: reads configuration and weights from there.

    Raises:
        OSError: the files are replaced all the time.
    """
    for _ in range(MOST_LOADS):
        before = _versions(name)
        try:
            with unpartitioned():
                found = load()
        except (OSError, ValueError, RuntimeError):
            if _versions(name) == before:
                raise
            continue
        if _versions(name) == before:
            return found
    raise OSError(f"{name} was written to during each of {MOST_LOADS} attempts to load it: wait until that has ended.")


def _versions(name: Any) -> dict[str, tuple[int, int]]:
    """Which files of a folder hold configuration and weights now."""
    if not isinstance(name, str | os.PathLike) or not os.path.isdir(name):
        return {}
    found = {}
    for path in Path(name).iterdir():
        if path.name.endswith((".safetensors", ".index.json", "config.json")):
            with suppress(FileNotFoundError):  # a shard of before
                found[path.name] = (path.stat().st_ino, path.stat().st_mtime_ns)
    return found


def refuse_other_types(name: Any, stored: dict[str, Any]) -> None:
    """Raise ValueError where a stored configuration is that of another kind of model.

    Args:
        name: Hub id or folder, for the message.
        stored: content of its ``config.json``.
    """
    kind = stored.get("model_type", LwALConfig.model_type)
    if kind != LwALConfig.model_type:
        raise ValueError(
            f"{name} is a plain {kind!r} model without a label table: load it with "
            "AutoModelForLwALClassification.from_pretrained and its labels. For an adapter that was trained on it, "
            "then use PeftModel.from_pretrained(model, adapter)."
        )


def stored_label_names(name: str | os.PathLike[str], hub: dict[str, Any]) -> dict[int, str] | None:
    """Id to name of the labels that an LwAL checkpoint was saved with; None when it does not say.

    Args:
        name: Hub id or local folder.
        hub: those keywords of ``from_pretrained`` that `HUB_KEYWORDS` lists.
    """
    try:
        stored, _ = PreTrainedConfig.get_config_dict(name, **hub)
    except OSError:
        return None
    if stored.get("model_type") != LwALConfig.model_type:
        return None
    return LwALConfig.from_dict(stored).label_names


def rows_of(asked: dict[int, str], stored: dict[int, str]) -> list[int] | None:
    """Row of the checkpoint that each label asked for is; None when these are other labels.

    Names count, in any order and spelling. Where one side has none (``LABEL_0``), ids do.
    """
    if len(asked) != len(stored):
        return None
    for spelled in (str, _spelled_plainly):
        rows = {spelled(name): row for row, name in stored.items()}
        wanted = [spelled(name) for name in asked.values()]
        if len(rows) == len(stored) and len(set(wanted)) == len(wanted) and set(wanted) == set(rows):
            return [rows[name] for name in wanted]
    unnamed = generic_label_names(len(stored))
    return list(stored) if unnamed in (asked, stored) else None


def _spelled_plainly(name: str) -> str:
    """A name without what people spell differently: upper case, width of letters, spaces, hyphens, underscores."""
    return re.sub(r"[\s_-]+", " ", unicodedata.normalize("NFKC", name)).strip().casefold()


def refuse_other_labels(name: str | os.PathLike[str], asked: dict[int, str], stored: dict[int, str]) -> None:
    """Raise ValueError for labels that a checkpoint does not have, where starting anew was not asked for."""
    if len(asked) != len(stored):
        found = f"{name} has {len(stored)} labels, but {len(asked)} were asked for"
    else:
        found = f"{name} has the labels {listed(stored.values())}, but {listed(asked.values())} were asked for"
    raise ValueError(
        f"{found}: leave num_labels and id2label out to use its own labels, which rename_label can rename, or pass "
        "ignore_mismatched_sizes=True to start a new label table."
    )


def take_labels(
    model: LabelTableModel, name: str | os.PathLike[str], asked: dict[int, str], embedding_dim: int | None = None
) -> None:
    """Give a model that was just loaded the labels that were asked for; whatever changes is said in one line.

    Args:
        model: with the labels that its checkpoint was saved with.
        name: of the checkpoint.
        asked: id to name.
        embedding_dim: D, for other labels than the checkpoint's.
    """
    stored = model.config.label_names
    rows = rows_of(asked, stored)
    if asked == stored or (rows is not None and asked == generic_label_names(len(asked)) and rows == list(stored)):
        return
    if rows is None:
        start_anew(model, asked, embedding_dim)
        logger.warning(
            "The labels asked for (%s) are not those of %s (%s): its head and label table are replaced by new ones, "
            "which know nothing before they are trained.",
            listed(asked.values()),
            name,
            listed(stored.values()),
        )
        return
    spelled = {row: asked[index] for index, row in enumerate(rows)}
    model.config.id2label = {row: spelled[row] for row in stored}
    if rows == list(stored):
        model.config.label2id = {label: index for index, label in asked.items()}
        logger.warning("The labels of %s (%s) are called %s.", name, listed(stored.values()), listed(asked.values()))
        return
    if any(tensor.is_meta for tensor in model.label_table.state_dict().values()):
        raise ValueError(
            f"The labels of {name} are in another order than was asked for, and its label table lies on the disk: "
            "keep the module classifier in memory (device_map), or leave id2label out."
        )
    model.align(list(asked.values()))
    logger.warning(
        "%s has its labels in another order than was asked for: their rows moved with their names (%s).",
        name,
        listed(asked.values()),
    )


def start_anew(model: LabelTableModel, names: dict[int, str], embedding_dim: int | None = None) -> None:
    """Give a model other labels, with a fresh head and an empty label table.

    Args:
        model: changed in place.
        names: id to name.
        embedding_dim: D; None for the default, or in the paper's preset for as many dimensions as needed.
    """
    config = model.config
    config.id2label, config.label2id = dict(names), {name: index for index, name in names.items()}
    config.initial_num_labels = None
    if config.initial_label_norm > 1.0:  # a classifier's head was kept, and goes now
        config.initial_labels, config.initial_label_norm = "class_means", 1.0
    if config.head_name is None:
        config.validate_lwal()
        model.reset_label_table()
        return
    if embedding_dim is None and config.initial_labels == "one_hot":
        embedding_dim = max(config.embedding_dim, len(names))
    width = int(model.head_module.in_features)
    model.resize_embedding_dim(embedding_dim or default_embedding_dim(len(names), width))
    config.validate_lwal()


def default_embedding_dim(num_labels: int, in_features: int | None) -> int:
    """D where the user does not choose it.

    Args:
        num_labels: C.
        in_features: width of the head's input; None without a head.
    """
    wanted = max(128, num_labels)
    return wanted if in_features is None else min(in_features, wanted)


# -- damaged and incomplete checkpoints -----------------------------------------------------------------------------


@contextmanager
def readable_weights(name: str | os.PathLike[str], shapes: Shapes | None = None) -> Iterator[None]:
    """Say which file cannot be read, and what to do, where loading a model fails.

    Args:
        name: of the model.
        shapes: of its weights, from `stored_shapes`: a model that is far larger is not built; None for no limit.
    """
    try:
        with no_larger_than(shapes, name):
            yield
    except Exception as error:  # what reading torch's files raises has no common class
        unreadable = _unreadable_file(name)
        if isinstance(error, UnpicklingError) and (unreadable is None or "GLOBAL" in str(error)):
            raise OSError(
                f"The weights of {name} were not read: they hold Python objects besides tensors, which could run any "
                "code. Get the model as safetensors, or from someone you trust."
            ) from error
        if unreadable is not None or isinstance(error, SafetensorError):
            what, why = unreadable or f"The weights file of {name}", str(error).partition(". ")[0]
            raise OSError(
                f"{what} cannot be read ({why or type(error).__name__}): it was cut off or holds no weights. {REMEDY}"
            ) from error
        if isinstance(error, FileNotFoundError):
            raise OSError(f"{error}: copy, download or save all files of the model again.") from error
        if isinstance(error, OSError) and (broken := broken_download(error, str(name))) is not None:
            raise broken from error
        raise


def _unreadable_file(name: str | os.PathLike[str]) -> str | None:
    """Path of the first weights file of torch in a local folder that is not whole."""
    torch_files = sorted(Path(name).glob("pytorch_model*.bin"))
    return next((str(path) for path in torch_files if not is_zipfile(path)), None)  # which is what torch.save writes


def check_loaded(
    model: LabelTableModel, name: str | os.PathLike[str], info: dict[str, Any], ignore_mismatched_sizes: bool
) -> None:
    """Refuse a checkpoint that lacks a part of the model, or does not fit the configuration.

    Args:
        model: just loaded.
        name: of the checkpoint.
        info: ``missing_keys`` and ``mismatched_keys`` of transformers' ``from_pretrained``.
        ignore_mismatched_sizes: start a new head and label table where theirs do not fit.

    Raises:
        ValueError: as above, or a label table that is damaged.
    """
    missing = sorted(info["missing_keys"])
    if table := [key for key in missing if key.startswith("classifier.")]:
        raise ValueError(
            f"{name} has no {', '.join(table)}: its label table is incomplete, so it cannot predict. Load a "
            "whole LwAL checkpoint, or the plain backbone through AutoModelForLwALClassification."
        )
    if missing:
        raise ValueError(
            f"{name} lacks {len(missing)} weights of the encoder, which would be random: {listed(missing)}. Copy, "
            "download or save the whole model again."
        )
    mismatched = {key: (tuple(found), tuple(wanted)) for key, found, wanted in info["mismatched_keys"]}
    if mismatched and not ignore_mismatched_sizes:
        key = TABLE_SIZES if TABLE_SIZES in mismatched else next(iter(mismatched))
        _refuse_sizes(name, key, *mismatched[key])
    head = f"encoder.{model.config.head_name}."
    if any(key.startswith(("classifier.", head)) for key in mismatched):
        logger.warning("The label table of %s does not fit the configuration: a new one is started.", name)
        start_anew(model, model.config.label_names, model.config.embedding_dim)
    check_label_table(model, name)
    check_weights(model.encoder, name)


def check_table_sizes(shapes: Shapes | None, config: LwALConfig, name: str | os.PathLike[str]) -> None:
    """Raise ValueError where the label table in a file has other sizes than its configuration says.

    Args:
        shapes: of the stored weights; None where they are not known.
        config: with the labels of the checkpoint.
        name: of the checkpoint.
    """
    found, wanted = (shapes or {}).get(TABLE_SIZES), (config.num_labels, config.embedding_dim)
    if found is not None and found != wanted:
        _refuse_sizes(name, TABLE_SIZES, found, wanted)


def _refuse_sizes(
    name: str | os.PathLike[str], key: str, found: tuple[int, ...], wanted: tuple[int | None, ...]
) -> NoReturn:
    if key == TABLE_SIZES and found[:1] != wanted[:1]:
        raise ValueError(
            f"{name} has {found[0] if found else 'no'} labels, but its configuration names {wanted[0]}: correct "
            "id2label in its config.json, or pass ignore_mismatched_sizes=True to start a new label table."
        )
    raise ValueError(
        f"{name} stores {key} with shape {found}, but this configuration needs {wanted}: copy its config.json and "
        "weights anew from where they come from."
    )


def check_weights(model: nn.Module, name: str | os.PathLike[str]) -> None:
    """Raise ValueError, with the weight's name, where weights are numbers that no training ends with.

    Args:
        model: just loaded.
        name: of the checkpoint.
    """
    measured = ((key, value) for key, value in model.named_buffers() if key.endswith(("running_mean", "running_var")))
    weights: dict[str, Tensor] = {
        key: value
        for key, value in (*model.named_parameters(), *measured)
        if type(value) in (Tensor, nn.Parameter) and value.dtype in CHECKED and not value.is_meta and value.numel()
    }
    for key, value in weights.items():
        least, most = torch.stack(value.detach().aminmax()).tolist()
        if not -LARGEST < least <= most < LARGEST or (key.endswith("running_var") and least < 0):
            raise ValueError(
                f"The weights of {name} are damaged: {key} holds numbers from {least:g} to {most:g}. Load another "
                "checkpoint, or train again."
            )


def check_label_table(model: LabelTableModel, name: str | os.PathLike[str]) -> None:
    """Raise ValueError, with the label's name, where a label table holds numbers that no training writes.

    Args:
        model: just loaded.
        name: of the checkpoint.
    """
    table = model.label_table
    here = {key: value for key, value in table.state_dict().items() if not value.is_meta}  # others lie on the disk
    faults = [(key, ~(here[key].abs() < LARGEST), "not finite, or too large") for key in ROW_TENSORS if key in here]
    faults += [(key, here[key] < 0, "negative") for key in ("counts", "rejection_radii") if key in here]
    for key, wrong, what in faults:
        rows = wrong.reshape(len(wrong), -1).any(dim=1).nonzero().flatten().tolist()  # (C,) to their ids
        if rows:
            names = model.config.label_names
            labels = listed(names[row] for row in rows)
            raise ValueError(
                f"The label table of {name} is damaged: {key} of {labels} is {what}. Load another checkpoint, or "
                "train again."
            )
    scale = float(here["log_scale_bias"].exp()) if "log_scale_bias" in here else 1.0
    if not 0.0 < scale < float("inf"):
        raise ValueError(
            f"The label table of {name} is damaged: the scale of the logits is {scale}, but must be a positive finite "
            "number. Load another checkpoint, or train again."
        )


def listed(names: Any) -> str:
    """The first few names, in quotation marks, and how many more there are."""
    shown = [repr(name) for name in names]
    more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    return ", ".join(shown[:SHOWN]) + more
