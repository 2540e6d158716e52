"""Files of strangers: neither code nor pickles beside a model run through any door, whatever standard input says."""

import json
import shutil

import pytest
import torch
from tiny_models import tiny_config
from toy import separable_text, word_tokenizer
from transformers import AutoModelForSequenceClassification

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.cli import main as cli
from hf_lwal.model_card import facts_of_folder
from hf_lwal.objectives.static_label import text_embeddings

ROWS = separable_text(4, 16)
DOORS = {
    "predict": ["predict", "{model}", "key1 word2"],
    "fold": ["fold", "{model}", "--output", "{tmp}/folded"],
    "hierarchy": ["hierarchy", "{model}", "--output", "{tmp}/hierarchy"],
    "card": ["card", "{model}"],
    "audit": ["audit", "{tmp}/rows.csv", "--model", "{model}"],
    "train": ["train", "--data", "{tmp}/rows.csv", "--model", "{model}", "--output-dir", "{tmp}/out"],
    "quickstart": ["quickstart", "--model", "{model}", "--output-dir", "{tmp}/quick", "--steps", "1"],
}


class Payload:
    """What runs a function of the attacker's choice when it is unpickled: it makes the file ``marker``."""

    def __init__(self, marker) -> None:
        self.marker = str(marker)

    def __reduce__(self):
        return open, (self.marker, "w")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A stock classifier, an LwAL model and a checkpoint of it, each with its tokenizer."""
    folder = tmp_path_factory.mktemp("untrusted")
    models = {
        "stock": AutoModelForSequenceClassification.from_config(tiny_config("bert", num_labels=4)),
        "lwal": AutoModelForLwALClassification.from_config(tiny_config("bert", num_labels=4)),
    }
    for name, model in models.items():
        model.save_pretrained(folder / name)
        word_tokenizer().save_pretrained(folder / name)
    trainer_in(folder / "run", models["lwal"], save_steps=1, max_steps=1).train()
    return folder


def trainer_in(folder, model, **options):
    defaults = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "steps"}
    return LwALTrainer(model, LwALTrainingArguments(str(folder), **(defaults | options)), train_dataset=ROWS)


def with_code(model, **values):
    """Put a module beside a model, which makes the file ``ran`` in the folder above when it is imported."""
    (model / "evil.py").write_text(
        f"open({str(model.parent / 'ran')!r}, 'w')\n"
        "from transformers import BertConfig, BertForSequenceClassification as Model\n"
        "from transformers import PreTrainedTokenizerFast as Tokens\n"
        "class Config(BertConfig):\n    model_type = 'odd'\n"
    )
    file = model / ("tokenizer_config.json" if "tokenizer_class" in values else "config.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


ODD = {
    "auto_map": {"AutoConfig": "evil.Config", "AutoModelForSequenceClassification": "evil.Model"},
    "model_type": "odd",
}


@pytest.mark.parametrize("door", DOORS)
def test_code_beside_a_model_never_runs(door, saved, tmp_path, monkeypatch, capsys):
    """transformers asks on standard input, where a command reads its rows: a line `y` among them ran the code."""
    monkeypatch.setattr("builtins.input", lambda *question: "y")
    model = tmp_path / "model"
    shutil.copytree(saved / "stock", model)
    with_code(model, **ODD)
    (tmp_path / "rows.csv").write_text(
        "text,label\n" + "".join(f"key{row % 2} {row},{row % 2}\n" for row in range(20))
    )
    assert cli.main([word.format(model=model, tmp=tmp_path) for word in DOORS[door]]) == 2
    assert not (tmp_path / "ran").exists()
    error = capsys.readouterr().err
    assert "contains custom code" in error
    assert door == "card" or "No command runs it" in error


@pytest.mark.parametrize("door", ["predict", "fold", "card"])
def test_code_beside_a_tokenizer_never_runs(door, saved, tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *question: "y")
    model = tmp_path / "model"
    shutil.copytree(saved / "lwal", model)
    with_code(model, auto_map={"AutoTokenizer": ["evil.Tokens", None]}, tokenizer_class="Tokens")
    cli.main([word.format(model=model, tmp=tmp_path) for word in DOORS[door]])
    assert not (tmp_path / "ran").exists()


def test_code_runs_in_no_helper_either(saved, tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *question: "y")
    shutil.copytree(saved / "stock", tmp_path / "model")
    with_code(tmp_path / "model", **ODD)
    for load in (facts_of_folder, lambda folder: text_embeddings(["a"], str(folder))):
        with pytest.raises(ValueError, match="custom code"):
            load(tmp_path / "model")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["lwal", "stock"])
@pytest.mark.parametrize("door", ["predict", "fold", "hierarchy", "card", "python"])
def test_pickled_weights_never_run(door, kind, saved, tmp_path, capsys):
    """``pytorch_model.bin`` is a pickle: read without `weights_only` it runs what a stranger wrote into it."""
    model, marker = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(saved / kind, model)
    (model / "model.safetensors").unlink()
    torch.save({"classifier.weight": Payload(marker)}, model / "pytorch_model.bin")
    if door == "python":
        with pytest.raises(OSError, match="could run any code"):
            AutoModelForLwALClassification.from_pretrained(model)
    else:
        assert cli.main([word.format(model=model, tmp=tmp_path) for word in DOORS[door]]) in (1, 2)
        error = capsys.readouterr().err.splitlines()[-1]
        assert "could run any code" in error or (kind == "stock" and door in ("fold", "hierarchy"))
        assert "weights_only" not in error, "an advice to run it all the same"
    assert not marker.exists()


@pytest.mark.parametrize("file", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "pytorch_model.bin"])
def test_a_pickle_in_a_checkpoint_never_runs(file, saved, tmp_path):
    """Resuming from a downloaded checkpoint reads five files of PyTorch's format."""
    checkpoint, marker = tmp_path / "checkpoint-1", tmp_path / "ran"
    shutil.copytree(saved / "run" / "checkpoint-1", checkpoint)
    (checkpoint / "checksums.json").unlink()  # which whoever puts a file there would change as well
    torch.save(Payload(marker), checkpoint / file)
    if file == "pytorch_model.bin":
        (checkpoint / "model.safetensors").unlink()
    model = AutoModelForLwALClassification.from_pretrained(saved / "lwal")
    with pytest.raises(ValueError, match=r"could not be loaded \(it holds Python objects .* could run any code\)"):
        trainer_in(tmp_path, model, max_steps=2).train(resume_from_checkpoint=str(checkpoint))
    assert not marker.exists()


def test_arguments_in_a_checkpoint_are_not_read(saved, tmp_path):
    checkpoint, marker = tmp_path / "checkpoint-1", tmp_path / "ran"
    shutil.copytree(saved / "run" / "checkpoint-1", checkpoint)
    torch.save(Payload(marker), checkpoint / "training_args.bin")
    trainer = trainer_in(tmp_path, AutoModelForLwALClassification.from_pretrained(saved / "lwal"), max_steps=2)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert trainer.state.global_step == 2
    assert not marker.exists()
