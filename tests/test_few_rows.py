"""Label vectors of few rows: what their number says about distances, where that is measured, and what keeps it."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from test_modeling import LABELS, build, inputs_for, trained
from tiny_models import tiny_config as config_of
from toy import separable_text, word_tokenizer
from trajectory import arguments

from hf_lwal import AutoModelForLwALClassification, LwALTrainer
from hf_lwal.functional import cross_entropy
from hf_lwal.modeling.functional import bias_of_few_rows
from hf_lwal.modeling.label_table import LabelTable


def table_of(num_labels=5, dim=6, seed=0, bias=True):
    generator = torch.Generator().manual_seed(seed)
    table = LabelTable(num_labels, dim, dim)
    table.label_vectors.copy_(torch.randn(num_labels, dim, generator=generator))
    table.counts.fill_(3)
    table.set_scale(1.7)
    if bias:
        table.distance_bias.copy_(torch.randn(num_labels, generator=generator))
    return table


def test_the_bias_is_what_the_mean_of_few_rows_adds():
    """The square distance from new rows to the mean of n others, on average over draws, by simulation."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.tensor([0.5, 1.0, 2.0])
    within = float(spread.square().sum())
    for rows in (1, 4, 16, 40):
        means = (torch.randn(20_000, rows, 3, generator=generator) * spread).mean(dim=1)
        new = torch.randn(20_000, 3, generator=generator) * spread
        excess = float((new - means).square().sum(dim=1).mean()) - within * (1.0 + 1.0 / 16)
        assert float(bias_of_few_rows(within, torch.tensor([rows]))) == pytest.approx(max(excess, 0.0), abs=0.12)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), smoothing=st.sampled_from([0.0, 0.1]))
def test_logits_and_losses_take_the_bias_off_the_square(seed, smoothing):
    """By the formula in float64; the loss over blocks of labels must agree, gradients too."""
    table = table_of(seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    rows = torch.randn(7, 6, generator=generator, requires_grad=True)
    labels = torch.randint(0, 5, (7,), generator=generator)
    squares = (rows.detach().double()[:, None] - table.label_vectors.double()[None]).square().sum(dim=2)
    expected = -1.7 * (squares - table.distance_bias.double() + table.distance_bias.max().double()).sqrt()
    found = table(rows, table.label_vectors.clone(), labels)
    assert torch.allclose(found.double(), expected, atol=1e-4)
    with torch.no_grad():
        assert torch.allclose(table(rows).double(), expected, atol=1e-4)
    whole = cross_entropy(found, labels, smoothing, reduction="none")
    blocks = table.row_losses(rows, table.label_vectors, labels, smoothing)
    assert torch.allclose(whole, blocks, atol=1e-5)
    one, other = (torch.autograd.grad(losses.sum(), rows)[0] for losses in (whole, blocks))
    assert torch.allclose(one, other, atol=1e-4)
    assert bool((one.norm(dim=1) <= 2 * 1.7 + 1e-4).all())  # a bare subtraction has no such bound near a label vector


def test_a_refresh_chooses_by_what_the_table_predicts():
    """Candidates for label vectors that are compared without the bias are judged as another table."""
    table = table_of(seed=4)
    generator = torch.Generator().manual_seed(5)
    rows, labels = torch.randn(200, 6, generator=generator), torch.randint(0, 5, (200,), generator=generator)
    with torch.no_grad():
        right = int((table(rows).argmax(dim=1) == labels).sum())
        assert table._nearest(table.label_vectors, rows, labels, None) == right
        table.distance_bias.zero_()
        table.without_bias = None
        assert int((table(rows).argmax(dim=1) == labels).sum()) != right


def test_equal_counts_change_no_bit():
    """A bias that all labels share must not cost digits, nor a coordinate."""
    table, plain = table_of(bias=False), table_of(bias=False)
    values, labels = torch.randn(40, 6, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 5
    for one in (table, plain):
        one.start(values, labels, None)
    table.favour_few_rows(values, labels, None)
    rows = torch.randn(9, 6, generator=torch.Generator().manual_seed(2))
    assert not table.distance_bias.any()
    assert torch.equal(table(rows), plain(rows))
    many = torch.cat([values] * 4)
    table.start(many, torch.arange(160) % 5, None)
    table.favour_few_rows(many, torch.arange(160) % 5, None)
    plain.start(many, torch.arange(160) % 5, None)
    assert not table.distance_bias.any()
    assert torch.equal(table(rows), plain(rows))


def test_a_start_from_unlike_numbers_of_rows(tiny_config):
    """Classes with fewer than 16 rows are favoured by the formula, others and names of labels are not."""
    model = build(tiny_config, "bert").eval()
    rows = separable_text(LABELS, 200, 0).with_format("torch")[:]
    numbers = [1, 2, 8, 16, 30]
    kept = torch.cat([(rows["labels"] == label).nonzero()[:number, 0] for label, number in enumerate(numbers)])
    model.initialize_labels([{name: column[kept] for name, column in rows.items()}], progress=False)
    table = model.label_table
    with torch.no_grad():
        embeddings = model(**{name: rows[name][kept] for name in rows}).embeddings.double()
    labels = rows["labels"][kept]
    means = torch.stack([embeddings[labels == label].mean(dim=0) for label in range(LABELS)])
    within = float((embeddings - means[labels]).square().sum()) / (len(labels) - LABELS)
    expected = within * (1.0 / torch.tensor(numbers) - 1.0 / 16).clamp(min=0.0)
    assert torch.allclose(table.distance_bias, expected.float(), rtol=1e-3)
    assert float(table.row_scatter[0]) == pytest.approx(within, rel=1e-3)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A model after `LwALTrainer.train`, and its rows."""
    torch.manual_seed(0)
    names = {index: f"key{index}" for index in range(LABELS)}
    labels = {"id2label": names, "label2id": {name: index for index, name in names.items()}}
    model = AutoModelForLwALClassification.from_config(config_of("bert", **labels))
    rows = separable_text(LABELS, 320, 0)
    args = arguments(tmp_path_factory.mktemp("out"), max_steps=30, learning_rate=2e-3)
    LwALTrainer(model, args, train_dataset=rows).train()
    return model.eval()


def test_training_ends_with_a_measure_of_how_rows_scatter(finished):
    """Of the model as it will be used, in evaluation mode: against all training rows, of which few were read."""
    table, rows = finished.label_table, separable_text(LABELS, 320, 0).with_format("torch")[:]
    with torch.no_grad():
        embeddings = finished(**rows).embeddings
    means = torch.stack([embeddings[rows["labels"] == label].mean(dim=0) for label in range(LABELS)])
    within = float((embeddings - means[rows["labels"]]).square().sum()) / (320 - LABELS)
    own = float((embeddings - table.label_vectors[rows["labels"]]).square().sum(dim=1).mean())
    assert table.row_scatter.tolist() == [pytest.approx(within, rel=0.35), pytest.approx(own, rel=0.35)]
    again = copy.deepcopy(finished)
    trained(again, 1)
    assert not again.label_table.row_scatter.any()


def test_an_added_label_is_as_near_to_its_rows_as_the_others_are(finished, tokenizer):
    """One example alone lies too far from its class, twenty of an untrained one too near against trained labels."""
    within, own = finished.label_table.row_scatter.tolist()
    biases = {}
    for number in (1, 4, 20):
        model = copy.deepcopy(finished)
        model.add_label("new", [f"key9 word{index} key9" for index in range(number)], tokenizer, count_name=False)
        biases[number] = float(model.label_table.distance_bias[-1])
        assert biases[number] == pytest.approx(within * (1 + 1 / number) - own, rel=1e-4, abs=1e-6)
        assert not model.label_table.distance_bias[:-1].any()
        model.remove_label("new")
        assert not model.label_table.distance_bias.any()
    assert biases[1] > biases[4] > biases[20]
    model = copy.deepcopy(finished)
    model.label_table.row_scatter.zero_()
    model.add_label("new", ["key9 key9"], tokenizer)
    assert not model.label_table.distance_bias.any()


def test_the_bias_stays_with_its_label(finished, tokenizer, tmp_path):
    """Through edits, a fold, saving, loading, lower precision, and a checkpoint that has none."""
    model = copy.deepcopy(finished)
    index = model.add_label("new", ["key9 key9"], tokenizer)
    model.label_table.distance_bias[index] = bias = 1.5 * float(model.label_table.distances().mean()) ** 2
    model.label_table.without_bias = None
    rows = {"input_ids": separable_text(12, 300, 5).with_format("torch")[:]["input_ids"]}
    with torch.no_grad():
        labels = model(**rows).logits.argmax(dim=1)
        plain = copy.deepcopy(model)
        plain.label_table.distance_bias.zero_()
        plain.label_table.without_bias = None
        assert not torch.equal(labels, plain(**rows).logits.argmax(dim=1))
        assert torch.equal(model.fold([rows])(**rows).logits.argmax(dim=1), labels)
    model.save_pretrained(tmp_path)
    again = AutoModelForLwALClassification.from_pretrained(tmp_path).eval()
    assert torch.equal(again.label_table.distance_bias, model.label_table.distance_bias)
    with torch.no_grad():
        assert torch.equal(again(**rows).logits, model(**rows).logits)
    assert again.to(torch.bfloat16).label_table.distance_bias.dtype == torch.float32
    names = list(model.config.label_names.values())
    model.align(names[::-1])
    assert model.label_table.distance_bias.tolist() == pytest.approx([bias] + [0.0] * LABELS)
    model.label_table.counts.fill_(10)
    model.merge_labels(["new", "key1"], "both")
    assert float(model.label_table.distance_bias[model.config.label2id["both"]]) == pytest.approx(bias / 2, rel=1e-5)
    weights = load_file(tmp_path / "model.safetensors")
    for name in ("row_scatter", "distance_bias", "rejection_edges"):
        del weights[f"classifier.{name}"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    older = AutoModelForLwALClassification.from_pretrained(tmp_path).label_table
    assert not any(part.any() for part in (older.row_scatter, older.distance_bias, older.rejection_edges))


def test_training_goes_on_with_the_bias(finished, tokenizer):
    """What the table says before a further training must be what the first step compares with."""
    model = copy.deepcopy(finished)
    model.add_label("new", ["key9 key9"], tokenizer)
    rows = inputs_for(model, 6)
    with torch.no_grad():
        before = model(**rows).logits
        model.label_tracking = "off"
        model.train()
        for layer in model.modules():
            layer.training = layer.training and not isinstance(layer, torch.nn.Dropout)
        assert torch.allclose(model(**rows).logits, before, atol=1e-4)


def test_a_name_counts_beside_few_examples(finished, caplog):
    """Only where the names of the other labels tell theirs apart; a description always; neither beside many."""
    words = word_tokenizer()
    caplog.set_level("INFO", "hf_lwal")
    counts = {}
    for case, keywords in {
        "auto": {},
        "off": {"count_name": False},
        "description": {"description": "key9 word1 key9"},
    }.items():
        model = copy.deepcopy(finished)
        model.add_label("key9", ["key9 word3", "word5 key9 word2"], words, **keywords)
        counts[case] = int(model.label_table.counts[-1])
    assert counts == {"auto": 3, "off": 2, "description": 3}
    assert "counts as one more example" in caplog.text
    many = copy.deepcopy(finished)
    many.add_label("key9", [f"key9 word{index}" for index in range(16)], words)
    assert int(many.label_table.counts[-1]) == 16
    shuffled = copy.deepcopy(finished)
    for index in range(LABELS):
        shuffled.rename_label(f"key{index}", f"word{index}")
    shuffled.add_label("word9", ["key9 word3"], words)
    assert int(shuffled.label_table.counts[-1]) == 1
    with pytest.raises(ValueError, match="read beside or in place of examples"):
        finished.add_label("key9", features=torch.zeros(1, 16), description="a new key")
    with pytest.raises(ValueError, match="a description that is not to count"):
        finished.add_label("key9", ["key9"], words, description="a new key", count_name=False)
