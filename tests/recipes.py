"""The least that public guides, examples and notebooks do with a model and a trainer, written anew.

Each recipe takes the names that it imports, so that it runs with those of transformers and with those of hf-lwal, and
nothing else differs. It trains, evaluates, saves and reloads as its original does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import peft
import torch
import transformers
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from accelerate.tracking import GeneralTracker, on_main_process
from accelerate.utils import DistributedDataParallelKwargs, ProfileKwargs, find_executable_batch_size
from releases import RENAMES_VIT
from swap_data import NAMES, backbone
from tiny_models import tiny_config
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from toy import separable_audio, separable_images, separable_text
from transformers import (
    AutoImageProcessor,
    AutoModel,
    AutoTokenizer,
    DataCollatorWithPadding,
    DefaultDataCollator,
    TrainingArguments,
    Wav2Vec2FeatureExtractor,
    get_linear_schedule_with_warmup,
    get_scheduler,
    pipeline,
    set_seed,
)

import hf_lwal

PAIR, PAIR_TEST = separable_text(2, 96, seed=0), separable_text(2, 32, seed=1)
IMAGES, IMAGES_TEST = separable_images(5, 120, noise=0.1), separable_images(5, 40, seed=1, noise=0.1)
SOUNDS, SOUNDS_TEST = separable_audio(5, 120), separable_audio(5, 40, seed=1)
ID2LABEL, LABEL2ID = dict(enumerate(NAMES)), {name: index for index, name in enumerate(NAMES)}
PLAIN = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False}


class Names(NamedTuple):
    """What a recipe imports."""

    text: Any
    image: Any
    audio: Any
    trainer: Any


_OURS = hf_lwal.AutoModelForLwALClassification
NAMES_OF = {
    "stock": Names(
        transformers.AutoModelForSequenceClassification,
        transformers.AutoModelForImageClassification,
        transformers.AutoModelForAudioClassification,
        transformers.Trainer,
    ),
    "lwal": Names(_OURS, _OURS, _OURS, hf_lwal.LwALTrainer),
}


class Outcome(NamedTuple):
    """Accuracy on new rows, and logits of the same rows from the trained and from the reloaded model."""

    accuracy: float
    trained: Tensor
    reloaded: Tensor


def backbones(folder: Path) -> dict[str, str]:
    """Folders of a text, an image and a sound model without a classifier's head, with what prepares their inputs."""
    (folder / "audio").mkdir()
    set_seed(0)
    AutoModel.from_config(tiny_config("wav2vec2")).save_pretrained(folder / "audio")
    Wav2Vec2FeatureExtractor(return_attention_mask=False).save_pretrained(folder / "audio")
    for modality in ("text", "image"):
        (folder / modality).mkdir()
        backbone(modality, folder / modality)
    return {modality: str(folder / modality) for modality in ("text", "image", "audio")}


def logits_of(model: Any, batches: Any) -> tuple[Tensor, Tensor]:
    """Logits (N, C) and labels (N,) of all batches, in evaluation mode."""
    model.eval()
    with torch.no_grad():
        found = [(model(**batch).logits, batch["labels"]) for batch in batches]
    logits, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    return logits, labels


def hits(logits: Tensor, labels: Tensor) -> float:
    """Share of rows whose largest logit is that of their label."""
    return float((logits.argmax(dim=-1) == labels).float().mean())


def loaders(folder: str, train: Any = PAIR, test: Any = PAIR_TEST, size: int = 16) -> tuple[Any, Any]:
    """Training and evaluation batches, padded by the tokenizer as accelerate's and PEFT's examples do it."""
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def collate(rows: Any) -> Any:
        return tokenizer.pad(rows, padding="longest", return_tensors="pt")

    return DataLoader(train, size, shuffle=True, collate_fn=collate), DataLoader(test, 32, collate_fn=collate)


def compute_metrics(prediction: Any) -> dict[str, float]:
    """Accuracy, as `evaluate.load` has it."""
    return {"accuracy": float((np.argmax(prediction.predictions, axis=1) == prediction.label_ids).mean())}


# -- accelerate ---------------------------------------------------------------------------------------------------


class Loop:
    """What accelerate's text examples share; each has one idea of its own beside it."""

    def __init__(self, names: Names, folder: str, size: int = 16, epochs: int = 5, **accelerator: Any) -> None:
        self.accelerator, self.epochs = Accelerator(cpu=True, **accelerator), epochs
        self.load, self.folder = names.text.from_pretrained, folder
        self.prepare(size)

    def prepare(self, size: int) -> None:
        """Model, optimizer, batches and schedule, as the accelerator wraps them."""
        set_seed(0)
        train, test = loaders(self.folder, size=size)
        model = self.load(self.folder, return_dict=True).to(self.accelerator.device)
        optimizer = torch.optim.AdamW(params=model.parameters(), lr=5e-3)
        steps = len(train) * self.epochs
        schedule = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=2, num_training_steps=steps)
        parts = self.accelerator.prepare(model, optimizer, train, test, schedule)
        self.model, self.optimizer, self.train, self.test, self.schedule = parts

    def step(self, batch: Any) -> Tensor:
        """One micro-batch; returns its loss."""
        with self.accelerator.accumulate(self.model):
            loss: Tensor = self.model(**batch).loss
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
        return loss.detach()

    def run(self, batches: Any = None) -> Loop:
        """Train all epochs."""
        for _ in range(self.epochs):
            self.model.train()
            for batch in batches or self.train:
                self.step(batch)
        return self

    def outcome(self, folder: Path) -> Outcome:
        """Evaluate, save and load, as `unwrap_model` and `save_pretrained` are documented together."""
        self.model.eval()
        with torch.no_grad():
            found = [(self.model(**batch).logits, batch["labels"]) for batch in self.test]
        gathered = map(self.accelerator.gather_for_metrics, found)
        trained, labels = (torch.cat(part) for part in zip(*gathered, strict=True))
        inner = self.accelerator.unwrap_model(self.model)
        inner.save_pretrained(
            folder, is_main_process=self.accelerator.is_main_process, save_function=self.accelerator.save
        )
        self.accelerator.end_training()
        return Outcome(hits(trained, labels), trained, logits_of(self.load(folder), loaders(self.folder)[1])[0])


def nlp_example(names: Names, models: dict[str, str], folder: Path) -> Outcome:
    """The number of labels left out: two; `return_dict` belongs to the configuration."""
    return Loop(names, models["text"]).run().outcome(folder)


def gradient_accumulation(names: Names, models: dict[str, str], folder: Path) -> Outcome:
    """Two micro-batches per step."""
    return Loop(names, models["text"], size=8, gradient_accumulation_steps=2).run().outcome(folder)


def automatic_gradient_accumulation(names: Names, models: dict[str, str], folder: Path) -> Outcome:
    """After an out-of-memory error the same rows per step in more micro-batches, with a model made anew."""
    loop = Loop(names, models["text"])

    @find_executable_batch_size(starting_batch_size=16)
    def inner(batch_size: int) -> None:
        loop.accelerator.gradient_accumulation_steps = 16 // batch_size
        loop.accelerator.free_memory()
        loop.prepare(batch_size)
        if batch_size > 8:
            loop.model.train()
            loop.step(next(iter(loop.train)))
            raise RuntimeError("CUDA out of memory.")
        loop.run()

    inner()
    return loop.outcome(folder)


def checkpointing(names: Names, models: dict[str, str], folder: Path) -> Outcome:
    """A loop is killed within its fourth epoch; another reads the state and skips the batches that were seen."""
    first = Loop(names, models["text"])
    for epoch in range(4):
        first.model.train()
        for index, batch in enumerate(first.train):
            if (epoch, index) == (3, 3):
                first.accelerator.save_state(str(folder / "step_21"))
            if epoch < 3 or index < 3:
                first.step(batch)
    loop = Loop(names, models["text"])
    with torch.no_grad():
        for tensor in loop.model.parameters():
            tensor.add_(1.0)
    loop.accelerator.load_state(str(folder / "step_21"))
    loop.model.train()
    for batch in loop.accelerator.skip_first_batches(loop.train, 3):
        loop.step(batch)
    loop.epochs = 2
    return loop.run().outcome(folder / "saved")


def early_stopping(names: Names, models: dict[str, str], folder: Path) -> Outcome:
    """A trigger, set by a loss that is low enough, ends the loop on all processes."""
    loop = Loop(names, models["text"], epochs=40)
    for _ in range(loop.epochs):
        loop.model.train()
        for batch in loop.train:
            if loop.step(batch).item() < 0.05:
                loop.accelerator.set_trigger()
            if loop.accelerator.check_trigger():
                return loop.outcome(folder)
    raise AssertionError("the loss never came below 0.05")


def local_sgd(names: Names, models: dict[str, str], folder: Path) -> Outcome:
    """Processes average their parameters now and then; in one nothing may change."""
    loop = Loop(names, models["text"])
    with LocalSGD(accelerator=loop.accelerator, model=loop.model, local_sgd_steps=2, enabled=True) as averaging:
        for _ in range(loop.epochs):
            loop.model.train()
            for batch in loop.train:
                loop.step(batch)
                averaging.step()
    return loop.outcome(folder)


def profiler(names: Names, models: dict[str, str], folder: Path) -> Outcome:
    """torch's profiler around a training step."""
    loop = Loop(names, models["text"], kwargs_handlers=[ProfileKwargs(activities=["cpu"], record_shapes=True)])
    with loop.accelerator.profile() as seen:
        loop.model.train()
        loop.step(next(iter(loop.train)))
    assert "addmm" in seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=100)
    return loop.run().outcome(folder)


class Averaged(torch.optim.AdamW):
    """A schedule-free optimizer: `eval` puts averaged weights in the place of those that train."""

    averages = True

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Step, and average with all earlier weights."""
        loss = super().step(closure)
        for parameter in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            state = self.state[parameter]
            mean = state.setdefault("mean", parameter.clone())
            mean.lerp_(parameter, 1.0 / min(float(state["step"]), 8.0))
        return loss

    @torch.no_grad()
    def _swap(self, averages: bool) -> None:
        if self.averages != averages:
            return
        for parameter in (p for group in self.param_groups for p in group["params"] if "mean" in self.state[p]):
            mean = self.state[parameter]["mean"]
            kept = parameter.clone()
            parameter.copy_(mean)
            mean.copy_(kept)
        self.averages = not averages

    def eval(self) -> None:
        """Weights to predict with."""
        self._swap(True)

    def train(self) -> None:
        """Weights to train with."""
        self._swap(False)


def schedule_free(names: Names, models: dict[str, str], folder: Path) -> Outcome:
    """The weights change when the optimizer is told of the evaluation, which is after the model was."""
    loop = Loop(names, models["text"])
    optimizer = Averaged(loop.model.parameters(), lr=5e-3)
    for _ in range(loop.epochs + 2):
        loop.model.train()
        optimizer.train()
        for batch in loop.train:
            loop.accelerator.backward(loop.model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
        loop.model.eval()
        optimizer.eval()
    return loop.outcome(folder)


class Notes(GeneralTracker):
    """A tracker that keeps what it is told."""

    name, requires_logging_directory = "notes", False

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    @property
    def tracker(self) -> Any:
        """What is kept."""
        return self.kept

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Settings of the run."""
        self.kept.append(values)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Figures of an epoch."""
        self.kept.append(values)


def tracking(names: Names, models: dict[str, str], folder: Path) -> Outcome:
    """The loss of each epoch is summed up, detached, and logged."""
    loop = Loop(names, models["text"], log_with=Notes())
    loop.accelerator.init_trackers("run", {"lr": 5e-3})
    for epoch in range(loop.epochs):
        loop.model.train()
        total = sum(loop.step(batch).float() for batch in loop.train)
        loop.accelerator.log({"train_loss": total.item() / len(loop.train), "epoch": epoch}, step=epoch)
    kept = loop.accelerator.get_tracker("notes", unwrap=True)
    assert len(kept) == loop.epochs + 1
    assert kept[-1]["train_loss"] < kept[1]["train_loss"]
    return loop.outcome(folder)


def ddp_comm_hook(names: Names, models: dict[str, str], folder: Path) -> Outcome:
    """Settings of DDP, which one process has no use for."""
    return Loop(names, models["text"], kwargs_handlers=[DistributedDataParallelKwargs()]).run().outcome(folder)


# -- PEFT ---------------------------------------------------------------------------------------------------------

_CLASSIFIES = {"task_type": "SEQ_CLS"}
_ATTENTION = {"target_modules": ["query", "value"]}
ADAPTERS: dict[str, Callable[[], Any]] = {
    "lora": lambda: peft.LoraConfig(**_CLASSIFIES, inference_mode=False, r=8, lora_alpha=16, lora_dropout=0.1),
    "ia3": lambda: peft.IA3Config(**_CLASSIFIES, inference_mode=False),
    "prompt_tuning": lambda: peft.PromptTuningConfig(**_CLASSIFIES, num_virtual_tokens=4),
    "p_tuning": lambda: peft.PromptEncoderConfig(**_CLASSIFIES, num_virtual_tokens=4, encoder_hidden_size=16),
    "prefix_tuning": lambda: peft.PrefixTuningConfig(**_CLASSIFIES, num_virtual_tokens=4),
    "c3a": lambda: peft.C3AConfig(**_CLASSIFIES, block_size=32, **_ATTENTION),
    "fourierft": lambda: peft.FourierFTConfig(**_CLASSIFIES, n_frequency=100, scaling=150.0, **_ATTENTION),
    "vera": lambda: peft.VeraConfig(
        **_CLASSIFIES, r=8, target_modules=["query", "value"], save_projection=True, projection_prng_key=0xABC
    ),
    "vblora": lambda: peft.VBLoRAConfig(
        **_CLASSIFIES, r=4, topk=2, num_vectors=16, vector_length=16, save_only_topk_weights=True, **_ATTENTION
    ),
}
"""Name of a notebook → its adapter."""


def _two_rates(model: Any) -> list[dict[str, Any]]:
    """Head and adapter at rates of their own, as two of the notebooks tell them apart."""
    head = list(map(id, model.classifier.parameters()))
    others = filter(lambda parameter: id(parameter) not in head, model.parameters())
    return [{"params": model.classifier.parameters(), "lr": 5e-3}, {"params": others, "lr": 6e-2}]


def _by_name(model: Any) -> list[dict[str, Any]]:
    """Head and adapter found by their names."""
    return [
        {"params": [p for n, p in model.named_parameters() if "vera_lambda_" in n], "lr": 2e-2},
        {"params": [p for n, p in model.named_parameters() if "classifier" in n], "lr": 5e-3},
    ]


GROUPS: dict[str, Callable[[Any], Any]] = {"c3a": _two_rates, "fourierft": _two_rates, "vera": _by_name}


def peft_notebook(kind: str, names: Names, models: dict[str, str], folder: Path) -> Outcome:
    """A text notebook: no number of labels, PEFT finds layers and sizes in the configuration, the loop is plain."""
    set_seed(0)
    model = names.text.from_pretrained(models["text"], return_dict=True)
    model = peft.get_peft_model(model, ADAPTERS[kind]())
    model.print_trainable_parameters()
    train, test = loaders(models["text"])
    optimizer = torch.optim.AdamW(GROUPS[kind](model) if kind in GROUPS else model.parameters(), lr=1e-2)
    schedule = get_linear_schedule_with_warmup(optimizer, 2, 5 * len(train))
    for _ in range(5):
        model.train()
        for batch in train:
            model(**batch).loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    trained, labels = logits_of(model, test)
    model.save_pretrained(folder)
    config = peft.PeftConfig.from_pretrained(folder)
    inference = peft.PeftModel.from_pretrained(
        names.text.from_pretrained(config.base_model_name_or_path), folder, config=config
    )
    return Outcome(hits(trained, labels), trained, logits_of(inference, test)[0])


def peft_images(names: Names, models: dict[str, str], folder: Path) -> Outcome:
    """The image notebook: LoRA on attention, `modules_to_save=["classifier"]`, labels named to the trainer."""
    set_seed(0)
    options = {"label2id": LABEL2ID, "id2label": ID2LABEL, "ignore_mismatched_sizes": True}
    model = names.image.from_pretrained(models["image"], **options)
    config = peft.LoraConfig(
        r=16,
        lora_alpha=16,
        target_modules=["q_proj", "v_proj"] if RENAMES_VIT else ["query", "value"],
        lora_dropout=0.1,
        bias="none",
        modules_to_save=["classifier"],
    )
    lora = peft.get_peft_model(model, config)
    args = TrainingArguments(
        str(folder / "out"),
        remove_unused_columns=False,
        eval_strategy="epoch",
        save_strategy="epoch",
        learning_rate=5e-3,
        per_device_train_batch_size=24,
        per_device_eval_batch_size=40,
        num_train_epochs=4,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        label_names=["labels"],
        **PLAIN,
    )

    def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        pixels = torch.stack([torch.tensor(np.array(row["pixel_values"], np.float32)) for row in rows])
        return {"pixel_values": pixels, "labels": torch.tensor([row["labels"] for row in rows])}

    trainer = names.trainer(
        lora,
        args,
        train_dataset=IMAGES,
        eval_dataset=IMAGES_TEST,
        processing_class=AutoImageProcessor.from_pretrained(models["image"]),
        compute_metrics=compute_metrics,
        data_collator=collate,
    )
    trainer.train()
    found = trainer.predict(IMAGES_TEST)
    lora.save_pretrained(folder / "adapter")
    found_again = peft.PeftModel.from_pretrained(
        names.image.from_pretrained(models["image"], **options), folder / "adapter"
    )
    reloaded, labels = logits_of(found_again, [collate(list(IMAGES_TEST))])
    return Outcome(hits(torch.tensor(found.predictions), labels), torch.tensor(found.predictions), reloaded)


# -- transformers: course and task guides -----------------------------------------------------------------------------


def course_trainer(names: Names, models: dict[str, str], folder: Path) -> Outcome:
    """The course's chapter on fine-tuning: a folder for the arguments, data, a tokenizer, and a metric."""
    set_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(models["text"])
    model = names.text.from_pretrained(models["text"], num_labels=2)
    trainer = names.trainer(
        model,
        TrainingArguments(str(folder), eval_strategy="epoch", num_train_epochs=3, learning_rate=5e-3, **PLAIN),
        train_dataset=PAIR,
        eval_dataset=PAIR_TEST,
        data_collator=DataCollatorWithPadding(tokenizer=tokenizer),
        processing_class=tokenizer,
        compute_metrics=compute_metrics,
    )
    trainer.train()
    predictions = trainer.predict(PAIR_TEST)
    assert predictions.predictions.shape == (32, 2)
    trainer.save_model()
    reloaded, labels = logits_of(names.text.from_pretrained(folder), loaders(models["text"])[1])
    return Outcome(
        hits(torch.tensor(predictions.predictions), labels), torch.tensor(predictions.predictions), reloaded
    )


def course_loop(names: Names, models: dict[str, str], folder: Path) -> Outcome:
    """The course's loop without a trainer and without accelerate, on batches that it moves by itself."""
    set_seed(0)
    train, test = loaders(models["text"])
    model = names.text.from_pretrained(models["text"], num_labels=2)
    assert model(**next(iter(train))).logits.shape == (16, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=5 * len(train))
    device = torch.device("cpu")
    model.to(device)
    model.train()
    for _ in range(5):
        for rows in train:
            loss = model(**{name: value.to(device) for name, value in rows.items()}).loss
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    trained, labels = logits_of(model, test)
    model.save_pretrained(folder)
    return Outcome(hits(trained, labels), trained, logits_of(names.text.from_pretrained(folder), test)[0])


def image_guide(names: Names, models: dict[str, str], folder: Path) -> Outcome:
    """The image guide: transforms on access, ids as strings, the best model, and a pipeline at the end."""
    set_seed(0)
    processor = AutoImageProcessor.from_pretrained(models["image"])

    def transforms(rows: dict[str, Any]) -> dict[str, Any]:
        rows["pixel_values"] = [torch.tensor(np.array(image, np.float32)) for image in rows["image"]]
        del rows["image"]
        return rows

    train, test = (
        rows.rename_columns({"pixel_values": "image", "labels": "label"}).with_transform(transforms)
        for rows in (IMAGES, IMAGES_TEST)
    )
    model = names.image.from_pretrained(
        models["image"],
        num_labels=len(NAMES),
        id2label={str(index): name for index, name in ID2LABEL.items()},
        label2id={name: str(index) for name, index in LABEL2ID.items()},
    )
    args = TrainingArguments(
        output_dir=str(folder),
        remove_unused_columns=False,
        eval_strategy="epoch",
        save_strategy="epoch",
        learning_rate=2e-3,
        per_device_train_batch_size=12,
        gradient_accumulation_steps=2,
        per_device_eval_batch_size=40,
        num_train_epochs=4,
        warmup_steps=2,
        logging_steps=10,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        **PLAIN,
    )
    trainer = names.trainer(
        model=model,
        args=args,
        data_collator=DefaultDataCollator(),
        train_dataset=train,
        eval_dataset=test,
        processing_class=processor,
        compute_metrics=compute_metrics,
    )
    trainer.train()
    found = trainer.predict(test)
    trainer.save_model()
    batch = DefaultDataCollator()(list(test))
    reloaded, labels = logits_of(names.image.from_pretrained(folder), [batch])
    return Outcome(hits(torch.tensor(found.predictions), labels), torch.tensor(found.predictions), reloaded)


def audio_guide(names: Names, models: dict[str, str], folder: Path) -> Outcome:
    """The audio guide: `Audio` columns through a feature extractor, and a pipeline on a waveform at the end."""
    set_seed(0)
    extractor = Wav2Vec2FeatureExtractor.from_pretrained(models["audio"])

    def preprocess(rows: dict[str, Any]) -> Any:
        return extractor(rows["wave"], sampling_rate=extractor.sampling_rate, max_length=16000, truncation=True)

    train, test = (
        rows.rename_columns({"input_values": "wave", "labels": "label"}).map(
            preprocess, remove_columns="wave", batched=True
        )
        for rows in (SOUNDS, SOUNDS_TEST)
    )
    model = names.audio.from_pretrained(
        models["audio"], num_labels=len(NAMES), label2id=LABEL2ID, id2label={str(k): v for k, v in ID2LABEL.items()}
    )
    args = TrainingArguments(
        output_dir=str(folder),
        eval_strategy="epoch",
        save_strategy="epoch",
        learning_rate=3e-3,
        per_device_train_batch_size=12,
        per_device_eval_batch_size=40,
        num_train_epochs=4,
        warmup_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        **PLAIN,
    )
    trainer = names.trainer(
        model=model,
        args=args,
        train_dataset=train,
        eval_dataset=test,
        processing_class=extractor,
        compute_metrics=compute_metrics,
    )
    trainer.train()
    found = trainer.predict(test)
    trainer.save_model()
    answer = pipeline("audio-classification", model=str(folder))(np.array(SOUNDS_TEST[0]["input_values"], np.float32))
    assert {row["label"] for row in answer} == set(NAMES)
    batch = DefaultDataCollator()(list(test))
    reloaded, labels = logits_of(names.audio.from_pretrained(folder), [batch])
    return Outcome(hits(torch.tensor(found.predictions), labels), torch.tensor(found.predictions), reloaded)


def search_guide(names: Names, models: dict[str, str], folder: Path) -> Outcome:
    """The guide to searches: `model_init`, a space of rates and batch sizes, and the best run trained anew."""
    set_seed(0)

    def model_init(trial: Any) -> Any:
        return names.text.from_pretrained(models["text"], num_labels=2, cache_dir=None, token=None, revision="main")

    def space(trial: Any) -> dict[str, Any]:
        return {
            "learning_rate": trial.suggest_float("learning_rate", 4e-3, 8e-3, log=True),
            "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [8, 16]),
        }

    trainer = names.trainer(
        model=None,
        args=TrainingArguments(str(folder), eval_strategy="epoch", num_train_epochs=2, **PLAIN),
        train_dataset=PAIR,
        eval_dataset=PAIR_TEST,
        compute_metrics=compute_metrics,
        processing_class=AutoTokenizer.from_pretrained(models["text"]),
        model_init=model_init,
    )
    best = trainer.hyperparameter_search(
        direction="maximize",
        backend="optuna",
        hp_space=space,
        n_trials=2,
        compute_objective=lambda metrics: metrics["eval_accuracy"],
    )
    for name, value in best.hyperparameters.items():
        setattr(trainer.args, name, value)
    trainer.args.num_train_epochs = 4
    trainer.train()
    found = trainer.predict(PAIR_TEST)
    trainer.save_model(str(folder / "best"))
    reloaded, labels = logits_of(names.text.from_pretrained(folder / "best"), loaders(models["text"])[1])
    return Outcome(hits(torch.tensor(found.predictions), labels), torch.tensor(found.predictions), reloaded)


def distillation_guide(names: Names, models: dict[str, str], folder: Path) -> Outcome:
    """Teacher and student are both of the Auto class; the logits of both are divided by a temperature."""

    class Distillation(names.trainer):  # type: ignore[name-defined, misc]
        def __init__(
            self, teacher_model: Any = None, student_model: Any = None, temperature: float = 5, **kwargs: Any
        ) -> None:
            super().__init__(model=student_model, **kwargs)
            self.teacher, self.student = teacher_model, student_model
            self.teacher.eval()
            self.temperature, self.lambda_param = temperature, 0.5

        def compute_loss(self, student: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            student_output = self.student(**inputs)
            with torch.no_grad():
                teacher_output = self.teacher(**inputs)
            distance = nn.KLDivLoss(reduction="batchmean")(
                F.log_softmax(student_output.logits / self.temperature, dim=-1),
                F.softmax(teacher_output.logits / self.temperature, dim=-1),
            ) * (self.temperature**2)
            loss = (1.0 - self.lambda_param) * student_output.loss + self.lambda_param * distance
            return (loss, student_output) if return_outputs else loss

    set_seed(0)
    options = {"learning_rate": 1e-2, "max_steps": 24, **PLAIN}
    config = tiny_config("resnet", num_labels=len(NAMES), id2label=ID2LABEL, label2id=LABEL2ID)
    teacher = names.image.from_config(copy.deepcopy(config))
    names.trainer(teacher, TrainingArguments(str(folder / "teacher"), **options), train_dataset=IMAGES).train()
    trainer = Distillation(
        student_model=names.image.from_config(config),
        teacher_model=teacher,
        args=TrainingArguments(str(folder / "student"), eval_strategy="steps", eval_steps=12, **options),
        train_dataset=IMAGES,
        eval_dataset=IMAGES_TEST,
        data_collator=DefaultDataCollator(),
        compute_metrics=compute_metrics,
    )
    trainer.train()
    found = trainer.predict(IMAGES_TEST)
    trainer.save_model(str(folder / "student"))
    batch = DefaultDataCollator()(list(IMAGES_TEST))
    reloaded, labels = logits_of(names.image.from_pretrained(folder / "student"), [batch])
    return Outcome(hits(torch.tensor(found.predictions), labels), torch.tensor(found.predictions), reloaded)


RECIPES: dict[str, Callable[[Names, dict[str, str], Path], Outcome]] = {
    recipe.__name__: recipe
    for recipe in (
        nlp_example,
        gradient_accumulation,
        automatic_gradient_accumulation,
        checkpointing,
        early_stopping,
        local_sgd,
        profiler,
        schedule_free,
        tracking,
        ddp_comm_hook,
        peft_images,
        course_trainer,
        course_loop,
        image_guide,
        audio_guide,
        search_guide,
        distillation_guide,
    )
}
for _kind in ADAPTERS:
    RECIPES[_kind] = lambda *given, kind=_kind: peft_notebook(kind, *given)
