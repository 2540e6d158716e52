"""``hf-lwal fold``: a new folder that a stock server can use, or a sentence and no folder."""

from __future__ import annotations

import contextlib
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from releases import exports_onnx
from test_modeling import LABELS, build, trained
from toy import IMAGE_SIZE
from transformers import pipeline
from transformers.models.vit import ViTImageProcessor

from hf_lwal.cli import main as cli

TEXTS = ["key1 word2", "word3 key2 key2 word4 word5", "key0", "key3 word1 word1", "key4 key4"] * 4


@pytest.fixture(scope="module")
def saved(tiny_config, tokenizer, tmp_path_factory):
    """Folders of two saved models with what prepares their inputs."""
    folder = tmp_path_factory.mktemp("saved")
    size = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    for name, processor in (("bert", tokenizer), ("vit", ViTImageProcessor(size=size)), ("llama", tokenizer)):
        trained(build(tiny_config, name)).save_pretrained(folder / name)
        processor.save_pretrained(folder / name)
    return folder


def answers(kind, folder, inputs):
    return [best[0]["label"] for best in pipeline(kind, model=str(folder), device="cpu")(inputs, top_k=1)]


@exports_onnx
def test_texts_and_onnx(saved, tmp_path, capsys):
    """The tokenizer goes with the model, and the real inputs are the ones compared."""
    (tmp_path / "rows.txt").write_text("\n".join([*TEXTS, "", " "]), encoding="utf-8")
    words = ["fold", str(saved / "bert"), "--output", str(tmp_path / "new" / "stock")]
    assert cli.main([*words, "--inputs", str(tmp_path / "rows.txt"), "--onnx"]) == 0
    output = capsys.readouterr().out
    assert "1,020 rows (1,000 random, 20 given)" in output
    assert re.search(r"onnxruntime's logits differ from PyTorch's by \S+ at most, on 1,020 rows", output)
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == ["stock"]
    folder = tmp_path / "new" / "stock"
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertForSequenceClassification"]
    assert (folder / "onnx" / "model.onnx").is_file()
    assert answers("text-classification", folder, TEXTS) == answers("text-classification", saved / "bert", TEXTS)


def test_images(saved, tmp_path, capsys):
    generator = np.random.default_rng(0)
    (tmp_path / "images" / "inner").mkdir(parents=True)
    paths = [tmp_path / "images" / "inner" / f"{number}.png" for number in range(5)]
    for path in paths:
        Image.fromarray(generator.integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(path)
    (tmp_path / "images" / "notes.md").write_text("no image")
    words = ["fold", str(saved / "vit"), "--output", str(tmp_path / "stock"), "--inputs", str(tmp_path / "images")]
    assert cli.main(words) == 0
    assert "1,005 rows (1,000 random, 5 given)" in capsys.readouterr().out
    files = [str(path) for path in paths]
    expected = answers("image-classification", saved / "vit", files)
    assert answers("image-classification", tmp_path / "stock", files) == expected


@exports_onnx
def test_a_head_without_bias_goes_to_onnx_alone(saved, tmp_path, capsys):
    """A checkpoint would lose the bias: the graph holds it, and no weights may stand beside it."""
    import onnxruntime

    words = ["fold", str(saved / "llama"), "--output", str(tmp_path / "stock")]
    assert cli.main(words) == 2
    assert "has no bias by design" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert cli.main([*words, "--onnx"]) == 0
    assert "no checkpoint was written" in capsys.readouterr().out
    assert not list((tmp_path / "stock").glob("*.safetensors"))
    session = onnxruntime.InferenceSession(str(tmp_path / "stock" / "onnx" / "model.onnx"))
    ids = np.array([[5, 9, 7, 3]])
    logits = session.run(["logits"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
    assert logits.shape == (1, LABELS)


@exports_onnx
def test_a_failure_leaves_nothing(saved, tmp_path, monkeypatch, capsys):
    """Half a folder looks like a model and serves something else."""
    from hf_lwal.modeling import onnx_export

    def fails(*_):
        raise ValueError("onnxruntime gives other logits.")

    monkeypatch.setattr(onnx_export, "export_onnx", fails)
    assert cli.main(["fold", str(saved / "bert"), "--output", str(tmp_path / "stock"), "--onnx"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "hf-lwal fold: onnxruntime gives other logits."
    assert not list(tmp_path.iterdir())


def test_without_a_tokenizer(tiny_config, tmp_path, capsys):
    trained(build(tiny_config, "bert")).save_pretrained(tmp_path / "bare")
    words = ["fold", str(tmp_path / "bare"), "--output", str(tmp_path / "stock")]
    (tmp_path / "rows.txt").write_text("key1")
    assert cli.main([*words, "--inputs", str(tmp_path / "rows.txt")]) == 2
    assert "--inputs needs a tokenizer or processor, but" in capsys.readouterr().err
    assert cli.main(words) == 0
    assert "holds no tokenizer or processor, so none was written" in capsys.readouterr().out


def test_mistakes(saved, tmp_path, capsys):
    """Each is said before the model is loaded, or in one sentence after it."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "fake.png").write_text("no image")
    model, new = str(saved / "bert"), ["--output", str(tmp_path / "stock")]
    for words, message in (
        ([model, "--output", str(tmp_path / "full")], "exists already; name a new folder."),
        ([model, *new, "--inputs", str(tmp_path / "none.txt")], "--inputs: there is no "),
        ([model, *new, "--inputs", str(tmp_path / "empty.txt")], "holds no text."),
        ([model, *new, "--inputs", str(tmp_path / "binary.txt")], "is not a text file in UTF-8"),
        ([str(saved / "vit"), *new, "--inputs", str(tmp_path / "fake.png")], "cannot identify image file"),
        ([str(tmp_path / "full"), *new], "has no config.json"),
    ):
        assert cli.main(["fold", *words]) == 2
        error = capsys.readouterr().err
        assert error.startswith("hf-lwal fold: ")
        assert message in error
    assert not (tmp_path / "stock").exists()


def test_a_stock_model_has_nothing_to_fold(saved, tmp_path, capsys):
    from hf_lwal import AutoModelForLwALClassification

    AutoModelForLwALClassification.from_pretrained(saved / "bert").fold().save_pretrained(tmp_path / "stock")
    assert cli.main(["fold", str(tmp_path / "stock"), "--output", str(tmp_path / "again")]) == 2
    assert "has no label table (its model_type is 'bert'): nothing to fold." in capsys.readouterr().err


def test_the_users_random_numbers_are_left_alone(saved, tmp_path):
    state = torch.get_rng_state()
    cli.main(["fold", str(saved / "bert"), "--output", str(tmp_path / "stock")])
    assert torch.equal(torch.get_rng_state(), state)


@exports_onnx
def test_what_exporters_say_to_each_other_is_hidden(caplog):
    """One of them logs under the path of its file, and told users of a setting that they cannot reach."""
    from transformers.exporters import exporter_dynamo

    from hf_lwal.modeling import onnx_export

    for said in ("while exporting", "at other times"):
        with onnx_export._quiet() if said == "while exporting" else contextlib.nullcontext():
            exporter_dynamo.logger.warning(said)
    assert [record.getMessage() for record in caplog.records] == ["at other times"]
