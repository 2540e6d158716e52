"""What goes to the Hub beside the weights, piece by piece; test_hub.py sends it there."""

import ast
import json
import sys
from types import SimpleNamespace

import pytest
import tiny_models
from transformers.dynamic_module_utils import get_imports

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.hub_code import broken_download, code_files, complete_card, forget_code
from hf_lwal.hub_trainer import HubTrainer
from hf_lwal.modeling_lwal import MODEL_CLASSES, LwALForSequenceClassification


class OwnModel(LwALForSequenceClassification):
    """A user's subclass, whose module is not a part of the library."""


@pytest.fixture
def model():
    return AutoModelForLwALClassification.from_config(tiny_models.tiny_config("bert", num_labels=3))


def test_the_code_that_travels_needs_only_what_transformers_needs():
    """transformers refuses remote code with an import, wherever in the file, that the reader has not installed."""
    allowed = {"torch", "transformers", "huggingface_hub", "numpy", "tqdm", "safetensors"} | sys.stdlib_module_names
    for path in code_files():
        found = set(get_imports(path))  # as transformers reads it: what is tried and caught may be missing
        assert found <= allowed, f"{path.name} imports {found - allowed}"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1, path.name
                assert node.module, f"{path.name}: `from . import x` is silently left behind"


@pytest.mark.parametrize(
    ("backbone", "auto_class"),
    [
        ("bert", "AutoModelForSequenceClassification"),
        ("vit", "AutoModelForImageClassification"),
        ("wav2vec2", "AutoModelForAudioClassification"),
    ],
)
def test_the_configuration_names_classes_that_exist(tmp_path, backbone, auto_class):
    """A wrong name would show only where hf_lwal is missing."""
    task = {"bert": None, "vit": None, "wav2vec2": "audio"}[backbone]
    model = AutoModelForLwALClassification.from_config(tiny_models.tiny_config(backbone, num_labels=3), task=task)
    model.save_pretrained(tmp_path, include_code=True)
    mapped = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    assert set(mapped) == {"AutoConfig", auto_class}
    assert mapped[auto_class] == f"modeling_lwal.{MODEL_CLASSES[model.task].__name__}"
    for reference in mapped.values():
        module, name = reference.split(".")
        tree = ast.parse((tmp_path / f"{module}.py").read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert {path.name for path in tmp_path.glob("*.py")} == {path.name for path in code_files()}


def test_a_local_folder_has_no_code_unless_asked(tmp_path, model):
    model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.py"))
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())


def test_a_subclass_is_not_given_out_as_the_library(tmp_path, model):
    """The repository would load the parent class in its place, without a word."""
    OwnModel(model.config).save_pretrained(tmp_path, include_code=True)
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())
    assert not list(tmp_path.glob("*.py"))


def test_other_entries_of_an_auto_map_stay(model):
    model.config.auto_map = {"AutoConfig": "configuration_lwal.LwALConfig", "AutoProcessor": "mine.Processor"}
    forget_code(model.config)
    assert model.config.auto_map == {"AutoProcessor": "mine.Processor"}


def test_a_card_gets_what_pipelines_need(tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: mit\ntags:\n- banking\n---\nMine.\n")
    complete_card(tmp_path / "README.md", "image")
    text = (tmp_path / "README.md").read_text()
    for line in ("license: mit", "pipeline_tag: image-classification", "library_name: transformers"):
        assert f"{line}\n" in text
    assert text.count("- lwal\n") == text.count("- hf-lwal\n") == text.count("- banking\n") == 1
    assert text.endswith("Mine.\n")


def test_a_card_that_says_everything_is_left_alone(tmp_path):
    """Rewriting would reorder people's metadata at every push."""
    text = "---\npipeline_tag:   image-classification\nlibrary_name: peft\ntags: [hf-lwal, lwal]\n---\nMine.\n"
    (tmp_path / "README.md").write_text(text)
    complete_card(tmp_path / "README.md", "text")
    assert (tmp_path / "README.md").read_text() == text


def test_a_card_that_cannot_be_written_does_not_end_the_training(caplog):
    """Hours of work must not be lost because a picture could not be drawn."""

    def fail(**_):
        raise RuntimeError("no font")

    run = SimpleNamespace(hub_model_id="alice/toy", create_model_card=fail, state=SimpleNamespace(global_step=7))
    HubTrainer._card_for_push(run)
    assert "The model card for the push at step 7 failed" in caplog.text
    assert "no font" in caplog.text


def test_other_errors_keep_their_words(tmp_path, model):
    """A wrong name and a broken connection need different remedies."""
    error = OSError("no such model")
    error.__cause__ = FileNotFoundError("config.json")
    assert broken_download(error, "alice/toy") is None
    with pytest.raises(OSError, match="no file named") as caught:
        LwALForSequenceClassification.from_pretrained(tmp_path, config=model.config)
    assert caught.value.__cause__ is not caught.value
