"""What a training step costs, counted rather than timed: passes, waits for the device, bytes sent, memory."""

import gc
import sys
import weakref
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import tiny_config
from torch.utils._python_dispatch import TorchDispatchMode
from trajectory import arguments, build, differences, rows_for, train
from transformers import AutoModelForSequenceClassification, TrainerCallback, set_seed
from transformers.trainer_pt_utils import EvalLoopContainer

from hf_lwal import LwALTrainer
from hf_lwal.modeling import algorithm, label_tracking, step_sums
from hf_lwal.modeling.blockwise_loss import blockwise_cross_entropy
from hf_lwal.modeling.functional import cross_entropy
from hf_lwal.modeling.label_table import LabelTable
from hf_lwal.modeling.step_sums import StepSums, counted_rows
from hf_lwal.objectives.lwal import LwAL
from hf_lwal.training.label_log import LabelLog
from hf_lwal.training.step_rows import StepRows

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from communication import measure

MANY = 20_000
BOUND = 1e-5
METHODS = {"default": {}, "paper": {"lwal_preset": "paper"}}


class OnSteps(TrainerCallback):
    """Runs steps 3 to 5 of a training in a context."""

    def __init__(self, context):
        self.context = context

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 2:
            self.context.__enter__()

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 5:
            self.context.__exit__(None, None, None)


def trained_in(context, folder, num_labels=5, rows=8, method="default", **options):
    """Train a tiny BERT for six steps, three of them in a context."""
    set_seed(0)
    config = tiny_config("bert", num_labels=num_labels)
    data = rows_for("bert", 48)
    options = {"max_steps": 6, "logging_strategy": "no", **METHODS[method], **options}
    args = arguments(folder, per_device_train_batch_size=rows, **options)
    trainer = LwALTrainer(AutoModelForSequenceClassification.from_config(config), args, train_dataset=data)
    trainer.add_callback(OnSteps(context))
    trainer.train()
    return trainer


class Waits(TorchDispatchMode):
    """Notes operations for which the host waits for a GPU, but for those that are done on a CPU alone."""

    OPERATIONS = ("_local_scalar_dense", "nonzero", "equal", "_unique2", "unique_consecutive", "masked_select")
    CPU_ALONE = ("class_ids", "_nothing_to_mask")
    """Functions of the package that look at values where ``is_cpu`` holds."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        indexed = name == "index" and any(part is not None and part.dtype == torch.bool for part in args[1])
        if name in self.OPERATIONS or indexed:
            frame = sys._getframe(1)
            while "torch" in Path(frame.f_code.co_filename).parts:
                frame = frame.f_back
            if "hf_lwal" in frame.f_code.co_filename and frame.f_code.co_name not in self.CPU_ALONE:
                self.found.append((name, frame.f_code.co_name))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("num_labels", [5, 400])
def test_no_step_waits_for_the_device(tmp_path, method, num_labels):
    """A value that is read on the host stops a GPU in every step."""
    waits = Waits()
    trained_in(waits, tmp_path, num_labels, method=method)
    assert waits.found == []


def test_the_spy_sees_waits(tmp_path, monkeypatch):
    waits, true, spied = Waits(), label_tracking.LabelTracker.commit, {}
    code = "def reads(table):\n    return table.counts.sum().item()"
    exec(compile(code, "hf_lwal/spied.py", "exec"), spied)
    monkeypatch.setattr(
        label_tracking.LabelTracker, "commit", lambda self, on, sums: (spied["reads"](on.table), true(self, on, sums))
    )
    trained_in(waits, tmp_path)
    assert waits.found == [("_local_scalar_dense", "reads")] * 3


class Calls:
    """Counts calls of the encoder and its head, and how often the model is looked for inside its wrappers."""

    def __init__(self):
        self.counted, self.trainer, self.hook = Counter(), None, None

    def __enter__(self):
        encoder, accelerator = self.trainer.core_model.encoder, self.trainer.accelerator
        self.hook = encoder.register_forward_hook(lambda *_: self.counted.update(["encoder"]))
        head, unwrap = self.trainer.core_model.head_module, accelerator.unwrap_model
        run = head.forward  # a hook would be a reason to run it once more
        head.forward = lambda inputs: self.counted.update(["head"]) or run(inputs)
        accelerator.unwrap_model = lambda *args, **kwargs: self.counted.update(["unwrap"]) or unwrap(*args, **kwargs)

    def __exit__(self, *_):
        self.hook.remove()
        del self.trainer.core_model.head_module.forward


def test_a_step_runs_the_encoder_once_and_looks_at_no_tree(tmp_path, monkeypatch):
    """Finding the model inside its wrappers took longer than the loss; a second pass would double the step."""
    calls, true = Calls(), LwALTrainer.start_labels
    monkeypatch.setattr(
        LwALTrainer, "start_labels", lambda trainer: (setattr(calls, "trainer", trainer), true(trainer))
    )
    trained_in(calls, tmp_path)
    # The head sees the rows, the class means, and the difference that a refresh makes to them, less its bias.
    assert calls.counted == {"encoder": 3, "head": 3 * 4}


def test_what_is_remembered_of_a_model_keeps_none_alive(tmp_path):
    """A search makes a model per trial; two at a time may be more than fits."""
    trainer = LwALTrainer(build("bert"), arguments(tmp_path), train_dataset=rows_for("bert", 16))
    first = weakref.ref(trainer.core_model)
    assert trainer.core_model is trainer.model is first()
    assert "_unwrapped" not in trainer.__getstate__()
    trainer.model = trainer.model_wrapped = build("bert")
    trainer.callback_handler.model = None
    gc.collect()
    assert first() is None
    assert trainer.core_model is trainer.model


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes, in numbers."""

    def __init__(self):
        super().__init__()
        self.numbers, self.name = 0, ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for part in found if isinstance(found, (list, tuple)) else [found]:
            if isinstance(part, torch.Tensor) and part.untyped_storage().nbytes() // 4 > self.numbers:
                self.numbers, self.name = part.untyped_storage().nbytes() // 4, str(func)
        return found


def test_no_matrix_of_labels_by_labels_or_by_rows(tmp_path):
    """At 20,000 labels a step may make tensors of the size of the table, not of its square or of a batch's logits."""
    largest = Largest()
    trainer = trained_in(largest, tmp_path, MANY, rows=128)
    table = trainer.model.label_table
    assert largest.numbers <= 2 * MANY * (table.embedding_dim + 1), largest.name
    assert largest.numbers >= table.label_vectors.numel()
    assert 2 * MANY * (table.embedding_dim + 1) < 128 * MANY  # the logits of a batch would be seen


def test_very_many_logits_of_an_evaluation_are_not_kept(tmp_path, monkeypatch):
    """Those of 10,000 rows and 100,000 labels would be 4 GiB; accuracy and F1 need counts alone."""
    args = arguments(tmp_path, per_device_eval_batch_size=8)
    rows = rows_for("bert", 40, seed=1)
    trainer = LwALTrainer(build("bert"), args, train_dataset=rows, eval_dataset=rows)
    usual, predicted = trainer.evaluate(), trainer.predict(rows).predictions
    monkeypatch.setattr("hf_lwal.training.trainer.MOST_LOGITS", 40 * 5 - 1)
    kept = []
    add = EvalLoopContainer.add
    monkeypatch.setattr(EvalLoopContainer, "add", lambda self, part: (kept.append(part.shape), add(self, part)))
    counted = trainer.evaluate()
    assert {name: counted[name] for name in ("eval_accuracy", "eval_f1_macro", "eval_loss")} == pytest.approx(
        {name: usual[name] for name in ("eval_accuracy", "eval_f1_macro", "eval_loss")}
    )
    assert all(len(shape) < 2 for shape in kept)
    assert (trainer.predict(rows).predictions == predicted).all()  # whoever predicts wants them
    assert args.batch_eval_metrics is False


# -- the two ways lead to the same place ------------------------------------------------------------------------------


def recorded(folder, method, monkeypatch, **patches):
    set_seed(0)
    with monkeypatch.context() as patch:
        for module, name, value in patches.values():
            patch.setattr(module, name, value)
        args = arguments(folder, method, max_steps=6, per_device_train_batch_size=16, weight_decay=0.1)
        return train(build("bert", method), args, rows_for("bert", 96), rows_for("bert", 40, seed=1))[1].tensors


@pytest.mark.parametrize("method", ["default", "paper", "paper, repel 10"])
def test_training_without_logits_is_the_same_training(tmp_path, monkeypatch, method):
    usual = recorded(tmp_path / "a", method, monkeypatch)
    blocks = recorded(tmp_path / "b", method, monkeypatch, all=(label_tracking, "LEAST_LOGITS", 0))
    found = differences(usual, blocks)
    assert max(found.values()) <= BOUND
    assert any(value > 0 for value in found.values())  # another sum, so other last digits


def test_training_of_few_touched_classes_is_the_same_training(tmp_path, monkeypatch):
    usual = recorded(tmp_path / "a", "default", monkeypatch)
    seen = []
    monkeypatch.setattr(
        algorithm.RunningMeans,
        "merge",
        staticmethod(lambda *args, merge=algorithm.RunningMeans.merge: (seen.append(args[2]), merge(*args))),
    )
    rows = recorded(tmp_path / "b", "default", monkeypatch, all=(step_sums, "CLASSES_PER_ROW", 0))
    assert max(differences(usual, rows).values()) <= BOUND
    assert [step.classes is not None for step in seen] == [True] * 6


def test_logits_are_there_for_whoever_reads_them(tmp_path, monkeypatch):
    """A loss of the user's own, or a subclass that asks for outputs, must not find None."""
    monkeypatch.setattr(label_tracking, "LEAST_LOGITS", 0)
    found = []

    class Reads(LwALTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
            found.append(outputs.logits.shape)
            return (loss, outputs) if return_outputs else loss

    args = arguments(tmp_path / "a", max_steps=2, per_device_train_batch_size=8)
    Reads(build("bert"), args, train_dataset=rows_for("bert", 32)).train()
    assert found == [(8, 5)] * 2

    def own(outputs, labels, num_items_in_batch=None):
        found.append(outputs["logits"].shape)
        return cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch

    args = arguments(tmp_path / "b", max_steps=2, per_device_train_batch_size=8)
    LwALTrainer(build("bert"), args, train_dataset=rows_for("bert", 32), compute_loss_func=own).train()
    assert found == [(8, 5)] * 4

    class OwnLoss(LwAL):
        def loss(self, outputs, labels, context):
            found.append(outputs["logits"].shape)
            return super().loss(outputs, labels, context)

    args = arguments(tmp_path / "c", max_steps=2, per_device_train_batch_size=8)
    LwALTrainer(build("bert"), args, train_dataset=rows_for("bert", 32), objective=OwnLoss()).train()
    assert found == [(8, 5)] * 6


def test_a_first_step_that_is_skipped_decides_nothing(monkeypatch):
    """A scaler skips the first step in fp16: taken for one without rows, it would keep rows back for ever."""
    monkeypatch.setattr("hf_lwal.training.step_rows.largest_of_ranks", lambda number, device: number)
    table, log, generator = LabelTable(200, 4, 4), LabelLog(), torch.Generator().manual_seed(0)
    kept = StepRows(rows=8)
    values, labels = torch.randn(20, 4, generator=generator), torch.randint(200, (20,), generator=generator)
    for skipped in (True, False, False):
        kept.add(table, values, labels, log)
        sums = kept.take(table, skipped)
        expected = torch.zeros_like(table.pending_sums) if skipped else table.sums_of(values, labels)
        assert torch.allclose(sums.of_all(200), expected)
        assert sums.classes is None  # 20 rows where the arguments say 8: a loader of the user's own


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 1000),
    rows=st.integers(1, 9),
    num_labels=st.integers(2, 30),
    block=st.sampled_from([1, 17, 64, 10**6]),
    smoothing=st.sampled_from([0.0, 0.1]),
    weighted=st.booleans(),
    unseen=st.integers(0, 3),
    shifted=st.booleans(),
)
def test_blocks_give_the_loss_of_all_logits(seed, rows, num_labels, block, smoothing, weighted, unseen, shifted):
    """Loss and gradients, with classes that have no mean, a row on its label vector, and one without a label."""
    generator = torch.Generator().manual_seed(seed)
    table = LabelTable(num_labels, 6, 6)
    table.counts.fill_(3)
    table.counts[: min(unseen, num_labels - 1)] = 0
    table.log_scale_bias.data.fill_(0.4)
    embeddings = torch.randn(rows, 6, generator=generator)
    vectors = torch.randn(num_labels, 6, generator=generator)
    labels = torch.randint(min(unseen, num_labels - 1), num_labels, (rows,), generator=generator)
    embeddings[0] = vectors[labels[0]]
    labels[-1] = -100 if rows > 1 else labels[-1]
    weights = torch.rand(num_labels, generator=generator) if weighted else None
    shift = 3.0 * torch.rand(num_labels, generator=generator) if shifted else None
    upstream = torch.rand(rows, generator=generator)

    def gradients(losses):
        total = (losses * upstream).sum()
        return [losses, *torch.autograd.grad(total, (embeddings, vectors, table.log_scale_bias))]

    embeddings.requires_grad_()
    vectors.requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "hf_lwal.modeling.label_table.blockwise_cross_entropy",
            lambda *args, **kwargs: blockwise_cross_entropy(*args, **kwargs, block=block),
        )
        found = gradients(table.row_losses(embeddings, vectors, labels, smoothing, weights, shift))
    logits = table(embeddings, vectors, labels) + (0.0 if shift is None else shift)
    expected = gradients(cross_entropy(logits, labels, smoothing, weights, reduction="none"))
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=2e-5)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 1000), rows=st.integers(0, 12), num_labels=st.integers(1, 40))
def test_sums_of_touched_classes_are_those_of_all(seed, rows, num_labels):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, 4, generator=generator)
    labels = torch.randint(-1, num_labels, (rows,), generator=generator)
    labels[labels < 0] = -100
    values[labels == -100] = torch.nan
    touched = StepSums.of_rows(*counted_rows(values, labels))
    expected = torch.zeros(num_labels, 5)
    for value, label in zip(values, labels.tolist(), strict=True):
        if label >= 0:
            expected[label] += torch.cat([value, torch.ones(1)])
    assert torch.allclose(touched.of_all(num_labels), expected, atol=1e-5)


# -- what ranks send --------------------------------------------------------------------------------------------------


def test_bytes_that_ranks_send():
    """Sums of all classes at every step would double what ranks send at 10,000 labels."""
    rows, hidden, embedding_dim = 32, 32, 32
    few, many = measure([150, 10_000], rows, hidden)
    for num_labels, found, message in ((150, few, 0), (10_000, many, rows * (hidden + 2) * 4)):
        sums = 0 if message else num_labels * (hidden + 1) * 4
        heads = {False: (hidden + 1) * num_labels, True: (hidden + 1) * embedding_dim + num_labels * embedding_dim + 1}
        reduced = {ours: found[ours]["allreduce"][1] for ours in found}
        assert found[True].get("allgather", (0, 0))[1] == message
        # Besides gradients and sums: how many rows of the step have a label, and whether offset and scale were used.
        assert reduced[True] - 4 * heads[True] - sums - 8 - 2 * 4 == reduced[False] - 4 * heads[False]
        calls = {ours: found[ours]["allreduce"][0] for ours in found}
        assert calls[True] - calls[False] <= (1 if message else 2)
