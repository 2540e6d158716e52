"""Lower bounds of the dependencies in pyproject.toml, for testing with the oldest versions.

    python .ci/versions.py lowest      # every package at its lower bound, as a constraints file of pip

It runs in the environment under test and needs the package ``packaging`` there.
"""

import sys
from pathlib import Path

from packaging.requirements import Requirement

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def lower_bounds(pyproject: Path) -> dict[str, str]:
    """Lower bound of every dependency, those of all extras included.

    Args:
        pyproject: file to read.

    Returns:
        Package name → version, sorted by name; without the project itself, which its extras name.

    Raises:
        ValueError: a dependency has no single lower bound, or two different ones.
    """
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    listed = [project.get("dependencies", []), *project.get("optional-dependencies", {}).values()]
    bounds: dict[str, str] = {}
    for requirement in (Requirement(line) for lines in listed for line in lines):
        if requirement.name == project["name"]:
            continue
        lowest = [specifier.version for specifier in requirement.specifier if specifier.operator in (">=", "==", "~=")]
        if len(lowest) != 1:
            raise ValueError(
                f"The dependency {str(requirement)!r} needs one lower bound, such as {requirement.name}>=1."
            )
        if bounds.setdefault(requirement.name, lowest[0]) != lowest[0]:
            raise ValueError(f"{requirement.name} has two lower bounds, {bounds[requirement.name]} and {lowest[0]}.")
    return dict(sorted(bounds.items(), key=lambda item: item[0].lower()))


def constraints(bounds: dict[str, str]) -> str:
    """Lines of a constraints file that leave pip nothing but the bounds.

    Builds named "+cpu" are left out: torch as such would meet a torchvision that was built against the other one.
    """
    return "".join(f"{name}=={bound},!={bound}+cpu\n" for name, bound in bounds.items())


if __name__ == "__main__":
    if sys.argv[1:] != ["lowest"]:
        sys.exit("usage: python .ci/versions.py lowest")
    print(constraints(lower_bounds(PYPROJECT)), end="")
