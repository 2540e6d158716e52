"""What the package promises as a whole: light to import, layered, complete when installed, documented as tested."""

import ast
import pickle
import re
import subprocess
import sys
import typing
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import hf_lwal
from hf_lwal.cli.main import build_parser
from hf_lwal.modeling.modeling_lwal import LwALPreTrainedModel

PACKAGE = Path(hf_lwal.__file__).parent
PROJECT = Path(__file__).parents[1]

FOLDERS = (
    *("errors", "modeling", "functional", "data", "metrics", "settings", "objectives", "hierarchy", "plots"),
    *("model_card", "training", "bench", "cli", "__main__"),
)
"""Lowest first: each imports only from those before it, also for annotations and inside functions."""


@pytest.fixture(scope="module")
def after_the_import():
    """What a fresh process says after ``import hf_lwal`` and nothing else of ours."""
    code = (
        "import hf_lwal, sys; print(*{'torch', 'transformers', 'scipy', 'datasets', 'sklearn'} & set(sys.modules));"
        "import transformers as t; kind = type(t.AutoConfig.for_model('lwal'));"
        "print(*(kind in auto._model_mapping for auto in (t.AutoModelForSequenceClassification,"
        " t.AutoModelForImageClassification, t.AutoModelForAudioClassification)))"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_import_is_light(after_the_import):
    """What only asks for a version or a help text must not wait for PyTorch."""
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


def imports_between_modules():
    """Module of the package → the modules of the package that it imports, wherever and for whatever."""
    files = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found = {}
    for name, path in files.items():
        inside = path.relative_to(PACKAGE).parts[:-1]
        found[name] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom):
                continue
            assert node.level or not (node.module or "").startswith("hf_lwal"), f"{path.name}: make it relative"
            if node.level:
                base = [*inside[: len(inside) - node.level + 1], *(node.module.split(".") if node.module else ())]
                names = (".".join([*base, alias.name]) for alias in node.names)
                found[name] |= {one if one in files else ".".join(base) for one in names}
        found[name] -= {name, ""}
    del found[""]  # the package itself names its public classes, and imports none
    return found


def test_folders_import_only_those_below_them():
    """A room that reaches upwards cannot be read, tested or carried to the Hub alone."""
    place, graph = FOLDERS.index, imports_between_modules()
    tops = {name: name.split(".")[0] for name in graph}
    upwards = [f"{a} → {b}" for a, others in graph.items() for b in others if place(tops[a]) < place(tops[b])]
    assert not upwards
    assert "modeling.functional" in graph["metrics.classification"]  # a check that finds no import passes for ever


def test_no_module_imports_itself_in_a_circle():
    """Which of a circle is imported first would decide whether it works."""
    order = list(TopologicalSorter(imports_between_modules()).static_order())  # raises CycleError, naming the circle
    assert order.index("modeling.label_table") < order.index("modeling.algorithm") < order.index("modeling.core")


def test_models_are_made_of_their_own_folder_alone():
    """It is copied beside saved models, where the rest of the package may not be."""
    graph = imports_between_modules()
    assert {other for name in graph if name.startswith("modeling.") for other in graph[name]} <= {
        name for name in graph if name.startswith("modeling")
    }


def test_the_top_level_fits_on_one_screen():
    entries = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert len(entries) <= 16
    assert {entry.removesuffix(".py") for entry in entries} == {*FOLDERS, "__init__", "py.typed"}


@pytest.mark.parametrize(
    "first",
    ["modeling.heads", "modeling.configuration_pooled", "settings.training_args", "modeling.algorithm", "model_card"],
)
def test_any_module_may_be_imported_first(first):
    """Importing transformers' Auto classes imports the models, which must not then meet themselves half-made."""
    code = (
        f"import hf_lwal.{first}, transformers as t; auto = t.AutoModelForSequenceClassification;"
        "print(type(t.AutoConfig.for_model('lwal')) in auto._model_mapping)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("labels", "data.labels"),
        ("heads", "modeling.heads"),
        ("comparison", "bench.comparison"),
        ("benchmark.datasets", "bench.datasets"),
        ("commands.train_data", "cli.train_data"),
    ],
)
def test_modules_are_found_where_they_were(before, now):
    """Scripts import what documentation named: the same module comes, with a warning that says where it is now."""
    for name in [name for name in sys.modules if f"hf_lwal.{before}".startswith(name) and name != "hf_lwal"]:
        del sys.modules[name]
    with pytest.warns(FutureWarning, match=f"hf_lwal.{before} is now hf_lwal.{now}, and the old name goes in 0.3"):
        found = import_module(f"hf_lwal.{before}")
    assert found is import_module(f"hf_lwal.{now}")
    assert found.__spec__.name == f"hf_lwal.{now}"


@pytest.mark.parametrize("module", ["hf_lwal", "hf_lwal.cli"])
def test_the_command_line_runs_as_a_module(module):
    """What launchers start by a module's name, where no script is installed."""
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"hf-lwal {hf_lwal.__version__}"


def test_looking_for_a_module_of_transformers_does_not_keep_the_models_from_it():
    """Tools ask where a module is without importing it; the import that comes later must acquaint all the same."""
    code = (
        "import hf_lwal; from importlib.util import find_spec;"
        "[find_spec(f'transformers.models.auto.{name}') for name in ('modeling_auto', 'configuration_auto')];"
        "import transformers as t; kind = type(t.AutoConfig.for_model('lwal'));"
        "print(kind in t.AutoModelForSequenceClassification._model_mapping)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr


def test_type_information_is_shipped():
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not keep overloads")
def test_editors_know_what_is_loaded():
    """With Any they complete nothing, and type checkers pass every misspelt method of a loaded model."""
    for kind, alone in (
        (hf_lwal.AutoModelForLwALClassification, "LwALPreTrainedModel"),
        (LwALPreTrainedModel, "Self"),
    ):
        overloads = typing.get_overloads(kind.from_pretrained.__func__)
        returned = [function.__annotations__["return"] for function in overloads]
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
