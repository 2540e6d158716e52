"""What ``hf-lwal train`` trains: a pretrained model, or a small ConvNet for small pictures, on rows with settings."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bench.comparison import embedded_model_path, label_maps, load_part, load_processing_class
from ..errors import CommandError

if TYPE_CHECKING:
    from ..modeling.modeling_lwal import LwALPreTrainedModel
    from .train_data import Rows

SMALL_IMAGE = 64
"""Pixels; up to this side a picture is small enough for a ConvNet from scratch."""
EMBEDDED_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
"""Where the weights of the default text model come from, for the model card."""


@dataclass(frozen=True)
class Start:
    """What a training starts from.

    Attributes:
        path: folder or Hub name; None for the ConvNet without pretrained weights.
        base: name for the model card, None when it is a folder of the user's.
        processing_class: tokenizer or image processor.
        title: for the log.
    """

    path: str | None
    base: str | None
    processing_class: Any
    title: str


@dataclass(frozen=True)
class Job:
    """One training with everything it needs."""

    data: str
    rows: Rows
    start: Start
    values: dict[str, Any]
    embedding_dim: str | None
    max_length: int | None
    resume: bool
    checkpoint: str | None = None

    @property
    def output(self) -> Path:
        """The output folder."""
        return Path(self.values["output_dir"])


def choose_start(model: str | None, rows: Rows) -> Start:
    """Find the model's processing class, or the default model for the data."""
    kind = rows.columns.kind
    if model is not None:
        model = os.path.expanduser(model)
        return Start(model, None if Path(model).exists() else model, load_processing_class(model, kind), model)
    if kind == "text":
        path = embedded_model_path()
        return Start(path, EMBEDDED_MODEL, load_processing_class(path, kind), f"MiniLM ({EMBEDDED_MODEL})")
    if kind == "audio":
        raise CommandError(
            "For sounds give a pretrained audio model with --model, for example facebook/wav2vec2-base."
        )
    side = max(rows.train[0][rows.columns.input].size)
    if side > SMALL_IMAGE:
        raise CommandError(
            f"The images are up to {side} pixels wide: give a pretrained image model with --model, for example "
            "google/vit-base-patch16-224 or facebook/convnextv2-tiny-22k-224."
        )
    from transformers import ViTImageProcessor

    processor = ViTImageProcessor(size={"height": side, "width": side})
    return Start(None, None, processor, f"small ConvNet from scratch, {side}×{side} pixels")


def check_max_length(limit: int | None, start: Start, rows: Rows) -> None:
    """Raise for a ``--max-length`` that leaves no room for words, or that is longer than the model can read."""
    if limit is None or rows.columns.kind != "text" or start.path is None:
        return
    from transformers import AutoConfig

    own = start.processing_class.num_special_tokens_to_add(pair=rows.second is not None)
    if limit <= own:
        raise CommandError(
            f"--max-length {limit} leaves no room for words: {own} tokens of every text are the tokenizer's own."
        )
    config = load_part(AutoConfig, start.path)
    most = getattr(getattr(config, "encoder_config", None) or config, "max_position_embeddings", None)
    if isinstance(most, int) and 0 < most < limit:
        raise CommandError(f"--max-length {limit} is more than the {most} tokens that {start.title} can read.")


def build_model(
    start: Start, rows: Rows, embedding_dim: str | None, seed: int, pooling: str | None = None
) -> LwALPreTrainedModel:
    """Return the backbone with a fresh head and label table, the same for the same seed."""
    from transformers import set_seed

    from ..modeling.auto import AutoModelForLwALClassification

    set_seed(seed)
    if start.path is None:
        return small_convnet(start.processing_class.size["height"], rows.names, embedding_dim)
    model: LwALPreTrainedModel = load_part(
        AutoModelForLwALClassification,
        start.path,
        **label_maps(rows.names),
        task=rows.columns.kind,
        embedding_dim=embedding_dim,
        pooling=pooling or "auto",
    )
    agree_on_padding(model, start.processing_class)
    return model


def small_convnet(side: int, names: list[str], embedding_dim: str | None) -> LwALPreTrainedModel:
    """A ConvNeXt of three stages with 0.3 million random weights, for colour pictures of ``side`` × ``side``."""
    from transformers import ConvNextConfig

    from ..modeling.auto import AutoModelForLwALClassification

    config = ConvNextConfig(
        image_size=side,
        patch_size=2,
        num_stages=3,
        hidden_sizes=[32, 64, 128],
        depths=[1, 1, 1],
        layer_scale_init_value=1.0,
        **label_maps(names),
    )
    try:
        return AutoModelForLwALClassification.from_config(config, embedding_dim=embedding_dim)
    except ValueError as error:
        raise CommandError(f"--embedding-dim: {error}") from error


def agree_on_padding(model: LwALPreTrainedModel, processing_class: Any) -> None:
    """Give the tokenizer of a language model a padding token, and the model the same."""
    if not hasattr(processing_class, "pad_token"):
        return
    if processing_class.pad_token is None:
        processing_class.pad_token = processing_class.eos_token
    model.config.pad_token_id = processing_class.pad_token_id
