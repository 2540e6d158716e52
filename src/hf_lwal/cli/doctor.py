"""``hf-lwal doctor``: what is installed, where things are kept, and whether the Hub can be reached."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from .flags import option

if TYPE_CHECKING:
    from packaging.requirements import Requirement

SECONDS = 5.0
"""How long to wait for the Hub."""
PACKAGE = "hf-lwal"
UNKNOWN = f"What is required could not be read, since {PACKAGE} runs without being installed: pip install -e ."
FOR_USERS = ("completion", "onnx", "plots", "quickstart", "sentence-transformers", "vision", "wordnet")
"""Extras that add something for users; `test` and `dev` are for those who work on the library."""

IMPORTED = ("torch", "transformers.modeling_utils", "datasets", "hf_lwal.modeling.auto")
"""Modules without which nothing works; each needs those before it."""


@dataclass(frozen=True)
class DoctorOptions:
    """Check the installation: versions, device, caches, optional extras, and whether the Hub can be reached."""

    offline: bool = option(False, "make no network call")


def run(options: DoctorOptions) -> int:
    """Print one line per finding; returns 1 when a required package is missing, too old or broken."""
    problems: list[str] = []
    sections = {
        "Versions": list(_versions(problems)),
        "Imports": [_import(name, problems) for name in IMPORTED],
        "Device": list(_devices()),
        "Caches": list(_caches()),
        "Extras": list(_extras()),
        "Hub": [_hub(options.offline)],
    }
    for title, lines in sections.items():
        print(title, *(f"  {line}" for line in lines), sep="\n")
    whole = "All required packages are there." if _requirements() else UNKNOWN
    print("", *(problems or [whole]), sep="\n")
    return 1 if problems else 0


def _requirements(extra: str | None = None) -> list[Requirement]:
    """The package's own requirements, of the core or of an extra with those it includes."""
    from packaging.requirements import Requirement

    try:
        stated = [Requirement(line) for line in requires(PACKAGE) or []]
    except PackageNotFoundError:  # run from a source tree without installation
        return []
    wanted = {"extra": extra or ""}
    chosen = [
        entry
        for entry in stated
        if (entry.marker is None) == (extra is None) and (entry.marker is None or entry.marker.evaluate(wanted))
    ]
    included = [part for entry in chosen if entry.name == PACKAGE for part in entry.extras]
    nested = [entry for part in included for entry in _requirements(part)]
    return [entry for entry in chosen if entry.name != PACKAGE] + nested


def _state(requirement: Requirement) -> tuple[str, bool]:
    """One line on a requirement, and whether it is met."""
    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return f"{requirement.name}: missing, needs {requirement.specifier or 'any version'}", False
    met = requirement.specifier.contains(found, prereleases=True)
    return f"{requirement.name} {found}" + ("" if met else f": too old, needs {requirement.specifier}"), met


def _versions(problems: list[str]) -> Iterator[str]:
    """Versions of the package, of Python and of what is required."""
    from .. import __version__

    yield f"{PACKAGE} {__version__}"
    yield f"Python {platform.python_version()} ({sys.executable}), {platform.platform(terse=True)}"
    for requirement in sorted(_requirements(), key=lambda entry: entry.name):
        line, met = _state(requirement)
        yield line
        if not met:
            problems.append(f'Put it right with: pip install "{requirement}"')


def _import(name: str, problems: list[str]) -> str:
    """Whether a module can be imported: the right version can be broken, or not go with its neighbours."""
    try:
        import_module(name)
    except Exception as error:  # whatever stops the import is the finding
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        problems.append(f"{name} cannot be imported: {reason}")
        return f"{name}: broken ({type(error).__name__})"
    return f"{name}: works"


def _devices() -> Iterator[str]:
    """What trains: GPUs with their memory, or the CPU."""
    try:
        import torch
    except Exception:  # `_import` has said so
        yield "unknown, since torch cannot be imported"
        return
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(number)
            name = torch.cuda.get_device_name(number)
            yield f"GPU {number}: {name}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
        yield f"bf16: {'yes' if torch.cuda.is_bf16_supported() else 'no'}"
    elif torch.accelerator.is_available():
        yield f"accelerator: {torch.accelerator.current_accelerator()}"
    else:
        yield f"no GPU; CPU with {os.cpu_count()} cores, {torch.get_num_threads()} threads used by PyTorch"


def _caches() -> Iterator[str]:
    """Where models and data are kept, and how much room is left there."""
    try:
        from datasets import config
        from huggingface_hub import constants
    except Exception:  # `_import` has said so
        yield "unknown, since datasets cannot be imported"
        return
    for title, path in (("models", constants.HF_HUB_CACHE), ("data sets", config.HF_DATASETS_CACHE)):
        place = Path(path)
        existing = next(folder for folder in (place, *place.parents) if folder.exists())
        room = shutil.disk_usage(existing).free / 2**30
        writable = "" if os.access(existing, os.W_OK) else ", NOT WRITABLE: set HF_HOME to a folder of yours"
        yield f"{title}: {place}, {room:.1f} GiB free{writable}"


def _extras() -> Iterator[str]:
    """Which optional extras are complete, and how to get the others."""
    for extra in FOR_USERS:
        entries = _requirements(extra)
        missing = [entry.name for entry in entries if not _state(entry)[1]]
        if missing:
            yield f'{extra}: {", ".join(missing)} missing; pip install "{PACKAGE}[{extra}]"'
        elif entries:
            yield f"{extra}: there"
    if find_spec("peft") is not None:
        yield f"adapters: peft {version('peft')}"


def _hub(offline: bool) -> str:
    """Whether the Hub answers; asks nobody in offline mode."""
    from huggingface_hub import constants, get_session, get_token

    if offline or constants.HF_HUB_OFFLINE:
        return "offline: HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "not asked (--offline)"
    known = "a token is stored" if get_token() else "no token: `hf auth login` before a push"
    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except Exception as error:  # whatever the network does is the finding
        return f"{constants.ENDPOINT} cannot be reached ({type(error).__name__}): models and data must be local"
    return f"{constants.ENDPOINT} answers; {known}"
