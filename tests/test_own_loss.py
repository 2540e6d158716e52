"""A trainer's subclass with a loss of its own: label vectors learn, micro-batches add up, students stay students."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from toy import separable_text
from transformers import AutoModelForSequenceClassification, set_seed

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.training.own_loss import ignores_items

LABELS = 4
TRAIN = separable_text(LABELS, 64, 0)


def stock(tiny_config, name="bert", seed=0):
    set_seed(seed)
    return AutoModelForSequenceClassification.from_config(tiny_config(name, num_labels=LABELS))


def lwal(tiny_config, name="bert"):
    set_seed(0)
    return AutoModelForLwALClassification.from_config(tiny_config(name, num_labels=LABELS))


def run(kind, model, folder, size=16, steps=1, **options):
    options = {"max_steps": 4, "learning_rate": 1e-3, "logging_steps": 1, "max_grad_norm": 1e9, **options}
    trainer = kind(
        model,
        LwALTrainingArguments(
            str(folder),
            per_device_train_batch_size=size,
            gradient_accumulation_steps=steps,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            **options,
        ),
        train_dataset=TRAIN,
        eval_dataset=TRAIN,
    )
    trainer.train()
    return trainer


def first_gradient(trainer):
    return next(entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry)


class PopsLabels(LwALTrainer):
    """As in recipes for class weights and focal losses."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs.logits, labels)
        return (loss, outputs) if return_outputs else loss


class KeepsLabels(LwALTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs["logits"], inputs["labels"])
        return (loss, outputs) if return_outputs else loss


class TwoMasks(LwALTrainer):
    """R-Drop: the rows pass twice."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs["labels"]
        first, second = model(**inputs), model(**inputs)
        loss = (F.cross_entropy(first.logits, labels) + F.cross_entropy(second.logits, labels)) / 2
        return (loss, first) if return_outputs else loss


class OfTheModel(LwALTrainer):
    """Takes the model's own loss and adds to it."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = outputs.loss + 0.0 * outputs.logits.square().mean()
        return (loss, outputs) if return_outputs else loss


class AddsToOurs(LwALTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        assert outputs.loss is loss
        return (loss, outputs) if return_outputs else loss


class DividesByItems(LwALTrainer):
    loss_is_scaled_for_ga = True

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize("kind", [PopsLabels, KeepsLabels, TwoMasks, OfTheModel, AddsToOurs, DividesByItems])
def test_class_means_move_once_per_row_and_micro_batches_add_up(tiny_config, tmp_path, kind):
    """Prevents class means that stay for good, rows counted twice, and a gradient multiplied by the micro-batches."""
    plain = run(LwALTrainer, lwal(tiny_config), tmp_path, max_steps=2)
    own = run(kind, lwal(tiny_config), tmp_path, size=8, steps=2, max_steps=2)
    table, expected = own.model.label_table, plain.model.label_table
    assert torch.equal(table.counts, expected.counts)
    torch.testing.assert_close(table.class_features, expected.class_features, rtol=1e-3, atol=1e-3)
    assert first_gradient(own) == pytest.approx(first_gradient(plain), rel=1e-3)


def test_how_micro_batches_are_weighted_is_said(tiny_config, tmp_path, caplog):
    """A loss that is already divided by the rows of the step must not shrink without a word."""
    run(PopsLabels, lwal(tiny_config), tmp_path, size=8, steps=2, max_steps=2)
    assert caplog.text.count("set loss_is_scaled_for_ga = True") == 1
    caplog.clear()
    run(DividesByItems, lwal(tiny_config), tmp_path, size=8, steps=2, max_steps=1)
    run(AddsToOurs, lwal(tiny_config), tmp_path, size=8, steps=2, max_steps=1)
    assert "loss_is_scaled_for_ga" not in caplog.text


def test_embeddings_that_are_not_seen_are_missed_aloud(tiny_config, tmp_path, caplog):
    class Doubled(LwALTrainer):
        """Two views of the batch in one pass: which row belongs to which label is not known."""

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs.pop("labels")
            outputs = model(**{name: torch.cat([value, value]) for name, value in inputs.items()})
            loss = F.cross_entropy(outputs.logits, torch.cat([labels, labels]))
            return (loss, outputs) if return_outputs else loss

    run(Doubled, lwal(tiny_config), tmp_path, max_steps=2)
    assert caplog.text.count("gets no embeddings of the batch's 16 rows") == 1


def test_the_paper_preset_needs_the_labels(tiny_config, tmp_path):
    """Its centroids are taken within the forward: without labels it would train against one-hot vectors."""
    run(KeepsLabels, lwal(tiny_config), tmp_path, lwal_preset="paper", max_steps=1)
    with pytest.raises(ValueError, match="calls the model without labels"):
        run(PopsLabels, lwal(tiny_config), tmp_path, lwal_preset="paper", max_steps=1)


class Distils(LwALTrainer):
    """The guide to knowledge distillation, nothing changed but the base class."""

    def __init__(self, teacher_model=None, student_model=None, temperature=None, lambda_param=None, *args, **kwargs):
        super().__init__(student_model, *args, **kwargs)
        self.teacher = teacher_model
        self.student = student_model
        self.loss_function = torch.nn.KLDivLoss(reduction="batchmean")
        self.teacher.eval()
        self.temperature = temperature
        self.lambda_param = lambda_param

    def compute_loss(self, student, inputs, return_outputs=False, num_items_in_batch=None):
        student_output = self.student(**inputs)
        with torch.no_grad():
            teacher_output = self.teacher(**inputs)
        soft_teacher = F.softmax(teacher_output.logits / self.temperature, dim=-1)
        soft_student = F.log_softmax(student_output.logits / self.temperature, dim=-1)
        distillation_loss = self.loss_function(soft_student, soft_teacher) * (self.temperature**2)
        student_target_loss = student_output.loss
        loss = (1.0 - self.lambda_param) * student_target_loss + self.lambda_param * distillation_loss
        return (loss, student_output) if return_outputs else loss


@pytest.mark.parametrize("student", [stock, lwal])
def test_distillation_keeps_its_student(tiny_config, tmp_path, caplog, student):
    """The student that the recipe holds must be the one that trains, with one logit per label: a stock student whose
    head was replaced gives logits of another width, or of the same width and another meaning."""
    teacher, pupil = stock(tiny_config, seed=1), student(tiny_config)

    def start(*args, **kwargs):
        return Distils(teacher, pupil, 5.0, 0.5, *args[1:], **kwargs)

    trainer = run(start, pupil, tmp_path)
    assert trainer.model is pupil
    assert trainer.evaluate()["eval_accuracy"] > 0.0
    assert pupil(input_ids=torch.tensor([[2, 5, 3]])).logits.shape == (1, LABELS)
    assert ("trained with it as it is" in caplog.text) == (student is stock)


def test_a_stock_model_is_wrapped_where_our_loss_or_a_method_is_asked_for(tiny_config, tmp_path):
    assert hasattr(run(AddsToOurs, stock(tiny_config), tmp_path, max_steps=1).model, "label_table")
    assert hasattr(
        run(PopsLabels, stock(tiny_config), tmp_path, max_steps=1, label_method="lwal").model, "label_table"
    )
    assert not hasattr(run(PopsLabels, stock(tiny_config), tmp_path, max_steps=1).model, "label_table")


def test_the_loss_of_a_step_is_computed_once(tiny_config, tmp_path, monkeypatch):
    """The repel loss adds sums over ranks: computed by model and trainer it doubled the time spent on that."""
    calls = []
    model = lwal(tiny_config)
    repel = model.repel
    monkeypatch.setattr(model, "repel", lambda *args: calls.append(1) or repel(*args))
    run(LwALTrainer, model, tmp_path, lwal_repel_weight=1.0)
    assert len(calls) == 4
    assert model.train()(input_ids=torch.tensor([[2, 5, 3]]), labels=torch.tensor([1])).loss is not None


@pytest.mark.parametrize(
    ("function", "ignores"),
    [
        (lambda outputs, labels, num_items_in_batch=None: F.cross_entropy(outputs.logits, labels), True),
        (lambda outputs, labels, num_items_in_batch: outputs.logits.sum() / num_items_in_batch, False),
        (lambda outputs, labels, num_items_in_batch: next(outputs / num_items_in_batch for _ in labels), False),
        (lambda outputs, labels, **kwargs: F.cross_entropy(outputs.logits, labels), False),
        (torch.nn.CrossEntropyLoss(), False),
        (None, False),
    ],
)
def test_a_mean_that_accumulation_multiplies_is_known(function, ignores):
    """transformers takes such a function for one that divides by the rows of the step, without looking."""
    assert ignores_items(function) is ignores


def test_a_mean_that_accumulation_multiplies_is_said(tiny_config, tmp_path, caplog):
    def start(model, args, **kwargs):
        return LwALTrainer(
            model, args, compute_loss_func=lambda o, y, num_items_in_batch=None: o.logits.sum(), **kwargs
        )

    run(start, lwal(tiny_config), tmp_path, size=8, steps=2, max_steps=1)
    assert caplog.text.count("does not use num_items_in_batch") == 1


class ForgetsTheRows(LwALTrainer):
    """As in scripts from before losses were told the number of rows."""

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        return super().compute_loss(model, inputs, return_outputs=return_outputs)


class OwnStep(LwALTrainer):
    """As in recipes for adversarial training."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        loss = self.compute_loss(model, self._prepare_inputs(inputs)) / self.args.gradient_accumulation_steps
        self.accelerator.backward(loss)
        return loss.detach()


@pytest.mark.parametrize("kind", [ForgetsTheRows, OwnStep])
def test_a_loss_that_is_not_told_the_number_of_rows_trains_as_ours(tiny_config, tmp_path, kind):
    """Taken for evaluation, its batches never reached the class means, and micro-batches added up to a multiple."""
    expected = run(LwALTrainer, lwal(tiny_config), tmp_path, size=4, steps=4)
    trainer = run(kind, lwal(tiny_config), tmp_path, size=4, steps=4)
    assert first_gradient(trainer) == pytest.approx(first_gradient(expected), rel=1e-3)
    assert trainer.model.label_table.counts.sum() == expected.model.label_table.counts.sum() > len(TRAIN)


class KeepsItsOwn(LwALTrainer):
    """Attributes as people give them to their trainers."""

    def __init__(self, *args, **kwargs):
        self.task, self.best, self.hub, self.parts = "intents", 0.0, None, []
        self.rows, self.best_model, self.start_pass, self.checkpointing = [], None, False, None
        super().__init__(*args, **kwargs)


def test_attributes_of_a_subclass_meet_none_of_ours(tiny_config, tmp_path):
    """What a trainer is made of must not be overwritten by a name that anyone would choose."""
    trainer = run(KeepsItsOwn, lwal(tiny_config), tmp_path)
    assert trainer.state.global_step == 4
    assert (trainer.task, trainer.best, trainer.hub, trainer.parts) == ("intents", 0.0, None, [])
    assert bool(trainer.model.label_table.seen.all())
