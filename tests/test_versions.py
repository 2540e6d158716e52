"""The versions that pyproject.toml claims: what the scripts test with, and what the package says of Python."""

import re
import runpy
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.modeling import compat

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

PROJECT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSIONS = runpy.run_path(str(PROJECT / ".ci" / "versions.py"))


def lowest(requirement):
    return next(one.version for one in requirement.specifier if one.operator == ">=")


def bounds_of(tmp_path, text):
    path = tmp_path / "pyproject.toml"
    path.write_text(f'[project]\nname = "thing"\n{text}', encoding="utf-8")
    return VERSIONS["lower_bounds"](path)


def test_lower_bounds_are_those_of_all_extras(tmp_path):
    text = """
    dependencies = ["b>=2.1,<3"]
    [project.optional-dependencies]
    one = ["A[x]>=1", "thing[two]"]
    two = ["b >= 2.1", "c==4.0; python_version > '3'"]
    """
    assert list(bounds_of(tmp_path, text).items()) == [("A", "1"), ("b", "2.1"), ("c", "4.0")]


@pytest.mark.parametrize(
    ("dependencies", "said"),
    [('["free"]', "'free' needs one lower bound"), ('["a<2"]', "'a<2' needs one lower bound")],
)
def test_a_dependency_without_lower_bound_is_refused(tmp_path, dependencies, said):
    """Pip would take the newest release for it, and the oldest would never be tested."""
    with pytest.raises(ValueError, match=said):
        bounds_of(tmp_path, f"dependencies = {dependencies}")


def test_two_lower_bounds_of_one_package_are_refused(tmp_path):
    with pytest.raises(ValueError, match="a has two lower bounds, 1 and 2"):
        bounds_of(tmp_path, 'dependencies = ["a>=1"]\noptional-dependencies = {x = ["a>=2"]}')


def test_the_constraints_are_every_dependency_at_its_bound():
    command = [sys.executable, str(PROJECT / ".ci" / "versions.py"), "lowest"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    pinned = {requirement.name: str(requirement.specifier) for requirement in map(Requirement, lines)}
    groups = [PYPROJECT["dependencies"], *PYPROJECT["optional-dependencies"].values()]
    asked = [Requirement(line) for group in groups for line in group]
    bounds = {r.name: lowest(r) for r in asked if r.name != PYPROJECT["name"]}
    assert pinned == {name: str(SpecifierSet(f"=={bound},!={bound}+cpu")) for name, bound in bounds.items()}


def test_this_environment_has_what_is_asked_for():
    for line in PYPROJECT["dependencies"]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(distribution(requirement.name).version, prereleases=True), line


def test_the_matrix_can_be_run():
    path = PROJECT / ".ci" / "matrix"
    assert path.stat().st_mode & 0o100, "it must be executable"
    assert "oldest@3.10" in subprocess.run([str(path), "--help"], check=True, capture_output=True, text=True).stdout


def test_the_releases_that_are_bounded_are_those_that_the_code_knows():
    """A bound that was raised alone would warn users of what was tested, or not warn them of what was not."""
    bound = next(Requirement(line) for line in PYPROJECT["dependencies"] if line.startswith("transformers"))
    oldest, newest = (".".join(map(str, release)) for release in (compat.OLDEST, compat.NEWEST))
    assert bound.specifier.contains(oldest)
    assert bound.specifier.contains(f"{newest}.7")
    assert not bound.specifier.contains(f"{compat.OLDEST[0]}.{compat.OLDEST[1] - 1}.9")
    assert not bound.specifier.contains(f"{compat.NEWEST[0]}.{compat.NEWEST[1] + 1}")


def test_a_newer_transformers_is_named_with_the_remedy(monkeypatch, tiny_config, tmp_path, caplog):
    """A trainer that overrides what the next release has renamed would go wrong without a hint."""
    monkeypatch.setattr(compat, "_RELEASE", (compat.NEWEST[0], compat.NEWEST[1] + 1))
    model = AutoModelForLwALClassification.from_config(tiny_config("bert", num_labels=3))
    LwALTrainer(model=model, args=LwALTrainingArguments(str(tmp_path), report_to="none", use_cpu=True))
    assert f'pip install "transformers<{compat.NEWEST[0]}.{compat.NEWEST[1] + 1}"' in caplog.text


def test_an_older_transformers_is_refused_in_one_sentence():
    """What it lacks would show as an ImportError or an AttributeError somewhere inside."""
    code = "import transformers; transformers.__version__ = '4.57.1'; import hf_lwal; hf_lwal.LwALConfig"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stderr.splitlines()[-1] == (
        "ImportError: hf-lwal needs transformers 5.4 or later, and this is 4.57.1: pip install -U transformers."
    )


def oldest_python():
    return Version(re.fullmatch(r">=(\d+\.\d+)", PYPROJECT["requires-python"]).group(1))


def test_the_oldest_python_is_one_that_the_dependencies_allow():
    """An installer on an older Python would look for releases that do not exist, and say so in riddles."""
    checked = 0
    for name, bound in VERSIONS["lower_bounds"](PROJECT / "pyproject.toml").items():
        try:
            found = distribution(name)
        except PackageNotFoundError:  # an extra that is not installed
            continue
        if Version(found.version) == Version(bound):  # later releases may leave the oldest Python behind
            checked += 1
            assert oldest_python() in SpecifierSet(found.metadata["Requires-Python"] or ""), name
    if not checked:
        pytest.skip("no dependency is installed at its lower bound")


def test_the_classifiers_begin_with_the_oldest_python():
    prefix = "Programming Language :: Python :: 3."
    minors = [int(line.removeprefix(prefix)) for line in PYPROJECT["classifiers"] if line.startswith(prefix)]
    assert minors[0] == oldest_python().minor
    assert minors == sorted(minors)
