"""What the package promises as a whole: light to import, layered, complete when installed, documented as tested."""

import ast
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import get_overloads

import pytest

import hf_lwal
from hf_lwal.cli.main import build_parser
from hf_lwal.modeling.modeling_lwal import LwALPreTrainedModel

PACKAGE = Path(hf_lwal.__file__).parent
PROJECT = Path(__file__).parents[1]

LAYERS = [
    *(
        "errors",
        "flags",
        "pictures",
        "sounds",
        "files",
        "folder_lock",
        "running_time",
        "functional",
        "distributed",
        "labels",
        "streams",
        "sample_ids",
        "presets",
        "start_budget",
        "metrics",
    ),
    *("label_rows", "label_table", "label_table_file", "hub_code", "peft_targets"),
    *("pooling", "configuration_pooled", "modeling_pooled"),
    *(
        "configuration_lwal",
        "quantisation",
        "loading",
        "heads",
        "saving",
        "tasks",
        "head_start",
        "probe_start",
        "start",
        "inference",
        "name_start",
        "label_editing",
        "open_set",
        "label_tracking",
        "probes",
        "linear_fold",
        "fold_check",
        "export",
        "modeling_lwal",
        "auto",
    ),
    *("sharding", "onnx_export", "sentence_export", "peft_support", "label_log", "hierarchy", "plots", "model_card"),
    *(
        "training_args",
        "settings",
        "objectives",
        "repooling",
        "exact_accumulation",
        "callbacks",
        "checkpoints",
        "hub_trainer",
        "checkpoint_trainer",
        "best_model",
        "own_optimizer",
        "own_loss",
        "trainer",
    ),
    *(
        "data",
        "label_vectors",
        "wordnet",
        "progress",
        "frozen_regression",
        "comparison",
        "quickstart",
        "benchmark",
        "commands",
        "terminal",
        "cli",
        "__main__",
    ),
]
"""Lowest first. A new module gets its place here; it may import only what stands before it."""


@pytest.fixture(scope="module")
def after_the_import():
    """What a fresh process says after ``import hf_lwal`` and nothing else of ours."""
    code = (
        "import hf_lwal, sys; print(*{'matplotlib', 'scipy.cluster', 'datasets', 'sklearn'} & set(sys.modules));"
        "import transformers as t; kind = type(t.AutoConfig.for_model('lwal'));"
        "print(*(kind in auto._model_mapping for auto in (t.AutoModelForSequenceClassification,"
        " t.AutoModelForImageClassification, t.AutoModelForAudioClassification)))"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_import_is_light(after_the_import):
    """Plotting, clustering and data libraries cost seconds that a server which only predicts should not pay."""
    assert after_the_import[0] == ""


def test_the_import_alone_acquaints_transformers_with_the_models(after_the_import):
    """Whoever then loads with transformers' own Auto classes touches no name of ours."""
    assert after_the_import[1].split() == ["True"] * 3


def test_public_names_are_found_by_every_way_of_importing():
    """They are attributes that come into being at first use, where an import statement or a tool could miss them."""
    namespace = {}
    exec("from hf_lwal import *", namespace)
    assert set(namespace) - {"__builtins__"} == set(hf_lwal.__all__) == set(dir(hf_lwal))
    for name in hf_lwal.__all__:
        found = getattr(hf_lwal, name)
        assert found is namespace[name]
        assert found.__module__.startswith("hf_lwal.")
        assert pickle.loads(pickle.dumps(found)) is found
    with pytest.raises(AttributeError, match="no attribute 'LwALTrainers'"):
        _ = hf_lwal.LwALTrainers


def test_type_checkers_see_the_names_that_are_found_at_run_time():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    typing_only = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in typing_only.body for alias in node.names}
    assert seen == hf_lwal._ON_FIRST_USE
    assert sorted(seen) == hf_lwal.__all__


def modules():
    """Top-level name → files of the module or subpackage, without ``__init__`` of the package itself."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        if inside.parts != ("__init__.py",):
            found.setdefault(inside.parts[0].removesuffix(".py"), []).append(path)
    return found


def imported(path):
    """Top-level modules of the package that a file imports, wherever in the file (annotations apart)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    skipped = {inner for node in typing_only for inner in ast.walk(node)}
    depth = len(path.relative_to(PACKAGE).parts)  # 1 for a file at the top: there ``.`` is the package
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node in skipped:
            continue
        if node.level == depth:
            names = [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]
            yield from (name for name in names if name != "__version__")  # a constant, which imports nothing
        elif node.module and node.module.startswith("hf_lwal"):
            pytest.fail(f"{path.name}: absolute import of {node.module}; inside the package imports are relative")


def test_every_module_has_its_layer():
    assert set(modules()) <= set(LAYERS), "give the new module its place in LAYERS"


@pytest.mark.parametrize("name", LAYERS)
def test_imports_go_downwards_only(name):
    below = set(LAYERS[: LAYERS.index(name)])
    for path in modules().get(name, []):
        own = set() if path.parent == PACKAGE else {name}
        assert set(imported(path)) <= below | own, f"{path.relative_to(PACKAGE)} imports from a layer above it"


def test_the_layers_are_really_checked():
    """A check that finds no import at all would pass for ever."""
    assert "hierarchy" in set(imported(PACKAGE / "plots" / "trees.py"))
    assert "errors" in set(imported(PACKAGE / "data" / "sources.py"))


def test_type_information_is_shipped():
    assert (PACKAGE / "py.typed").exists()


def test_editors_know_what_is_loaded():
    """With Any they complete nothing, and type checkers pass every misspelt method of a loaded model."""
    for kind, alone in (
        (hf_lwal.AutoModelForLwALClassification, "LwALPreTrainedModel"),
        (LwALPreTrainedModel, "Self"),
    ):
        returned = [function.__annotations__["return"] for function in get_overloads(kind.from_pretrained.__func__)]
        assert returned == [alone, f"tuple[{alone}, dict[str, Any]]"]


def shell_block(heading):
    """The one-line command of a section of the README."""
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    return re.search(rf"^## {heading}$.*?^```bash\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL).group(1)


def test_ci_runs_the_commands_of_the_readme():
    script = (PROJECT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    commands = shell_block("Test it").split(" && ")
    checks = commands[commands.index("ruff check") :]
    assert script[-len(checks) :] == checks


def test_the_readmes_first_command_exists():
    *_, command = shell_block("Try it").split(" && ")
    assert build_parser().parse_args(command.split()[1:]).command == "quickstart"
