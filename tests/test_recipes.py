"""Recipes of public guides, notebooks and examples, with the two names changed and nothing else.

Those of recipes.py run with the stock names too; the others are idioms on which the two sides differ.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from recipes import NAMES_OF, PAIR, PAIR_TEST, RECIPES, backbones, loaders
from releases import STOCK_TAKES_PREFIXES
from swap_data import NAMES, STRING_LABELS, rows_for
from tiny_models import tiny_config
from torch import nn
from torch.nn import functional as F
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
    VideoMAEConfig,
    Wav2Vec2FeatureExtractor,
    pipeline,
    set_seed,
)

from hf_lwal import AutoModelForLwALClassification, LwALForSequenceClassification, LwALTrainer

MODEST = {"ia3", "prompt_tuning", "p_tuning", "c3a", "vera", "peft_images"}
"""Adapters that are too small to learn these rows in 30 steps with either names."""
SLOW = {"automatic_gradient_accumulation", "search_guide"}
STOCK_FAILS = set() if STOCK_TAKES_PREFIXES else {"prefix_tuning"}
"""transformers' classifiers have stopped to name ``past_key_values``, which PEFT asks for; the backbones take it."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folder of a text, an image and a sound model without a head."""
    return backbones(tmp_path_factory.mktemp("backbones"))


@pytest.fixture(scope="module")
def bert(models):
    """Folder of a backbone without a classifier's head, with its tokenizer."""
    return models["text"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in RECIPES]
)
def test_a_recipe_does_with_our_names_what_it_does_with_the_stock_ones(models, tmp_path, name):
    """It ended in a TypeError, stayed at chance, or came back from its folder as another model."""
    for kind in NAMES_OF:
        (tmp_path / kind).mkdir()
    ours = RECIPES[name](NAMES_OF["lwal"], models, tmp_path / "lwal")
    assert torch.allclose(ours.reloaded, ours.trained, rtol=1e-5, atol=1e-4)
    assert ours.accuracy > (0.75 if name in MODEST else 0.9)
    if name in STOCK_FAILS:
        with pytest.raises(ValueError, match="past key values"):
            RECIPES[name](NAMES_OF["stock"], models, tmp_path / "stock")
        return
    stock = RECIPES[name](NAMES_OF["stock"], models, tmp_path / "stock")
    assert stock.trained.shape == ours.trained.shape
    assert ours.accuracy > stock.accuracy - 0.1


def test_videos_are_refused_in_a_sentence(tmp_path):
    """The video guide's model has no place here; an error from inside would not say so."""
    folder = tmp_path / "video"
    VideoMAEConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4
    ).save_pretrained(folder)
    with pytest.raises(ValueError, match="no text, image or audio classifier for VideoMAEConfig"):
        AutoModelForLwALClassification.from_pretrained(folder, num_labels=2)


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


def test_distillation_guide_with_a_stock_student(tmp_path):
    """A stock student stays one, since its loss is not ours: as many logits as its teacher's label table has."""
    set_seed(0)
    data, test = separable_images(4, 96, noise=0.1), separable_images(4, 32, seed=1, noise=0.1)
    config = tiny_config("resnet", num_labels=4)
    teacher = AutoModelForLwALClassification.from_config(config)
    options = {"report_to": "none", "use_cpu": True, "learning_rate": 1e-2, "max_steps": 24}
    LwALTrainer(teacher, TrainingArguments(str(tmp_path / "t"), **options), train_dataset=data).train()
    assert isinstance(config, ResNetConfig)
    pupil = ResNetForImageClassification(config)
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
