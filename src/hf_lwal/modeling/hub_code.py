"""What goes to the Hub beside the weights: the modules that load the model elsewhere, and what a card must say.

Transformers loads such modules with ``trust_remote_code=True`` only, and ignores them once hf_lwal is imported. Saving
writes them too, for whoever does not import it.
"""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, ModelCard
from huggingface_hub.errors import HfHubHTTPError
from transformers.dynamic_module_utils import get_relative_import_files

from .files import write_text_atomically
from .tasks import TASKS

TAGS = ("lwal", "hf-lwal")

CODE_FOLDER = "lwal_code"
"""Where the modules lie beside a saved model."""
MARK = "# Written by hf-lwal with a saved model, to load it where hf-lwal is not installed. Changes are lost."
"""First line of each: files without it are somebody's own, and stay as they are."""

NAMES = "\nif False:  # transformers before 5.11 takes only the modules that this one names\n"
"""What stands at the end of the first module, before all others."""

logger = logging.getLogger(__name__)


@functools.cache  # reads every module, and each save asks
def code_files(module: str = "modeling_lwal") -> tuple[Path, ...]:
    """The modules that loading a model imports, all in one folder, as remote code has to be.

    Args:
        module: of the model's class.
    """
    first = Path(__file__).with_name(f"{module}.py")
    imported = {Path(name) for name in get_relative_import_files(first)}
    return (first, *sorted(imported - {first}))


def write_code(
    folder: str | os.PathLike[str],
    task: str,
    class_name: str,
    module: str = "modeling_lwal",
    config_name: str = "LwALConfig",
) -> None:
    """Copy `code_files` beside a saved model, and name in its ``config.json`` the classes that load it.

    Args:
        folder: with ``config.json``; without one, as an adapter's folder is, nothing is written.
        task: key of `TASKS`.
        class_name: of the model.
        module: where it is defined.
        config_name: of its configuration, which that module imports.
    """
    config_file, place = Path(folder) / "config.json", Path(folder) / CODE_FOLDER
    if not config_file.is_file():
        return
    sources = code_files(module)
    others = [path for source in sources if (path := place / source.name).exists() and not _is_ours(path)]
    if others or place.is_file():
        logger.warning(
            "%s is not hf-lwal's, so it stays, and the modules that load the model where hf-lwal is not installed are "
            "not saved: move it to another folder.",
            (others or [place])[0],
        )
        return
    place.mkdir(exist_ok=True)
    for source in sources:
        text = source.read_text(encoding="utf-8").removeprefix(f"{MARK}\n").partition(NAMES)[0]
        named = "".join(f"    from .{other.stem} import __doc__\n" for other in sources[1:])
        write_text_atomically(
            place / source.name, f"{MARK}\n{text}{f'{NAMES}{named}' if source == sources[0] else ''}"
        )
    remove_code(folder, keep={place / source.name for source in sources}, module=module)
    config = json.loads(config_file.read_text(encoding="utf-8"))
    # Both classes from one module: transformers keeps the copies of a local module apart by all that it imports.
    config["auto_map"] = {
        "AutoConfig": f"{CODE_FOLDER}/{module}.{config_name}",
        TASKS[task].auto_class: f"{CODE_FOLDER}/{module}.{class_name}",
    }
    write_text_atomically(config_file, json.dumps(config, indent=2, sort_keys=True) + "\n")


def remove_code(folder: str | os.PathLike[str], keep: Collection[Path] = (), module: str = "modeling_lwal") -> None:
    """Delete the modules that an earlier save has left in a folder, and no file that is somebody's own.

    Args:
        folder: with a saved model; in earlier versions the modules lay in it directly.
        keep: files of this save.
        module: as in `write_code`.
    """
    place = Path(folder) / CODE_FOLDER
    for path in (*place.glob("*.py"), *(Path(folder) / source.name for source in code_files(module))):
        if path not in keep and path.is_file() and _is_ours(path):
            path.unlink()
    if place.is_dir() and not any(place.iterdir()):
        place.rmdir()


def take_back_code(repo_id: str, token: bool | str | None, revision: str | None) -> None:
    """Delete the modules of an earlier push from the Hub: an upload only adds and replaces.

    Args:
        repo_id: of the model.
        token: as for pushes.
        revision: branch that was pushed to.
    """
    api, known = HfApi(token=token), {path.name for path in code_files()}
    try:
        names = api.list_repo_files(repo_id, revision=revision)
        maybe = [name for name in names if name.endswith(".py") and name.removeprefix(f"{CODE_FOLDER}/") in known]
        ours = [name for name in maybe if _is_ours(Path(api.hf_hub_download(repo_id, name, revision=revision)))]
        if ours:
            title = "The model without the code that loads it"
            api.delete_files(repo_id, delete_patterns=ours, revision=revision, commit_message=title)
    except (HfHubHTTPError, OSError) as error:  # the model is pushed; this must not look as if it were not
        logger.warning(
            "%s may still hold the modules of an earlier push, since they could not be deleted: %s",
            repo_id,
            " ".join(str(error).split()),
        )


def _is_ours(path: Path) -> bool:
    """Whether hf-lwal wrote a file: it bears the mark, or begins as the module of that name did without."""
    first = path.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    if first == MARK:
        return True
    module = Path(__file__).with_name(path.name)
    if not module.is_file() or module.samefile(path):  # a model saved among the library's own modules
        return False
    lines = module.read_text(encoding="utf-8").splitlines()[:2]
    return first.startswith('"""') and first in lines


def forget_code(config: Any) -> None:
    """Drop what a loaded configuration says about modules beside it: where it is saved next, there may be none."""
    mapped = {key: value for key, value in (getattr(config, "auto_map", None) or {}).items() if key not in _OURS}
    if mapped:
        config.auto_map = mapped
    elif hasattr(config, "auto_map"):
        del config.auto_map


_OURS = {"AutoConfig", *(task.auto_class for task in TASKS.values())}


def complete_card(path: Path, task: str) -> None:
    """Add to a card's metadata what the Hub needs to find and run the model, where the card does not say it.

    Args:
        path: ``README.md``; nothing happens when there is none.
        task: key of `TASKS`.
    """
    if not path.is_file():
        return
    card = ModelCard.load(path)
    before = str(card)
    card.data.library_name = card.data.get("library_name") or "transformers"
    card.data.pipeline_tag = card.data.get("pipeline_tag") or TASKS[task].pipeline
    tags = list(card.data.get("tags") or [])
    card.data.tags = [*tags, *(tag for tag in TAGS if tag not in tags)]
    if str(card) != before:
        write_text_atomically(path, str(card))


def broken_download(error: OSError, name: str) -> OSError | None:
    """The error to raise when a download broke off, for which transformers blames the name; None for other errors.

    Args:
        error: from transformers' ``from_pretrained``.
        name: of the model on the Hub.
    """
    cause = error.__cause__
    if cause is None or not type(cause).__module__.startswith("httpx"):
        return None
    return OSError(
        f"The download of {name} broke off ({type(cause).__name__}: {cause}). Nothing half-read was kept: check the "
        "connection and try again."
    )
