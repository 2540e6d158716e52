"""What must work for a stock classifier of any architecture: one function per promise, raising what breaks it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from architectures import MAPPINGS, NUM_LABELS, Architecture, tiny
from datasets import Dataset
from PIL import Image
from torch import Tensor
from toy import word_tokenizer
from transformers import (
    ASTFeatureExtractor,
    ImageGPTImageProcessor,
    PreTrainedConfig,
    PrinterCallback,
    SeamlessM4TFeatureExtractor,
    Siglip2ImageProcessor,
    ViTImageProcessor,
    Wav2Vec2FeatureExtractor,
    WhisperFeatureExtractor,
    pipeline,
    set_seed,
)

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.modeling.heads import scores_of, with_architectures
from hf_lwal.modeling.tasks import TASKS

ROWS = 12
TEXT_LENGTH = 16
SAMPLES = 1_600
SAMPLING_RATE = 16_000

PIPELINES = {"text": "text-classification", "image": "image-classification", "audio": "audio-classification"}


class Subject(NamedTuple):
    """A tiny model, rows to train it on, and the raw inputs that they came from."""

    architecture: Architecture
    config: PreTrainedConfig
    model: Any
    processor: Any
    raw: list[Any]
    rows: Dataset

    def batch(self, rows: int = 4) -> dict[str, Tensor]:
        """The first rows as tensors, without labels."""
        columns = self.rows.with_format("torch")[:rows]
        return {name: value for name, value in columns.items() if name != "labels"}


def image_size(config: PreTrainedConfig) -> int:
    """Side of the images in pixels."""
    for part in (config, getattr(config, "vision_config", None)):
        size = getattr(part, "image_size", None)
        if size is not None:
            return size if isinstance(size, int) else size[0]
    return 32


def text_processor(config: PreTrainedConfig) -> Any:
    """A word-level tokenizer; its [SEP] is the end of the sentence that encoder-decoder models look for."""
    return word_tokenizer()


def image_processor(config: PreTrainedConfig) -> Any:
    """An image processor of the architecture's size."""
    size = image_size(config)
    if config.model_type == "imagegpt":
        return ImageGPTImageProcessor(
            clusters=np.random.default_rng(0).uniform(-1, 1, (8, 3)), size={"height": 4, "width": 4}
        )
    if config.model_type == "siglip2":
        return Siglip2ImageProcessor(patch_size=config.vision_config.patch_size, max_num_patches=16)
    return ViTImageProcessor(size={"height": size, "width": size})


def audio_processor(config: PreTrainedConfig) -> Any:
    """A feature extractor of the architecture's kind and size."""
    if config.model_type == "audio-spectrogram-transformer":
        return ASTFeatureExtractor(num_mel_bins=config.num_mel_bins, max_length=config.max_length)
    if config.model_type == "whisper":
        return WhisperFeatureExtractor(feature_size=config.num_mel_bins, chunk_length=1)
    if config.model_type == "wav2vec2-bert":
        return SeamlessM4TFeatureExtractor()
    return Wav2Vec2FeatureExtractor()


PROCESSORS: dict[str, Callable[[PreTrainedConfig], Any]] = {
    "text": text_processor,
    "image": image_processor,
    "audio": audio_processor,
}


def raw_inputs(task: str, config: PreTrainedConfig) -> list[Any]:
    """Sentences, images or waves as a user has them."""
    generator = np.random.default_rng(0)
    if task == "text":
        lengths = generator.integers(3, TEXT_LENGTH - 2, ROWS)
        return [" ".join(f"word{i}" for i in generator.integers(0, 20, length)) for length in lengths]
    if task == "image":
        size = image_size(config)
        return [Image.fromarray(generator.integers(0, 256, (size, size, 3), dtype=np.uint8)) for _ in range(ROWS)]
    return [generator.standard_normal(SAMPLES).astype(np.float32) for _ in range(ROWS)]


def tensors(task: str, processor: Any, raw: list[Any]) -> dict[str, Tensor]:
    """What a model is called with for raw inputs."""
    keywords = {"sampling_rate": SAMPLING_RATE} if task == "audio" else {}
    return dict(processor(raw, return_tensors="pt", **keywords))


def processed(task: str, processor: Any, raw: list[Any]) -> Dataset:
    """Rows that a training script would make of the raw inputs, with labels."""
    if task == "text":
        columns = processor(raw, padding="max_length", max_length=TEXT_LENGTH)
    elif task == "image":
        columns = processor(raw, return_tensors="np")
    else:
        columns = processor(raw, sampling_rate=SAMPLING_RATE, return_tensors="np")
    columns = {name: np.asarray(value).tolist() for name, value in columns.items()}
    return Dataset.from_dict({**columns, "labels": [row % NUM_LABELS for row in range(len(raw))]})


def task_to_say(architecture: Architecture) -> str | None:
    """The task, for an architecture that is in several mappings; else None."""
    mappings = [task for task, mapping in MAPPINGS.items() if architecture.model_type in mapping]
    return architecture.task if len(mappings) > 1 else None


def build(architecture: Architecture) -> Subject:
    """Build the model from a native configuration; the task is said only where an architecture has several."""
    config = tiny(architecture)
    set_seed(0)
    model = AutoModelForLwALClassification.from_config(config, task=task_to_say(architecture))
    processor = PROCESSORS[architecture.task](config)
    raw = raw_inputs(architecture.task, config)
    return Subject(architecture, config, model, processor, raw, processed(architecture.task, processor, raw))


@torch.no_grad()
def check_outputs(subject: Subject, folder: Path) -> None:
    """The embeddings are what the stock class calls logits, and the logits are distances to the label vectors."""
    model, batch = subject.model.eval(), subject.batch()
    output = model(**batch)
    stock = model.encoder(**batch, return_dict=True)
    assert output.logits.shape == (4, NUM_LABELS)
    assert output.embeddings.shape == (4, model.config.embedding_dim)
    torch.testing.assert_close(output.embeddings, stock.get("logits", stock[0]), rtol=1e-5, atol=1e-6)


def check_training(subject: Subject, folder: Path) -> None:
    """One step moves the encoder and fills the table; predictions are one array with a column per label."""
    model = subject.model
    before = {name: tensor.detach().clone() for name, tensor in model.encoder.named_parameters()}
    arguments = LwALTrainingArguments(
        str(folder / "out"),
        max_steps=1,
        per_device_train_batch_size=ROWS,
        learning_rate=1e-3,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = LwALTrainer(model=model, args=arguments, train_dataset=subject.rows)
    trainer.remove_callback(PrinterCallback)
    loss = trainer.train().training_loss
    moved = [name for name, tensor in model.encoder.named_parameters() if not torch.equal(tensor, before[name])]
    assert np.isfinite(loss), f"the loss is {loss}"
    assert len(moved) > 0, "no parameter of the encoder moved"
    assert model.config.head_name is None or f"{model.config.head_name}.weight" in moved, "the head did not move"
    assert model.label_table.counts.tolist() != [0] * NUM_LABELS, "the label table is empty"
    predictions = trainer.predict(subject.rows).predictions
    assert isinstance(predictions, np.ndarray), f"predictions are a {type(predictions).__name__}"
    assert predictions.shape == (ROWS, NUM_LABELS)


@torch.no_grad()
def check_reload(subject: Subject, folder: Path) -> None:
    """Saved and loaded, every tensor and every prediction is bit for bit the same."""
    model, batch = subject.model.eval(), subject.batch()
    model.save_pretrained(folder / "saved")
    loaded = AutoModelForLwALClassification.from_pretrained(folder / "saved").eval()
    assert type(loaded.encoder) is type(model.encoder)
    ours, theirs = model.state_dict(), loaded.state_dict()
    assert ours.keys() == theirs.keys()
    different = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert not different, f"loaded differently: {', '.join(different[:5])}"
    # Tensors from a file lie where the file has them; vectorised sums differ with the alignment, in the last digit.
    aligned = copy.deepcopy(loaded)
    assert torch.equal(model(**batch).logits, aligned(**batch).logits), "the loaded model predicts otherwise"


def check_stock(subject: Subject, folder: Path) -> None:
    """A fine-tuned stock classifier on disk gives its weights to the encoder, its head apart."""
    stock = TASKS[subject.architecture.task].stock.from_config(with_architectures(tiny(subject.architecture)))
    stock.save_pretrained(folder / "stock")
    model = AutoModelForLwALClassification.from_pretrained(folder / "stock", task=task_to_say(subject.architecture))
    assert type(model.encoder) is type(stock)
    head = f"{model.config.head_name}."
    theirs, ours = stock.state_dict(), model.encoder.state_dict()
    same_shape = [name for name in theirs if not name.startswith(head) and theirs[name].shape == ours[name].shape]
    different = [name for name in same_shape if not torch.equal(theirs[name], ours[name])]
    assert len(same_shape) > 1
    assert not different, f"not taken over: {', '.join(different[:5])}"


def check_pipeline(subject: Subject, folder: Path) -> None:
    """The stock pipeline gives the probabilities that the model gives to the same inputs, one at a time."""
    task, model = subject.architecture.task, subject.model.eval()
    keyword = {"text": "tokenizer", "image": "image_processor", "audio": "feature_extractor"}[task]
    pipe = pipeline(PIPELINES[task], model=model, **{keyword: subject.processor}, device="cpu")
    for raw, answer in zip(subject.raw[:2], pipe(subject.raw[:2], top_k=NUM_LABELS), strict=True):
        scores = torch.tensor([entry["score"] for entry in sorted(answer, key=lambda entry: entry["label"])])
        with torch.no_grad():  # without padding, which changes what some architectures see
            expected = model(**tensors(task, subject.processor, [raw])).logits.softmax(-1)[0]
        torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def check_fold(subject: Subject, folder: Path) -> str:
    """A stock checkpoint, or a stock model in memory where the head has no bias, predicts the same labels.

    Returns:
        "checkpoint", "memory" or "none", the last for architectures that are refused in a sentence.
    """
    model, batch = subject.model.eval(), subject.batch(ROWS)
    if model.config.head_name is None:
        with pytest.raises(ValueError, match="no single linear head"):
            model.fold()
        return "none"
    in_memory = model.head_module.bias is None
    stock = model.fold([batch], add_bias=in_memory)
    if not in_memory:
        stock.save_pretrained(folder / "folded")
        stock = TASKS[subject.architecture.task].stock.from_pretrained(folder / "folded").eval()
    assert type(stock) is type(model.encoder)
    scores = scores_of(stock(**batch, return_dict=True))
    logits = model(**batch).logits
    best, second = logits.topk(2).values.unbind(1)
    clear = (best - second) / best.abs() > 1e-5
    assert clear.any(), "every row is a tie, so nothing was compared"
    assert torch.equal(scores.argmax(1)[clear], logits.argmax(1)[clear]), "the folded model predicts otherwise"
    return "memory" if in_memory else "checkpoint"


CHECKS: dict[str, Callable[[Subject, Path], str | None]] = {
    "outputs": check_outputs,
    "training": check_training,
    "reload": check_reload,
    "stock": check_stock,
    "pipeline": check_pipeline,
    "fold": check_fold,
}
"""In this order: later ones see the model trained by one step."""
