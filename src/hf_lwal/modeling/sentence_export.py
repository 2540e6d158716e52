"""Sentence Transformers: a folded classifier that pools its tokens, as a folder whose ``encode`` gives its logits.

The folder holds the modules Transformer, Pooling, Normalize where vectors are scaled, and Dense with the folded head.
It is compared with the classifier before it is given out, loaded from disk as a server would load it.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .fold_check import TOLERANCE, largest_difference
from .inference import max_length_of
from .modeling_pooled import LwALPooledForSequenceClassification
from .pooling import ALIASES
from .probes import RANDOM_ROWS, TEXT_LENGTH

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BATCH_SIZE = 32
LONGEST = 1_024
"""Tokens of the texts that show where a text is cut; a model that reads more is not shown that."""
TRANSFORMER_SETTINGS = "sentence_bert_config.json"


class Compared(NamedTuple):
    """Texts compared, and the largest difference of a logit between the folder's and the model's."""

    rows: int
    difference: float


def require_sentence_transformers() -> None:
    """Raise ImportError with the command that installs what is missing."""
    if find_spec("sentence_transformers") is None:
        raise ImportError(
            "A Sentence Transformers folder needs the package sentence-transformers: "
            'pip install "hf-lwal[sentence-transformers]".'
        )


@torch.no_grad()
def export_sentence_transformer(
    model: PreTrainedModel,
    folder: str | os.PathLike[str],
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str] = (),
) -> Compared:
    """Write a folder for ``SentenceTransformer(folder).encode(texts)`` to give the logits (N, C), in float32.

    The names of the labels are ``id2label`` in its ``config.json``. Before this returns, the folder has been loaded
    again and has encoded 1,000 random texts of the tokenizer's vocabulary, some that are longer than the model reads,
    and the given ones.

    Args:
        model: a classifier that pools its tokens, for example from ``fold``; left as it is.
        folder: made if need be.
        tokenizer: of the model; left as it is.
        texts: real ones to compare, too.

    Returns:
        How many texts were compared, and the largest difference of a logit.

    Raises:
        ImportError: the extra ``sentence-transformers`` is not installed.
        ValueError: the model pools in a way of its own, or Sentence Transformers cannot load it or gives other logits.
    """
    check_pooled(model)
    require_sentence_transformers()
    model = copy.deepcopy(model).float().cpu().eval()
    compared = [*texts, *random_texts(tokenizer, RANDOM_ROWS), *_long_texts(model, tokenizer)]
    with torch.random.fork_rng(devices=[]):  # libraries draw weights that they then read from the folder
        try:
            _write(model, Path(folder), tokenizer)
            served = _served(Path(folder), compared)
        except Exception as error:  # what architectures raise that the library does not know has no common class
            raise ValueError(
                f"Sentence Transformers cannot serve a {type(model.base_model).__name__} ({error}): serve the folded "
                "checkpoint itself, or its ONNX graph."
            ) from error
    ours = torch.cat([_logits(model, tokenizer, batch) for batch in _batches(compared)])
    difference, allowed = largest_difference(ours, served)
    if not difference <= allowed:  # NaN is no equality either
        raise ValueError(
            f"Sentence Transformers gives other logits than {type(model).__name__} (difference {difference:.3g}, "
            f"where {TOLERANCE:g} of the largest logit is allowed): do not use {folder}."
        )
    return Compared(len(compared), difference)


def check_pooled(model: PreTrainedModel) -> None:
    """Raise ValueError, with what to do instead, for a model that these modules cannot stand for."""
    if hasattr(model, "label_table"):
        raise ValueError(
            "This model has a label table, which Sentence Transformers has no module for: fold it first, model.fold()."
        )
    if not isinstance(model, LwALPooledForSequenceClassification):
        raise ValueError(
            f"{type(model).__name__} reads its tokens in a way of its own that Sentence Transformers has no module "
            "for: save the folded model itself or its ONNX graph, or train with pooling='mean' or another "
            "(lwal_pooling) for a model that can be written so."
        )


def random_texts(
    tokenizer: PreTrainedTokenizerBase, count: int, length: int = TEXT_LENGTH, seed: int = 0
) -> list[str]:
    """Texts of random tokens of the vocabulary, half as long to as long as ``length``; few or none may be left out.

    Args:
        tokenizer: its special tokens are not drawn.
        count: of texts; those that decode to nothing but spaces are drawn again, once.
        length: most tokens per text, before the texts are tokenised again.
        seed: of a generator of their own.
    """
    generator = torch.Generator().manual_seed(seed)
    special = set(tokenizer.all_special_ids)
    ordinary = torch.tensor([token for token in range(len(tokenizer)) if token not in special], dtype=torch.long)
    if not len(ordinary):
        return []
    rows = ordinary[torch.randint(len(ordinary), (2 * count, length), generator=generator)]
    lengths = torch.randint(length // 2, length + 1, (2 * count,), generator=generator)
    texts = (tokenizer.decode(row[:kept].tolist()) for row, kept in zip(rows, lengths.tolist(), strict=True))
    readable = (str(text) for text in texts if str(text).strip())
    return [text for text, _ in zip(readable, range(count), strict=False)]


def _long_texts(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Two texts that are cut, where the model reads no more than a moderate number of tokens."""
    most = max_length_of(model, tokenizer)
    return random_texts(tokenizer, 2, 4 * most) if most is not None and most <= LONGEST else []


def _write(model: PreTrainedModel, folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """The modules, each built and saved by the library."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    backbone, config, head = model.base_model, model.config, model.classifier
    most = max_length_of(model, tokenizer)
    backbone.config.id2label, backbone.config.label2id = config.id2label, config.label2id
    settings: dict[str, Any] = {} if most is None else {"max_seq_length": most}
    if "add_pooling_layer" in inspect.signature(type(backbone).__init__).parameters:
        settings["model_kwargs"] = {"add_pooling_layer": False}  # else it gets one with random weights
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        backbone.save_pretrained(place)
        saved = copy.deepcopy(tokenizer)
        saved.init_kwargs["padding_side"] = tokenizer.padding_side  # saved as it was loaded otherwise
        saved.save_pretrained(place)
        transformer = Transformer(place, **copy.deepcopy(settings))
    transformer.modality_config = {"text": transformer.modality_config["text"]}  # not through a chat template
    modes = config.pooling.split("+")
    names = {ours: theirs for theirs, ours in ALIASES.items()}
    pooling = Pooling(config.hidden_size, pooling_mode=tuple(names.get(mode, mode) for mode in modes))
    dense = Dense(head.in_features, head.out_features, activation_function=torch.nn.Identity())
    dense.linear.load_state_dict(head.state_dict())
    modules: list[Any] = [transformer, pooling, *([Normalize()] if config.normalize else []), dense]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder), create_model_card=False)
    stored = json.loads((folder / TRANSFORMER_SETTINGS).read_text(encoding="utf-8"))
    (folder / TRANSFORMER_SETTINGS).write_text(json.dumps(stored | settings, indent=2), encoding="utf-8")


def _served(folder: Path, texts: list[str]) -> Tensor:
    """Logits (N, C) of the folder, loaded as anybody loads it."""
    from sentence_transformers import SentenceTransformer

    served = SentenceTransformer(str(folder), device="cpu")
    return torch.cat(
        [
            served.encode(batch, batch_size=len(batch), convert_to_tensor=True, show_progress_bar=False)
            for batch in _batches(texts)
        ]
    )


def _logits(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> Tensor:
    most = max_length_of(model, tokenizer)
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=most, return_tensors="pt")
    return model(**inputs).logits


def _batches(texts: list[str]) -> Iterator[list[str]]:
    """The same texts stand together in both, since padding on the left moves the places of some models' tokens."""
    for start in range(0, len(texts), BATCH_SIZE):
        yield texts[start : start + BATCH_SIZE]
