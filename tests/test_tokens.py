"""Tokens of the Hub: in no file that a training writes or pushes, and in no line that it prints."""

import copy
import logging
import pickle

import pytest
import torch
from test_training_stops import trainer_of
from transformers import Trainer, TrainingArguments

from hf_lwal import LwALTrainer
from hf_lwal.cli import main as cli
from hf_lwal.training.hub_pushes import Secret

TOKEN = "hf_secretsecretsecretsecretsecret00"
SAVES = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2}


def holders(folder):
    """Files that hold the token, as bytes in any form that pickle and JSON write."""
    forms = [TOKEN.encode(), TOKEN.encode("utf-16-le"), TOKEN.encode("utf-16-be")]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [str(path.relative_to(folder)) for path in files if any(form in path.read_bytes() for form in forms)]


@pytest.mark.parametrize("plain", [False, True])
def test_no_file_of_a_training_holds_a_token(plain, tmp_path, monkeypatch, caplog):
    """``training_args.bin`` held it, in every checkpoint and on the Hub after every push."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    caplog.set_level(logging.DEBUG, "hf_lwal")
    trainer = trainer_of(tmp_path, hub_token=TOKEN, **SAVES)
    if plain:
        options = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "hub_token": TOKEN, **SAVES}
        args = TrainingArguments(str(tmp_path), **options)
        trainer = LwALTrainer(trainer.model, args, train_dataset=trainer.train_dataset)
    trainer.train()
    trainer.args.hub_token = str(TOKEN)  # set by hand between two saves
    trainer.save_model(str(tmp_path / "saved"))
    trainer.create_model_card()
    assert (tmp_path / "saved" / "training_args.bin").exists()
    assert holders(tmp_path) == []
    assert TOKEN not in caplog.text
    assert trainer.args.hub_token == trainer.hub_token == TOKEN, "pushes still need it"
    stored = torch.load(tmp_path / "saved" / "training_args.bin", weights_only=False)
    assert stored.hub_token is None
    assert stored.max_steps == 2


def test_a_push_carries_no_token_and_is_made_with_it(tmp_path, monkeypatch):
    trainer = trainer_of(tmp_path, hub_token=TOKEN, **SAVES)
    used = []

    def pushed(self, folder):  # as transformers does: the arguments go beside the weights, then all is uploaded
        torch.save(self.args, tmp_path / "training_args.bin")
        used.append(self.args.hub_token)

    monkeypatch.setattr(Trainer, "_push_from_checkpoint", pushed)
    (tmp_path / "checkpoint-1").mkdir()
    trainer.hub_model_id = "me/model"
    trainer.push_in_progress = None
    monkeypatch.setattr(trainer._hub_pushes, "write_card", lambda: None)
    trainer._push_from_checkpoint(str(tmp_path / "checkpoint-1"))
    assert used == [TOKEN]
    assert holders(tmp_path) == []


def test_a_secret_is_the_token_everywhere_else():
    """Copies of arguments in the same process push as the original does."""
    secret = Secret(TOKEN)
    assert secret == TOKEN
    assert copy.deepcopy({"a": [secret]})["a"][0] == copy.copy(secret) == TOKEN
    assert [pickle.loads(pickle.dumps(secret, protocol)) for protocol in range(6)] == [None] * 6


def test_the_command_writes_and_prints_none(tmp_path, capfd):
    rows = [f"{word} {number},{word}" for number in range(12) for word in ("red", "green")]
    (tmp_path / "rows.csv").write_text("text,label\n" + "\n".join(rows))
    from test_writing import config_of, word_tokenizer
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_config(config_of("bert", num_labels=2))
    model.save_pretrained(tmp_path / "model")
    word_tokenizer().save_pretrained(tmp_path / "model")
    words = ["train", "--data", str(tmp_path / "rows.csv"), "--model", str(tmp_path / "model"), "--max-steps", "2"]
    words += ["--output-dir", str(tmp_path / "out"), "--report-to", "none", "--use-cpu", "--hub-token", TOKEN]
    assert cli.main(words) == 0
    assert holders(tmp_path) == []
    said = capfd.readouterr()
    assert TOKEN not in said.out + said.err
