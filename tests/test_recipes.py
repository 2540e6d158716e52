"""Recipes of public guides, notebooks and examples, with the two names changed and nothing else.

Each test is the least that the recipe does with the model and the trainer, written anew: what accelerate's and PEFT's
text examples, transformers' task guides and its audio script touch must be there, train, and survive a save.
"""

from __future__ import annotations

import copy

import numpy as np
import peft
import pytest
import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from accelerate.utils import find_executable_batch_size
from datasets import Dataset
from swap_data import NAMES, STRING_LABELS, backbone, rows_for
from tiny_models import tiny_config
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from toy import separable_audio, separable_images, separable_text
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    DataCollatorWithPadding,
    DefaultDataCollator,
    ResNetConfig,
    ResNetForImageClassification,
    TrainingArguments,
    Wav2Vec2FeatureExtractor,
    get_linear_schedule_with_warmup,
    pipeline,
    set_seed,
)

from hf_lwal import AutoModelForLwALClassification, LwALForSequenceClassification, LwALTrainer

PAIR = separable_text(2, 96, seed=0)
PAIR_TEST = separable_text(2, 32, seed=1)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """Folder of a backbone without a classifier's head, with its tokenizer."""
    return str(backbone("text", tmp_path_factory.mktemp("bert")))


def loaders(folder, train=PAIR, test=PAIR_TEST, size=16):
    """Training and evaluation batches, padded by the tokenizer as the examples do it."""
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def collate(rows):
        return tokenizer.pad(rows, padding="longest", return_tensors="pt")

    return DataLoader(train, size, shuffle=True, collate_fn=collate), DataLoader(test, 32, collate_fn=collate)


def accuracy_of(accelerator, model, batches):
    model.eval()
    hits = []
    for batch in batches:
        with torch.no_grad():
            outputs = model(**batch)
        found, wanted = accelerator.gather_for_metrics((outputs.logits.argmax(dim=-1), batch["labels"]))
        hits.append(found == wanted)
    return float(torch.cat(hits).float().mean())


# -- accelerate ---------------------------------------------------------------------------------------------------


def accelerate_example(folder, accumulation=1, epochs=4, context=None, rate=5e-3):
    """The loop that all of accelerate's text examples share; returns the accelerator, the model and the batches."""
    set_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    train, test = loaders(folder)
    model = AutoModelForLwALClassification.from_pretrained(folder, return_dict=True)
    model = model.to(accelerator.device)
    optimizer = torch.optim.AdamW(params=model.parameters(), lr=rate)
    schedule = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=2, num_training_steps=len(train) * epochs)
    model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)
    for _ in range(epochs):
        model.train()
        with context(accelerator, model) if context else accelerator.autocast() as inner:
            for batch in train:
                with accelerator.accumulate(model):
                    accelerator.backward(model(**batch).loss)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                if context:
                    inner.step()
    return accelerator, model, test


def test_accelerate_nlp_example(bert):
    """Number of labels left out: two, as the stock class has it; `return_dict` belongs to the configuration."""
    accelerator, model, test = accelerate_example(bert)
    assert model.config.num_labels == 2
    assert accuracy_of(accelerator, model, test) > 0.9


def test_accelerate_gradient_accumulation(bert):
    """Twice the micro-batches per step must still learn."""
    accelerator, model, test = accelerate_example(bert, accumulation=2, epochs=6)
    assert accuracy_of(accelerator, model, test) > 0.9


def test_accelerate_local_sgd(bert):
    """`LocalSGD` averages parameters by itself; in one process it must change nothing."""
    accelerator, model, test = accelerate_example(
        bert, context=lambda accelerator, model: LocalSGD(accelerator, model, local_sgd_steps=2, enabled=True)
    )
    assert accuracy_of(accelerator, model, test) > 0.9


def test_accelerate_memory(bert):
    """`find_executable_batch_size` runs the inner function again with half the batch after an out-of-memory error."""
    sizes = []

    @find_executable_batch_size(starting_batch_size=32)
    def inner(batch_size):
        sizes.append(batch_size)
        model = AutoModelForLwALClassification.from_pretrained(bert, return_dict=True)
        train, _ = loaders(bert, size=batch_size)
        model.train()(**next(iter(train))).loss.backward()
        if batch_size > 8:
            raise RuntimeError("CUDA out of memory.")
        return model

    inner()
    assert sizes[0] == 32
    assert sizes[-1] <= 8


def test_accelerate_checkpointing(bert, tmp_path):
    """`save_state` and `load_state` bring back weights and label table."""
    accelerator, model, test = accelerate_example(bert, epochs=3)
    before = {name: tensor.clone() for name, tensor in accelerator.unwrap_model(model).state_dict().items()}
    accelerator.save_state(str(tmp_path / "epoch_0"))
    expected = accuracy_of(accelerator, model, test)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(1.0)
        model.label_table.label_vectors.zero_()
    accelerator.load_state(str(tmp_path / "epoch_0"))
    assert [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])] == []
    assert accuracy_of(accelerator, model, test) == expected


def test_accelerate_cross_validation(bert, caplog):
    """Logits of the models of all folds are stacked and averaged; a loop without a start from data is told of it.

    The line that it names is what a model from scratch needs to learn from 48 rows.
    """
    set_seed(0)
    votes = []
    for fold in range(2):
        rows = np.arange(len(PAIR))[np.arange(len(PAIR)) % 2 != fold]
        accelerator = Accelerator(cpu=True)
        train, test = loaders(bert, train=PAIR.select(rows.tolist()))
        model = AutoModelForLwALClassification.from_pretrained(bert, return_dict=True)
        if fold:
            model.train()
            model.initialize_labels(train, progress=False)
        model, optimizer, train, test = accelerator.prepare(
            model, torch.optim.AdamW(model.parameters(), lr=1e-3), train, test
        )
        caplog.clear()
        for _ in range(8):
            for batch in train:
                model.train()
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
        assert ("initialize_labels" in caplog.text) == (fold == 0)
        model.eval()
        with torch.no_grad():
            votes.append(torch.cat([accelerator.gather_for_metrics(model(**batch).logits) for batch in test]))
        accelerator.free_memory()
    wanted = torch.tensor(PAIR_TEST["labels"])
    assert torch.stack(votes, dim=0).sum(dim=0).div(2).shape == (len(PAIR_TEST), 2)
    assert (votes[1].argmax(dim=-1) == wanted).float().mean() > 0.8


# -- PEFT -----------------------------------------------------------------------------------------------------------

ADAPTERS = {
    "lora": lambda: peft.LoraConfig(task_type="SEQ_CLS", inference_mode=False, r=8, lora_alpha=16, lora_dropout=0.1),
    "ia3": lambda: peft.IA3Config(task_type="SEQ_CLS", inference_mode=False),
    "prompt": lambda: peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=4),
    "p-tuning": lambda: peft.PromptEncoderConfig(task_type="SEQ_CLS", num_virtual_tokens=4, encoder_hidden_size=16),
    "prefix": lambda: peft.PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=4),
}


@pytest.mark.parametrize("kind", ADAPTERS)
def test_peft_notebooks(bert, tmp_path, kind):
    """Sizes and target modules are found in the configuration, the loop trains, the adapter comes back whole."""
    set_seed(0)
    model = AutoModelForLwALClassification.from_pretrained(bert, return_dict=True)
    model = peft.get_peft_model(model, ADAPTERS[kind]())
    model.print_trainable_parameters()
    train, test = loaders(bert)
    optimizer = torch.optim.AdamW(params=model.parameters(), lr=1e-2)
    for _ in range(4):
        model.train()
        for batch in train:
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert loss.isfinite()
    model.eval()
    batch = next(iter(test))
    with torch.no_grad():
        expected = model(**batch).logits
    model.save_pretrained(tmp_path)
    inference = AutoModelForLwALClassification.from_pretrained(bert)
    inference = peft.PeftModel.from_pretrained(inference, tmp_path).eval()
    with torch.no_grad():
        found = inference(**batch).logits
    assert torch.allclose(found, expected, atol=1e-5)
    if kind == "lora":
        assert (found.argmax(dim=1) == batch["labels"]).float().mean() > 0.9


# -- transformers: task guides, course, scripts ---------------------------------------------------------------------


def test_text_guide(bert, tmp_path):
    """The text-classification guide: id2label and label2id, dynamic padding, best model, pipeline."""
    id2label, label2id = dict(enumerate(NAMES)), {name: index for index, name in enumerate(NAMES)}
    tokenizer = AutoTokenizer.from_pretrained(bert)
    model = AutoModelForLwALClassification.from_pretrained(
        bert, num_labels=len(NAMES), id2label=id2label, label2id=label2id
    )
    args = TrainingArguments(
        output_dir=str(tmp_path),
        learning_rate=5e-3,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=16,
        num_train_epochs=2,
        weight_decay=0.01,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        report_to="none",
        use_cpu=True,
    )
    trainer = LwALTrainer(
        model=model,
        args=args,
        train_dataset=rows_for("text", 160, 0),
        eval_dataset=rows_for("text", 40, 1),
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer=tokenizer),
        compute_metrics=lambda prediction: {
            "accuracy": float((np.argmax(prediction.predictions, axis=1) == prediction.label_ids).mean())
        },
    )
    trainer.train()
    trainer.save_model()
    classifier = pipeline("text-classification", model=str(tmp_path))
    assert classifier("key2 word1 key2 word3")[0]["label"] == "cat"


def test_course_without_metrics(bert, tmp_path):
    """The course's chapter on fine-tuning: nothing but a folder, data and a tokenizer."""
    model = AutoModelForLwALClassification.from_pretrained(bert, num_labels=2)
    trainer = LwALTrainer(
        model,
        TrainingArguments(str(tmp_path), report_to="none", use_cpu=True, num_train_epochs=3, learning_rate=5e-3),
        train_dataset=PAIR,
        eval_dataset=PAIR_TEST,
        processing_class=AutoTokenizer.from_pretrained(bert),
    )
    trainer.train()
    predictions = trainer.predict(PAIR_TEST)
    assert predictions.predictions.shape == (32, 2)
    assert (np.argmax(predictions.predictions, axis=-1) == predictions.label_ids).mean() > 0.9


def test_audio_script(tmp_path):
    """run_audio_classification.py freezes the feature encoder by the stock method, and transforms rows on access."""
    folder = tmp_path / "ears"
    set_seed(0)
    AutoModel.from_config(tiny_config("wav2vec2")).save_pretrained(folder)
    Wav2Vec2FeatureExtractor(return_attention_mask=False).save_pretrained(folder)
    config = AutoConfig.from_pretrained(
        folder, num_labels=len(NAMES), finetuning_task="audio-classification", **STRING_LABELS
    )
    model = AutoModelForLwALClassification.from_pretrained(
        folder, from_tf=False, config=config, ignore_mismatched_sizes=False
    )
    model.freeze_feature_encoder()
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen
    assert all("feature_extractor" in name for name in frozen)

    rows = separable_audio(len(NAMES), 80).rename_columns({"labels": "label", "input_values": "audio"})
    extractor = Wav2Vec2FeatureExtractor.from_pretrained(folder)

    def transform(batch):
        inputs = extractor(batch["audio"], sampling_rate=extractor.sampling_rate)
        return {"input_values": inputs["input_values"], "labels": list(batch["label"])}

    rows.set_transform(transform, output_all_columns=False)
    args = TrainingArguments(
        str(tmp_path / "out"), report_to="none", use_cpu=True, max_steps=4, remove_unused_columns=False
    )
    before = copy.deepcopy({name: parameter for name, parameter in model.named_parameters() if name in frozen})
    trainer = LwALTrainer(model=model, args=args, train_dataset=rows, eval_dataset=rows, processing_class=extractor)
    trainer.train()
    assert "eval_accuracy" in trainer.evaluate()
    after = dict(model.named_parameters())
    assert all(torch.equal(after[name], before[name]) for name in frozen)


def test_glue_script_from_an_lwal_checkpoint_of_another_task(bert, tmp_path):
    """run_glue.py asks for the configuration with its own number of labels, and loads the model by it."""
    first = AutoModelForLwALClassification.from_pretrained(bert, num_labels=3)
    first.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path, num_labels=4, finetuning_task="toy")
    assert config.num_labels == 4
    model = AutoModelForLwALClassification.from_pretrained(
        str(tmp_path), config=config, ignore_mismatched_sizes=True, from_tf=False
    )
    assert model.config.num_labels == 4
    args = TrainingArguments(str(tmp_path / "out"), report_to="none", use_cpu=True, max_steps=20, learning_rate=1e-3)
    data = separable_text(4, 96)
    trainer = LwALTrainer(model=model, args=args, train_dataset=data, eval_dataset=data)
    trainer.train()
    assert trainer.evaluate()["eval_accuracy"] > 0.9


class Distillation(LwALTrainer):
    """The distillation guide's trainer, which keeps the student that it was given."""

    def __init__(self, *args, teacher_model=None, student_model=None, **kwargs):
        super().__init__(student_model, *args, **kwargs)
        self.teacher, self.student = teacher_model.eval(), student_model

    def compute_loss(self, student, inputs, return_outputs=False, num_items_in_batch=None):
        temperature, share = 5, 0.5
        student_output = self.student(**inputs)
        with torch.no_grad():
            teacher_output = self.teacher(**inputs)
        distance = nn.KLDivLoss(reduction="batchmean")(
            F.log_softmax(student_output.logits / temperature, dim=-1),
            F.softmax(teacher_output.logits / temperature, dim=-1),
        ) * (temperature**2)
        loss = share * student_output.loss + (1.0 - share) * distance
        return (loss, student_output) if return_outputs else loss


@pytest.mark.parametrize("student", ["stock", "lwal"])
def test_distillation_guide(tmp_path, student):
    """Student and teacher have the same number of logits; a stock student stays one, since its loss is not ours."""
    set_seed(0)
    data, test = separable_images(4, 96, noise=0.1), separable_images(4, 32, seed=1, noise=0.1)
    config = tiny_config("resnet", num_labels=4)
    teacher = AutoModelForLwALClassification.from_config(config)
    options = {"report_to": "none", "use_cpu": True, "learning_rate": 1e-2, "max_steps": 24}
    LwALTrainer(teacher, TrainingArguments(str(tmp_path / "t"), **options), train_dataset=data).train()
    assert isinstance(config, ResNetConfig)
    pupil = (
        ResNetForImageClassification(config)
        if student == "stock"
        else AutoModelForLwALClassification.from_config(config)
    )
    trainer = Distillation(
        args=TrainingArguments(str(tmp_path / "s"), eval_strategy="steps", eval_steps=12, **options),
        student_model=pupil,
        teacher_model=teacher,
        train_dataset=data,
        eval_dataset=test,
        data_collator=DefaultDataCollator(),
        compute_metrics=lambda prediction: {
            "accuracy": float((np.argmax(prediction.predictions, axis=1) == prediction.label_ids).mean())
        },
    )
    before = copy.deepcopy(pupil.state_dict())
    trainer.train()
    assert trainer.predict(test).predictions.shape == (32, 4)
    trained = pupil.state_dict()
    assert any(not torch.equal(trained[name], before[name]) for name in before if "convolution.weight" in name)
    pupil.save_pretrained(tmp_path / "saved")
    loaded = type(pupil).from_pretrained(tmp_path / "saved").eval()
    batch = {"pixel_values": torch.tensor(np.array(test[:8]["pixel_values"], np.float32))}
    with torch.no_grad():
        assert torch.allclose(loaded(**batch).logits, pupil.eval()(**batch).logits, atol=1e-5)


def test_weighted_loss_recipe(bert, tmp_path):
    """The Trainer page's own example of a subclass: class weights in `compute_loss`."""

    class Weighted(LwALTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            weights = torch.tensor([1.0, 2.0], device=outputs.logits.device)
            loss = nn.CrossEntropyLoss(weight=weights)(outputs.logits.view(-1, self.model.config.num_labels), labels)
            return (loss, outputs) if return_outputs else loss

    model = AutoModelForLwALClassification.from_pretrained(bert, num_labels=2)
    args = TrainingArguments(str(tmp_path), report_to="none", use_cpu=True, max_steps=24, learning_rate=5e-3)
    trainer = Weighted(model=model, args=args, train_dataset=PAIR, eval_dataset=PAIR_TEST)
    trainer.train()
    assert isinstance(trainer.model, LwALForSequenceClassification)
    assert trainer.evaluate()["eval_accuracy"] > 0.9


def test_freezing_recipes(bert):
    """Idioms that address the stock module tree must leave the same parameters to train as on the stock model."""
    model = AutoModelForLwALClassification.from_pretrained(bert, num_labels=2)
    for parameter in model.base_model.parameters():
        parameter.requires_grad = False
    free = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert free
    assert not any(".bert." in f".{name}" for name in free)

    model = AutoModelForLwALClassification.from_pretrained(bert, num_labels=2)
    for parameter in model.bert.parameters():
        parameter.requires_grad = False
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == free

    model = AutoModelForLwALClassification.from_pretrained(bert, num_labels=2)
    for name, parameter in model.named_parameters():
        if "classifier" not in name:
            parameter.requires_grad = False
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == free


def test_stream_recipe(bert, tmp_path):
    """Streamed data sets, as the guide on streaming trains with them: `max_steps`, no length."""
    stream = Dataset.to_iterable_dataset(PAIR)
    model = AutoModelForLwALClassification.from_pretrained(bert, num_labels=2)
    args = TrainingArguments(str(tmp_path), report_to="none", use_cpu=True, max_steps=24, learning_rate=5e-3)
    trainer = LwALTrainer(model=model, args=args, train_dataset=stream, eval_dataset=PAIR_TEST)
    trainer.train()
    assert trainer.evaluate()["eval_accuracy"] > 0.9
