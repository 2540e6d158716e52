"""Whether a checkpoint belongs to the labels at hand: rows of another numbering would answer under wrong names."""

import json
import shutil

import pytest
from datasets import ClassLabel
from safetensors.torch import load_file, save_file
from tiny_models import tiny_config
from toy import separable_text
from transformers import AutoModelForSequenceClassification

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.training.checkpoints import check_labels_of_checkpoint, labels_of_checkpoint

NAMES = ["neg", "neu", "pos"]


def trainer_of(folder, names, steps, method="lwal"):
    config = tiny_config("bert", id2label=dict(enumerate(names)), label2id={name: i for i, name in enumerate(names)})
    return LwALTrainer(
        AutoModelForLwALClassification.from_config(config),
        args=LwALTrainingArguments(
            str(folder), max_steps=steps, save_steps=1, report_to="none", disable_tqdm=True, use_cpu=True,
            label_method=method,
        ),
        train_dataset=separable_text(3, 24),
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    trainer_of(folder, NAMES, 1).train()
    return folder


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["neu", "neg", "pos"], "0 is 'neg' there and 'neu' here.*align_labels_with_mapping"),
        (["pos", "neg", "neu"], "0 is 'neg' there and 'pos' here"),
        (["neg", "neu", "zzz"], "new: 'zzz'; gone: 'pos'"),
        (["neg", "neu", "pos", "odd"], "3 labels, not on these 4 \\(new: 'odd'\\)"),
        (["neg", "pos"], "gone: 'neu'.*remove_label"),
    ],
    ids=["swapped", "rotated", "renamed", "added", "removed"],
)
def test_a_checkpoint_of_other_labels_is_refused(folder, names, sentence):
    """Resumed under another numbering, a model answered 0.3 % of its rows rightly, and nothing said why."""
    with pytest.raises(ValueError, match=sentence):
        check_labels_of_checkpoint(folder / "checkpoint-1", dict(enumerate(names)))


def test_the_trainer_resumes_under_the_same_names_only(folder):
    with pytest.raises(ValueError, match="numbers the labels otherwise"):
        trainer_of(folder, NAMES[::-1], 2).train(resume_from_checkpoint=True)
    again = trainer_of(folder, NAMES, 2)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 2


def test_stock_classifiers_are_compared_too(tmp_path):
    trainer_of(tmp_path, NAMES, 1, "one_hot").train()
    with pytest.raises(ValueError, match="numbers the labels otherwise"):
        trainer_of(tmp_path, ["pos", "neu", "neg"], 2, "one_hot").train(resume_from_checkpoint=True)


def test_names_that_nobody_gave_and_adapters(tmp_path):
    """Made-up names must not stop a training; the table beside an adapter is the only place that has names."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"id2label": {str(i): f"LABEL_{i}" for i in range(12)}}))
    check_labels_of_checkpoint(tmp_path, [f"name {i}" for i in range(12)])
    with pytest.raises(ValueError, match="12 labels, not on these 3"):
        check_labels_of_checkpoint(tmp_path, NAMES)
    config.write_text("[]")
    assert labels_of_checkpoint(tmp_path) is None
    config.unlink()
    (tmp_path / "label_table.json").write_text(json.dumps({"labels": [{"name": name} for name in NAMES]}))
    check_labels_of_checkpoint(str(tmp_path), NAMES)
    with pytest.raises(ValueError, match="1 is 'neu' there and 'pos' here"):
        check_labels_of_checkpoint(tmp_path, ["neg", "pos", "neu"])


@pytest.mark.parametrize(
    "names", [["neu", "neg", "pos"], ["neg", "pos", "odd"], ["pos"], ["x", "neg", "y"]], ids="-".join
)
def test_data_that_numbers_its_labels_otherwise_is_refused(tmp_path, names):
    """The ids of such a data set are valid, so its rows were learned under wrong names."""
    trainer = trainer_of(tmp_path, NAMES, 1)
    rows = trainer.train_dataset
    ids = [label % len(names) for label in rows["labels"]]
    other = rows.remove_columns("labels").add_column("labels", ids, feature=ClassLabel(names=names))
    trainer.eval_dataset = {"test": other}
    with pytest.raises(ValueError, match=r"in the data and \d in the model.*align_labels_with_mapping"):
        trainer.train()
    trainer.eval_dataset, trainer.train_dataset = None, other
    with pytest.raises(ValueError, match=r"in the data and \d in the model"):
        trainer.train()


def test_weights_of_another_shape_and_a_table_in_part(folder, tmp_path):
    """Another embedding_dim ended in a traceback; of a missing tensor of the table only a warning spoke."""
    again = trainer_of(folder, NAMES, 2)
    again.model.resize_embedding_dim(8)
    with pytest.raises(ValueError, match=r"has the shape .* in this model: build the model as it was"):
        again.train(resume_from_checkpoint=True)
    weights = load_file(folder / "checkpoint-1" / "model.safetensors")
    for name in ("label_vectors", "pending_sums", "log_scale_bias"):
        copy = shutil.copytree(folder / "checkpoint-1", tmp_path / name)
        save_file(
            {key: value for key, value in weights.items() if key != f"classifier.{name}"},
            copy / "model.safetensors",
            {"format": "pt"},
        )
        (copy / "checksums.json").unlink()  # as in checkpoints of earlier versions
        with pytest.raises(ValueError, match=f"lacks classifier.{name}"):
            trainer_of(folder, NAMES, 2).train(resume_from_checkpoint=str(copy))


def test_a_checkpoint_with_a_label_table_is_not_resumed_as_a_stock_model(folder):
    """With as many labels as a configuration has by default, random weights trained on with the old optimizer."""
    config = tiny_config("bert", id2label=dict(enumerate(NAMES)), label2id={name: i for i, name in enumerate(NAMES)})
    args = LwALTrainingArguments(str(folder), max_steps=2, report_to="none", use_cpu=True, label_method="one_hot")
    stock = AutoModelForSequenceClassification.from_config(config)
    with pytest.raises(ValueError, match=r"checkpoint-1 holds a model with a label table.*label_method='lwal'"):
        LwALTrainer(stock, args, train_dataset=separable_text(3, 24)).train(str(folder / "checkpoint-1"))
