"""Fold: the same label from a stock classifier, in memory, from its checkpoint, without hf_lwal, in ONNX."""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from releases import TRANSFORMERS, exports_onnx
from scipy.optimize import minimize_scalar
from test_modeling import ALL, LABELS, build, inputs_for, trained
from torch import nn
from toy import IMAGE_SIZE, separable_text
from transformers import AutoModelForImageClassification, AutoModelForSequenceClassification
from transformers.dynamic_module_utils import get_relative_import_files
from warm_python import warm_python

from hf_lwal.modeling import export, modeling_lwal
from hf_lwal.modeling.export import fold_with_report
from hf_lwal.modeling.linear_fold import fit_temperature, folded_linear
from hf_lwal.modeling.probes import on_device, random_batches
from hf_lwal.modeling.tasks import TASKS


@pytest.fixture(scope="module")
def models(tiny_config):
    """``models(name)``: a tiny model after six training steps, made once; do not change it."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = trained(build(tiny_config, name))
        return made[name]

    return get


def labels_of(model, inputs):
    with torch.no_grad():
        return model(**inputs).logits.argmax(dim=1)


def nearest(model, inputs):
    """Labels (B,) by brute force in float64 from the embeddings, and how clear the nearest is (B,)."""
    with torch.no_grad():
        embeddings = model(**inputs).embeddings.double()
    differences = embeddings[:, None, :] - model.label_table.label_vectors.double()[None]  # (B, C, D)
    distances = differences.square().sum(-1).sqrt().sort(dim=1)
    return distances.indices[:, 0], (distances.values[:, 1] - distances.values[:, 0]) / distances.values[:, 1]


@given(seed=st.integers(0, 10_000), labels=st.integers(2, 9), dim=st.integers(2, 7), offset=st.floats(-1e3, 1e3))
def test_the_formula_ranks_as_distances_do(seed, labels, dim, offset):
    """A dropped norm or a wrong centre ranks well when label vectors are equally long, and only then."""
    generator = np.random.default_rng(seed)
    weight, bias = generator.standard_normal((dim, 4)), generator.standard_normal(dim) + offset
    vectors = generator.standard_normal((labels, dim)) * generator.uniform(0.1, 3.0, (labels, 1)) + offset
    features = generator.standard_normal((50, 4))
    usable = generator.permutation(labels) >= labels // 3
    tensors = [torch.from_numpy(array) for array in (weight, bias, vectors, usable)]
    folded_weight, folded_bias = (tensor.numpy() for tensor in folded_linear(*tensors, temperature=0.37))
    logits = features @ folded_weight.T + folded_bias
    distances = np.linalg.norm((features @ weight.T + bias)[:, None] - vectors[None], axis=2)
    distances[:, ~usable] = np.inf
    best = np.sort(distances, axis=1)
    clear = best[:, 1] - best[:, 0] > 1e-8 * best[:, 0]
    assert clear.sum() > 25
    assert (logits.argmax(1) == distances.argmin(1))[clear].all()
    # Differences of logits are differences of squared distances, divided by the temperature.
    found, wanted = logits[:, usable], -np.square(distances[:, usable]) / 0.37
    centred = wanted - wanted.mean(1, keepdims=True)
    np.testing.assert_allclose(found, centred, atol=1e-7 * (1 + np.abs(wanted).max()))


def test_temperature_is_the_best_one():
    """Checked against scipy's minimiser, and against data that a temperature made."""
    generator = torch.Generator().manual_seed(0)
    values = 3.0 * torch.randn(200, 6, generator=generator, dtype=torch.float64)
    assert fit_temperature(values, (values / 0.2).log_softmax(1)) == pytest.approx(0.2, rel=1e-9)
    wanted = (-7.0 * (values.amax(1, keepdim=True) + 1.0 - values).sqrt()).log_softmax(1)

    def cross_entropy(log_temperature):
        return float(-(wanted.exp() * (values / np.exp(log_temperature)).log_softmax(1)).sum(1).mean())

    best = np.exp(minimize_scalar(cross_entropy, bounds=(-5, 5), method="bounded", options={"xatol": 1e-9}).x)
    assert fit_temperature(values, wanted) == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_every_architecture(models, name, tmp_path):
    """The head is in another place in every architecture, and what is saved must be what was folded."""
    model = models(name)
    before = copy.deepcopy(model.state_dict())
    random_state = torch.get_rng_state()
    stock, report = fold_with_report(model, [inputs_for(model, 16, 3)], add_bias=name == "llama")
    draws = name == "wav2vec2" and Version("5.23") > TRANSFORMERS  # for layers to drop, in evaluations too
    assert draws or torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert type(stock) is type(model.encoder)
    expected_rows = 64 if name == "resnet" else 1_000  # its configuration names no size: 224 x 224 are many numbers
    assert (report.random_rows, report.given_rows, report.num_labels) == (expected_rows, 16, LABELS)
    inputs = inputs_for(model, 200, 7)
    expected, clear = nearest(model, inputs)
    assert len(expected.unique()) > 1
    assert torch.equal(labels_of(stock, inputs)[clear > 1e-5], expected[clear > 1e-5])
    assert stock.get_submodule(model.config.head_name).weight.shape == (LABELS, model.head_module.in_features)
    assert stock.config.id2label == model.config.label_names
    if name == "llama":
        return
    stock.save_pretrained(tmp_path)
    loaded, info = TASKS[model.task].stock.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        assert torch.equal(loaded.eval()(**inputs).logits, stock(**inputs).logits)


BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "hf_lwal":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
try:
    import hf_lwal
except ModuleNotFoundError:
    print("blocked")
import torch, transformers
torch.set_num_threads(1)
for folder, kind in zip(sys.argv[1::2], sys.argv[2::2]):
    model = getattr(transformers, kind).from_pretrained(folder)
    assert type(model).__module__.startswith("transformers."), type(model)
    with torch.no_grad():
        torch.save(model(**torch.load(f"{folder}/inputs.pt")).logits, f"{folder}/logits.pt")
assert not any(name.partition(".")[0] == "hf_lwal" for name in sys.modules)
"""


def test_without_hf_lwal(models, tmp_path):
    """The point of folding: a server that has never heard of label vectors answers as the model does."""
    arguments = []
    for name, kind in (("bert", AutoModelForSequenceClassification), ("vit", AutoModelForImageClassification)):
        model = models(name)
        model.fold().save_pretrained(tmp_path / name)
        torch.save(inputs_for(model, 1_000, 5), tmp_path / name / "inputs.pt")
        arguments += [str(tmp_path / name), kind.__name__]
    done = subprocess.run([warm_python(), "-c", BLOCKED, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "blocked"
    for name in ("bert", "vit"):
        model, inputs = models(name), inputs_for(models(name), 1_000, 5)
        ours, theirs = labels_of(model, inputs), torch.load(tmp_path / name / "logits.pt").argmax(1)
        clear = nearest(model, inputs)[1] > 1e-5
        assert clear.sum() > 990
        assert torch.equal(ours[clear], theirs[clear])


@pytest.mark.parametrize("options", [{"space": "embeddings"}, {"offset": False}, {"learn_scale": False}])
def test_other_tables(tiny_config, options):
    """Label vectors come from other means or without an offset; what is folded is what predicts."""
    model = build(tiny_config, "roberta")
    for key, value in options.items():
        setattr(model.config, key, value)
    model.reset_label_table()
    stock = trained(model).fold()
    inputs = inputs_for(model, 100, 2)
    expected, clear = nearest(model, inputs)
    assert torch.equal(labels_of(stock, inputs)[clear > 1e-5], expected[clear > 1e-5])


def test_in_training_mode(tiny_config):
    """Dropout must not decide, and vectors that training has moved since the last evaluation are the ones to fold."""
    model = trained(build(tiny_config, "bert"))
    model.train()
    model(**inputs_for(model, 8), labels=torch.arange(8) % LABELS).loss.backward()
    with torch.no_grad():
        model.label_table.offset_bias.add_(torch.randn(LABELS, model.config.embedding_dim))
    stock = model.fold()
    assert model.training
    assert not stock.training
    inputs = inputs_for(model, 100, 1)
    assert torch.equal(labels_of(stock, inputs), labels_of(model.eval(), inputs))


def test_unseen_classes_never_win(tiny_config):
    """Their label vector is a placeholder; folded like the others it would win wherever it happens to lie near."""
    model = build(tiny_config, "bert")
    model.initialize_labels([{**inputs_for(model, 40), "labels": torch.arange(40) % (LABELS - 2)}], progress=False)
    model.eval()
    with torch.no_grad():
        model.label_table.label_vectors[-1] = model(**inputs_for(model, 1)).embeddings[0]
    stock, report = fold_with_report(model)
    head = stock.get_submodule(model.config.head_name)
    assert (head.weight[-2:] == 0).all()
    assert (head.bias[-2:] == -1e4).all()
    assert labels_of(stock, inputs_for(model, 200, 4)).max() < LABELS - 2
    assert report.differing == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(models, dtype):
    """The folded head keeps the precision of the model, which its checkpoint is loaded in."""
    model = copy.deepcopy(models("bert")).to(dtype)
    stock, _ = fold_with_report(model)
    assert {parameter.dtype for parameter in stock.parameters()} == {dtype}
    inputs = inputs_for(model, 200, 6)
    expected, clear = nearest(model, inputs)
    bound = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float64: 1e-5}[dtype]
    assert (clear > bound).sum() > 100
    assert torch.equal(labels_of(stock, inputs)[clear > bound], expected[clear > bound])


def test_probabilities_as_reported(models):
    """The report is what a user decides by: its figures must be those of the given rows."""
    model, inputs = models("bert"), inputs_for(models("bert"), 64, 9)
    stock, report = fold_with_report(model, [{**inputs, "labels": torch.zeros(64, dtype=torch.long), "text": "x"}])
    with torch.no_grad():
        moved = (model(**inputs).logits.softmax(1) - stock(**inputs).logits.softmax(1)).abs().amax(1)
    assert report.max_difference == pytest.approx(float(moved.max()), abs=1e-5)
    assert report.mean_difference == pytest.approx(float(moved.mean()), abs=1e-5)
    assert f"{report.max_difference:.3f} at most" in str(report)
    assert "1,064 rows (1,000 random, 64 given)" in str(report)
    assert 0.0 < report.mean_difference < 0.1
    assert f"temperature {report.temperature:.4g} fitted on the given rows" in str(report)


def test_adapters_are_merged_first(tiny_config):
    """Folded through an adapter, its copies of head and table would be read or missed by luck."""
    model = build(tiny_config, "bert")
    config = peft.LoraConfig(r=4, target_modules=["query"], modules_to_save=model.peft_modules_to_save())
    adapted = peft.get_peft_model(model, config)
    trained(adapted.base_model.model)
    adapted.eval()
    with pytest.raises(ValueError, match=r"merge it first, model = model.merge_and_unload\(\)"):
        adapted.fold()
    inputs = inputs_for(model, 200, 8)
    expected = labels_of(adapted, inputs)
    merged = adapted.merge_and_unload()
    stock = merged.fold()
    assert torch.equal(labels_of(merged, inputs), expected)
    assert torch.equal(labels_of(stock, inputs), expected)
    assert not any(type(module).__module__.startswith("peft") for module in stock.modules())


class OtherLinear(nn.Linear):
    """Stands for a quantised or sharded layer."""


def test_refusals(models, tiny_config):
    model = copy.deepcopy(models("bert"))
    with pytest.raises(ValueError, match="inputs holds no batch"):
        model.fold([])
    with torch.no_grad():
        model.label_table.label_vectors[0, 0] = torch.inf
    with pytest.raises(ValueError, match="label vectors are not finite"):
        model.fold()
    model = copy.deepcopy(models("bert"))
    model.encoder.classifier.__class__ = OtherLinear
    with pytest.raises(ValueError, match="is a OtherLinear, not a plain linear layer: load the model without quant"):
        model.fold()
    model = copy.deepcopy(models("bert"))
    model.encoder.bert.embeddings.to("meta")
    with pytest.raises(ValueError, match="Some weights are not in memory"):
        model.fold()
    model = copy.deepcopy(models("bert"))
    model.config.head_name = None
    with pytest.raises(ValueError, match="BertForSequenceClassification has no single linear head"):
        model.fold()


def test_logits_that_are_not_the_heads_outputs(models):
    """An architecture that scales or clips them would be folded into a classifier with other predictions."""
    model = copy.deepcopy(models("vit"))

    def clipped(module, args, output):
        output.logits = output.logits.clamp(-0.1, 0.1)
        return output

    model.encoder.register_forward_hook(clipped)
    with pytest.raises(ValueError, match="The logits of ViTForImageClassification are not what its head returns"):
        model.fold()


def test_a_wrong_fold_is_not_given_out(models, monkeypatch):
    """The comparison is the last line of defence: it must see a single label that moved."""
    right = export.folded_linear

    def wrong(*args, **kwargs):
        weight, bias = right(*args, **kwargs)
        return weight, bias + torch.tensor([0.0, 0.0, 0.0, 0.0, 5.0])

    monkeypatch.setattr(export, "folded_linear", wrong)
    with pytest.raises(ValueError, match=r"gives another label for \d+ of 1000 rows"):
        models("bert").fold()


def test_a_head_without_bias(models, tmp_path):
    """A bias that the stock class does not load again would vanish between saving and serving."""
    model = models("llama")
    with pytest.raises(ValueError, match="head of LlamaForSequenceClassification has no bias by design"):
        model.fold()
    stock = model.fold(add_bias=True)
    with pytest.raises(ValueError, match="a bias that its stock class cannot load again"):
        stock.save_pretrained(tmp_path)


def test_models_that_take_no_random_inputs(models):
    """Some inputs cannot be invented; then the given ones must do, and without any the user is asked for them."""
    model = copy.deepcopy(models("bert"))

    def only_short(module, args, kwargs):
        if kwargs["input_ids"].shape[1] > 9:
            raise RuntimeError("too long")

    model.encoder.register_forward_pre_hook(only_short, with_kwargs=True)
    with pytest.raises(ValueError, match=r"does not take random inputs \(too long\): pass inputs="):
        model.fold()
    _, report = fold_with_report(model, [inputs_for(model, 30)])
    assert (report.random_rows, report.given_rows) == (0, 30)


def test_columns_that_the_model_does_not_take(models):
    """A data loader brings more than the model takes, and numbers of another precision than the model has."""
    model = copy.deepcopy(models("vit")).to(torch.bfloat16)
    batch = {"pixel_values": torch.ones(2, 3, IMAGE_SIZE, IMAGE_SIZE), "attention_mask": torch.ones(2, 4), "name": "x"}
    ready = on_device({**batch, "labels": torch.zeros(2)}, model)
    assert list(ready) == ["pixel_values"]
    assert ready["pixel_values"].dtype == torch.bfloat16


def test_random_inputs(tiny_config):
    """Padding, a last token that encoder-decoder models look for, one row at a time without a padding token."""
    model = build(tiny_config, "bert")
    batches = random_batches(model, 20)
    assert [len(batch["input_ids"]) for batch in batches] == [8, 8, 4]
    ids, mask = batches[0]["input_ids"], batches[0]["attention_mask"]
    assert (mask == 0).any()
    assert ((ids == 3).sum(1) == 1).all()
    assert (ids[mask == 0] == 0).all()
    assert torch.equal(ids, random_batches(model, 20)[0]["input_ids"])
    model.config.pad_token_id = None
    assert {len(batch["input_ids"]) for batch in random_batches(model, 3)} == {1}
    model.config.eos_token_id = [3, 4]  # as GLM has it
    ids = torch.cat([batch["input_ids"] for batch in random_batches(model, 30)])
    assert not torch.isin(ids, torch.tensor([2, 3, 4])).any()
    assert {5, 63} <= set(ids.flatten().tolist())
    model.encoder.config.max_position_embeddings = 10
    assert random_batches(model, 1)[0]["input_ids"].shape == (1, 8)


# -- ONNX -----------------------------------------------------------------------------------------------------------


@exports_onnx
@pytest.mark.parametrize("name", ["bert", pytest.param("wav2vec2", marks=pytest.mark.slow)])
def test_onnx_answers_as_the_model_does(models, name, tmp_path):
    """A graph with fixed sizes works on the example and fails on the first request."""
    import onnxruntime

    from hf_lwal.modeling.onnx_export import export_onnx

    model = models(name)
    difference = export_onnx(model.fold(), tmp_path, inputs_for(model, 1))
    assert difference < 1e-5
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    assert [output.name for output in session.get_outputs()] == ["logits"]
    for rows, length in ((1, 9), (5, 9), (3, 14)):
        inputs = inputs_for(model, rows, length)
        if model.task == "text":
            inputs = {
                "input_ids": torch.randint(4, 60, (rows, length)),
                "attention_mask": torch.ones(rows, length).long(),
            }
            inputs["attention_mask"][0, -3:] = inputs["input_ids"][0, -3:] = 0
        expected, clear = nearest(model, inputs)
        found = session.run(["logits"], {entry.name: inputs[entry.name].numpy() for entry in session.get_inputs()})[0]
        assert (found.argmax(1) == expected.numpy())[clear.numpy() > 1e-4].all()


@exports_onnx
@pytest.mark.parametrize("space", ["features", "embeddings"])
def test_onnx_says_what_lies_outside_every_class(tiny_config, tmp_path, space):
    """A server without PyTorch must reject what `predict_with_rejection` does, of the labels that may win alone."""
    import onnxruntime

    from hf_lwal.modeling.onnx_export import export_onnx, rejection_of

    model = build(tiny_config, "bert")
    model.config.space = space
    model.reset_label_table()
    rows = separable_text(LABELS - 1, 60, 0).with_format("torch")[:]
    model.initialize_labels([rows], progress=False)
    assert rejection_of(model) is None
    model.eval().fit_rejection([separable_text(LABELS - 1, 60, 1).with_format("torch")[:]], progress=False)
    batch = {"input_ids": rows["input_ids"]}
    assert export_onnx(model.fold(), tmp_path, batch, rejection=rejection_of(model)) < 1e-4
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    assert [output.name for output in session.get_outputs()] == ["logits", "rejection_scores"]
    names = [entry.name for entry in session.get_inputs()]
    new = separable_text(LABELS, 9, 2).with_format("torch")[:]
    scores = session.run(["rejection_scores"], {name: new[name].numpy() for name in names})[0]
    with torch.no_grad():
        expected = model.rejection_scores(model.start_values({"input_ids": new["input_ids"]}))
    assert scores == pytest.approx(expected.numpy(), rel=1e-3, abs=1e-4)
    assert scores.shape == (9,)


@exports_onnx
def test_onnx_that_differs_is_refused(models, tmp_path, monkeypatch):
    from hf_lwal.modeling import fold_check, onnx_export

    monkeypatch.setattr(fold_check, "TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="onnxruntime gives other logits than PyTorch for ViTForImageClassification"):
        onnx_export.export_onnx(models("vit").fold(), tmp_path, inputs_for(models("vit"), 2))


@exports_onnx
def test_onnx_names_the_extra(monkeypatch):
    from hf_lwal.modeling import onnx_export

    monkeypatch.setattr(onnx_export, "NEEDED", ("onnx", "no_such_module"))
    with pytest.raises(ImportError, match=r'needs no_such_module: pip install "hf-lwal\[onnx\]"'):
        onnx_export.require_onnx()


def test_what_the_remote_code_needs_is_flat():
    """Code on the Hub is copied file by file from one folder: what `fold` imports late must be found there too."""
    files = {Path(path).name for path in get_relative_import_files(modeling_lwal.__file__)}
    assert {"export.py", "fold_check.py", "linear_fold.py", "probes.py"} <= files
