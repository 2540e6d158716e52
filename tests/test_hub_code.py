"""What goes to the Hub beside the weights, piece by piece; test_hub.py sends it there."""

import ast
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import tiny_models
import torch
from packaging.version import Version
from releases import TRANSFORMERS
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.dynamic_module_utils import get_imports

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.modeling.hub_code import MARK, broken_download, code_files, complete_card, forget_code
from hf_lwal.modeling.modeling_lwal import MODEL_CLASSES, LwALForSequenceClassification
from hf_lwal.training.checkpoints import what_is_missing
from hf_lwal.training.hub_pushes import HubPushes


class OwnModel(LwALForSequenceClassification):
    """A user's subclass, whose module is not a part of the library."""


@pytest.fixture
def model():
    return AutoModelForLwALClassification.from_config(tiny_models.tiny_config("bert", num_labels=3))


def test_the_code_that_travels_needs_only_what_transformers_needs():
    """transformers refuses remote code with an import, wherever in the file, that the reader has not installed."""
    allowed = {"torch", "transformers", "huggingface_hub", "numpy", "tqdm", "safetensors"}
    allowed |= {"typing_extensions"} | sys.stdlib_module_names  # which torch needs
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
    model.save_pretrained(tmp_path)
    mapped = auto_map(tmp_path)
    assert set(mapped) == {"AutoConfig", auto_class}
    assert mapped[auto_class] == f"lwal_code/modeling_lwal.{MODEL_CLASSES[model.task].__name__}"
    for reference in mapped.values():
        module, name = reference.split(".")
        tree = ast.parse((tmp_path / f"{module}.py").read_text(encoding="utf-8"))
        defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        named = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert name in defined | named
    assert {path.name for path in (tmp_path / "lwal_code").iterdir()} == {path.name for path in code_files()}


def auto_map(folder):
    return json.loads((folder / "config.json").read_text()).get("auto_map")


def files(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.py")}


def test_one_folder_holds_the_code(tmp_path, model):
    """Twenty modules among a model's files hide them, and take the names of people's own scripts."""
    model.save_pretrained(tmp_path)
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {"config.json", "label_table.json", "model.safetensors", "lwal_code"}


@pytest.mark.parametrize("way", ["argument", "configuration"])
def test_a_folder_has_no_code_that_was_not_wanted(tmp_path, model, way):
    """Modules of an earlier save would go to the Hub with the next upload of the folder."""
    model.save_pretrained(tmp_path)
    model.config.push_code = way == "argument"
    model.save_pretrained(tmp_path, **({"include_code": False} if way == "argument" else {}))
    assert not files(tmp_path)
    assert not (tmp_path / "lwal_code").exists()
    assert auto_map(tmp_path) is None
    model.save_pretrained(tmp_path, include_code=True)
    assert len(files(tmp_path)) == len(code_files())


@pytest.mark.parametrize("include_code", [True, False])
def test_peoples_own_files_stay(tmp_path, model, include_code):
    """A person's start.py and inference.py were overwritten at every push during a training."""
    (tmp_path / "lwal_code").mkdir()
    own = {"start.py": "print('mine')\n", "inference.py": "", "lwal_code/notes.py": "mine = 1\n"}
    for name, text in own.items():
        (tmp_path / name).write_text(text)
    model.save_pretrained(tmp_path, include_code=include_code)
    assert own.items() <= files(tmp_path).items()
    assert (auto_map(tmp_path) is not None) == include_code


@pytest.mark.parametrize("place", ["lwal_code/start.py", "lwal_code"])
def test_a_file_of_ones_own_in_the_place_of_the_code(tmp_path, model, caplog, place):
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("mine = 1\n")
    model.save_pretrained(tmp_path)
    assert (tmp_path / place).read_text() == "mine = 1\n"
    assert auto_map(tmp_path) is None
    assert f"{place} is not hf-lwal's, so it stays" in caplog.text


def test_the_code_of_earlier_versions_goes(tmp_path, model):
    """It lay among the model's files; a module that the library no longer has would stay for ever."""
    for source in code_files():
        (tmp_path / source.name).write_text(source.read_text(encoding="utf-8"))
    (tmp_path / "start.py").write_text("mine = 1\n")
    model.save_pretrained(tmp_path)
    (tmp_path / "lwal_code" / "gone.py").write_text(f"{MARK}\nold = 1\n")
    model.save_pretrained(tmp_path)
    assert set(files(tmp_path)) == {"start.py", *(f"lwal_code/{source.name}" for source in code_files())}


def test_a_checkpoint_without_weights_is_not_complete(tmp_path, model):
    """A folder in it was taken for sharded weights."""
    model.save_pretrained(tmp_path)
    (tmp_path / "trainer_state.json").write_text('{"global_step": 1, "log_history": []}')
    assert what_is_missing(tmp_path) is None
    (tmp_path / "model.safetensors").unlink()
    assert what_is_missing(tmp_path) == "the weights are missing"


WITHOUT_IMPORT = """
import json, sys, torch
from transformers import AutoModelForSequenceClassification, pipeline
folder, flat = sys.argv[1:]
run = pipeline("text-classification", folder, trust_remote_code=True, device="cpu")
inputs = {"input_ids": torch.tensor([[5, 6, 7]])}
def logits(model):
    with torch.no_grad():
        return model.eval()(**inputs).logits.tolist()
seen = {"module": type(run.model).__module__, "logits": logits(run.model), "answer": run("w1 w2")[0]["label"]}
load = AutoModelForSequenceClassification.from_pretrained
seen["reordered"] = logits(load(folder, id2label=["c", "b", "a"], trust_remote_code=True))
if flat:
    seen["flat"] = logits(load(flat, trust_remote_code=True))
run.model.save_pretrained(folder + "/again")
seen["imported"] = sorted(name for name in sys.modules if name.partition(".")[0] == "hf_lwal")
import hf_lwal
again = AutoModelForSequenceClassification.from_pretrained(folder + "/again")
seen["again"], seen["by"] = logits(again), type(again).__module__
print(json.dumps(seen))
"""


def test_a_saved_model_serves_where_nobody_imports_hf_lwal(tmp_path):
    """An inference script of its own knew no model type lwal, and was told to update transformers."""
    names = {0: "a", 1: "b", 2: "c"}
    model = AutoModelForLwALClassification.from_config(tiny_models.tiny_config("bert", id2label=names)).eval()
    vocabulary = {"[PAD]": 0, "[UNK]": 1, **{f"w{index}": index + 2 for index in range(9)}}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    folder, flat = tmp_path / "my.model", tmp_path / "flat"
    args = LwALTrainingArguments(str(tmp_path / "out"), report_to="none", use_cpu=True)
    LwALTrainer(model=model, args=args, processing_class=tokenizer).save_model(folder)
    model.save_pretrained(flat, include_code=False)
    for source in code_files():  # as earlier versions saved it
        (flat / source.name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    config = json.loads((flat / "config.json").read_text())
    config["auto_map"] = {
        "AutoConfig": "configuration_lwal.LwALConfig",
        "AutoModelForSequenceClassification": "modeling_lwal.LwALForSequenceClassification",
    }
    (flat / "config.json").write_text(json.dumps(config))
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")}
    takes_flat = Version("5.11") <= TRANSFORMERS
    command = [sys.executable, "-c", WITHOUT_IMPORT, str(folder), str(flat) if takes_flat else ""]
    seen = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([[5, 6, 7]])).logits
    assert seen["module"].startswith("transformers_modules.")
    assert seen["imported"] == []
    assert seen["answer"] in names.values()
    for name in ("logits", *(["flat"] if takes_flat else []), "again"):
        assert torch.allclose(torch.tensor(seen[name]), expected, atol=1e-5), name
    assert torch.allclose(torch.tensor(seen["reordered"]), expected.flip(1), atol=1e-5)
    assert seen["by"] == "hf_lwal.modeling.modeling_lwal"


def test_a_subclass_is_not_given_out_as_the_library(tmp_path, model):
    """The repository would load the parent class in its place, without a word."""
    OwnModel(model.config).save_pretrained(tmp_path, include_code=True)
    assert auto_map(tmp_path) is None
    assert not files(tmp_path)


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
    HubPushes(run).write_card()
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
