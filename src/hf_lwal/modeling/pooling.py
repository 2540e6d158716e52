"""From token vectors to a sentence vector, and what a checkpoint says about how it does that.

Modes and files are those of Sentence Transformers (Reimers & Gurevych, 2019), whose ``Pooling`` module the functions
here were checked against.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from huggingface_hub import try_to_load_from_cache
from torch import Tensor
from transformers.utils import cached_file

from .functional import at_least_float32

logger = logging.getLogger(__name__)

MODEL = "model"
"""The pooling of the stock classifier itself, whatever that is."""
CLASSIFIER = "ForSequenceClassification"
"""What the classes of text classifiers have in their names."""


def _mean(tokens: Tensor, mask: Tensor) -> Tensor:
    return tokens.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def _mean_sqrt_len(tokens: Tensor, mask: Tensor) -> Tensor:
    return tokens.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1).to(tokens.dtype).sqrt()


def _weightedmean(tokens: Tensor, mask: Tensor) -> Tensor:
    places = torch.arange(1, mask.shape[1] + 1, device=mask.device) - _first(mask).unsqueeze(
        1
    )  # (B, T), 1 at the first
    weights = (places * mask).to(tokens.dtype)
    return (tokens * weights.unsqueeze(2)).sum(dim=1) / weights.sum(dim=1, keepdim=True).clamp(min=1)


def _max(tokens: Tensor, mask: Tensor) -> Tensor:
    largest = tokens.masked_fill(~mask.unsqueeze(2), -torch.inf).amax(dim=1)
    return largest.masked_fill(~mask.any(dim=1, keepdim=True), 0.0)


def _cls(tokens: Tensor, mask: Tensor) -> Tensor:
    return _token(tokens, _first(mask))


def _last(tokens: Tensor, mask: Tensor) -> Tensor:
    return _token(tokens, mask.shape[1] - 1 - _first(mask.flip(1)))


def _first(mask: Tensor) -> Tensor:
    """(B,) place of the first token that is no padding; tokenizers may pad on either side."""
    return mask.to(torch.int32).argmax(dim=1)


def _token(tokens: Tensor, places: Tensor) -> Tensor:
    return tokens.gather(1, places.view(-1, 1, 1).expand(-1, 1, tokens.shape[2])).squeeze(1)  # (B, H)


MODES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": _mean,
    "cls": _cls,
    "max": _max,
    "last": _last,
    "mean_sqrt_len": _mean_sqrt_len,
    "weightedmean": _weightedmean,
}
"""Name → function of tokens (B, T, H), zero where they are padding, and their mask (B, T) bool."""

ALIASES = {"lasttoken": "last", "mean_sqrt_len_tokens": "mean_sqrt_len"}
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "last",
}
"""How Sentence Transformers writes the modes, in the order in which it concatenates them."""


def pool(tokens: Tensor, mask: Tensor, pooling: str, normalize: bool = False) -> Tensor:
    """Sentence vectors; padding counts for nothing, whatever its vectors hold.

    Args:
        tokens: (B, T, H) floating point; half precision is added up in float32.
        mask: (B, T), 0 for padding. One that is longer, since it covers a cached prefix, counts from its end.
        pooling: a key of `MODES`, or several joined by "+", whose vectors are concatenated.
        normalize: scale to length 1.

    Returns:
        (B, n H) for n modes, in the dtype of ``tokens``; zeros for a row without tokens.

    Raises:
        ValueError: ``mask`` does not say which tokens are padding.

    >>> pool(torch.tensor([[[1.0], [3.0], [8.0]]]), torch.tensor([[1, 1, 0]]), "mean+last")
    tensor([[2., 3.]])
    """
    if mask.dim() != 2 or mask.shape[1] < tokens.shape[1]:
        raise ValueError(
            f"Pooling needs an attention_mask (rows, tokens) for {tokens.shape[1]} tokens, but its shape is "
            f"{tuple(mask.shape)}: pass the tokenizer's, or load the model with pooling='model'."
        )
    kept = mask[:, mask.shape[1] - tokens.shape[1] :] > 0  # (B, T)
    values = at_least_float32(tokens).masked_fill(~kept.unsqueeze(2), 0.0)  # a product would keep what is not finite
    pooled = torch.cat([MODES[mode](values, kept) for mode in pooling.split("+")], dim=1)
    return (F.normalize(pooled, dim=1) if normalize else pooled).to(tokens.dtype)


def check_pooling(pooling: str) -> str:
    """The name of a pooling, spelled our way.

    Raises:
        ValueError: not known; the message lists the known ones.
    """
    parts = [ALIASES.get(part, part) for part in str(pooling).split("+")]
    known = parts == [MODEL] or all(part in MODES for part in parts)
    if not known or len(set(parts)) < len(parts):
        raise ValueError(
            f"Unknown pooling {pooling!r}: choose one of {MODEL}, {', '.join(MODES)}, several of them joined by + "
            "such as cls+mean, or auto for what the checkpoint says."
        )
    return "+".join(parts)


class StoredPooling(NamedTuple):
    """How a checkpoint's sentence vectors are made, and how we know."""

    pooling: str
    normalize: bool
    why: str


def stored_pooling(name: str | os.PathLike[str], **hub: Any) -> StoredPooling:
    """Read how the sentence vectors of a checkpoint are made, from the files of Sentence Transformers beside it.

    Args:
        name: local folder or Hub id.
        **hub: revision, token and the like.

    Returns:
        `MODEL` for a fine-tuned classifier, whatever files lie beside it: its features are those it was trained with.

    Raises:
        ValueError: the files ask for what no classifier here can do, or cannot be read; the message says what to pass.
    """
    own = _read_json(name, "config.json", hub) or {}
    if any(CLASSIFIER in architecture for architecture in own.get("architectures") or ()):
        return StoredPooling(MODEL, False, "it is a classifier, which was trained with its own")
    modules = _read_json(name, "modules.json", hub)
    if modules is None:
        if _is_unknown(name, "modules.json", hub):
            logger.warning(
                "Whether %s is a sentence encoder is not known: its modules.json is not in the cache and the Hub is "
                "not reached. Its tokens are pooled as the stock class does; pass pooling=… if it is one.",
                name,
            )
        return StoredPooling(MODEL, False, "no modules.json says otherwise")
    if not isinstance(modules, list) or not all(isinstance(module, dict) and "type" in module for module in modules):
        raise ValueError(f"The modules.json of {name} is no list of modules: pass pooling='model' or another.")
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    if "Pooling" not in kinds:
        return StoredPooling(MODEL, False, f"its modules.json has no Pooling, only {', '.join(kinds)}")
    place = kinds.index("Pooling")
    if place != 1:
        raise ValueError(
            f"The modules.json of {name} puts {', '.join(kinds[1:place]) or 'nothing'} between the transformer and "
            "its pooling, which a classifier here cannot do: pass pooling='mean' or another for the transformer's own "
            "tokens."
        )
    folder = str(modules[place].get("path", "1_Pooling"))
    config = _read_json(name, f"{folder}/config.json", hub)
    if not isinstance(config, dict):
        raise ValueError(
            f"{name} has no {folder}/config.json that modules.json names: pass pooling='mean' or another."
        )
    if config.get("include_prompt") is False:
        raise ValueError(
            f"{name} leaves the tokens of a prompt out of its pooling (include_prompt=false), which a classifier here "
            "cannot tell from the text: pass pooling='mean' or another to pool all tokens."
        )
    after = kinds[place + 1 :]
    left_out = [kind for kind in after if kind != "Normalize"]
    if left_out:
        logger.warning("What %s has behind its pooling is left out: %s.", name, ", ".join(left_out))
    return StoredPooling(_modes_of(config), bool(after) and after[0] == "Normalize", "its modules.json says so")


def _modes_of(config: Mapping[str, Any]) -> str:
    """The pooling that the configuration of a ``Pooling`` module asks for, in its newer or its older form."""
    wanted = config.get("pooling_mode") or [mode for flag, mode in FLAGS.items() if config.get(flag)] or "mean"
    return check_pooling(wanted if isinstance(wanted, str) else "+".join(wanted))


def _read_json(name: str | os.PathLike[str], file: str, hub: Mapping[str, Any]) -> Any:
    """Content of a file of the checkpoint, or None where there is none."""
    found = cached_file(
        name,
        file,
        **hub,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if found is None:
        return None
    try:
        with open(found, encoding="utf-8") as content:
            return json.load(content)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file} of {name} is not JSON ({error}): pass pooling='model' or another.") from error


def _is_unknown(name: str | os.PathLike[str], file: str, hub: Mapping[str, Any]) -> bool:
    """Whether a file that was not found may exist: on the Hub, which neither answers now nor did so before."""
    if os.path.isdir(name):
        return False
    place = {key: hub[key] for key in ("cache_dir", "revision") if hub.get(key) is not None}
    path = f"{hub['subfolder']}/{file}" if hub.get("subfolder") else file
    return try_to_load_from_cache(str(name), path, **place) is None
