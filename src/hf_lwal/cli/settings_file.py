"""The YAML file of ``hf-lwal train``, read as what it says: words, not what YAML 1.1 makes of them.

There ``no`` is false, ``1e-4`` a text, ``012`` ten and ``2024-01-01`` a date. A flag takes the word as it stands, as
on the command line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .flags import TRUE

if TYPE_CHECKING:
    from yaml import Node


def read_settings(path: Path) -> dict[str, Any]:
    """Return flag → word, list of words, mapping with JSON's types, or None for nothing.

    Raises:
        ValueError: the file is not YAML, holds something else, or names a flag twice.
    """
    import yaml

    try:
        node = yaml.compose(path.read_text(encoding="utf-8-sig"), yaml.SafeLoader)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"could not be read: {' '.join(str(error).split())}") from error
    if not isinstance(node, yaml.MappingNode):
        kinds = {yaml.SequenceNode: "a list", yaml.ScalarNode: "a text"}
        found = kinds.get(type(node), "nothing")
        raise ValueError(f"must hold one `flag: value` per line, but it holds {found}.")
    settings: dict[str, Any] = {}
    for key, value in node.value:
        name = str(key.value).replace("-", "_")
        if name in settings:
            raise ValueError(f"names {key.value!r} twice: leave one of them out.")
        settings[name] = _word(name, value)
    return settings


def _word(name: str, node: Node) -> Any:
    """The value of a flag."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        return _typed(node)
    if isinstance(node, yaml.SequenceNode):
        if not all(isinstance(entry, yaml.ScalarNode) for entry in node.value):
            raise ValueError(f"must hold words in the list of {name!r}, but it holds lists or mappings there.")
        return [str(entry.value) for entry in node.value]
    return None if node.tag.endswith(":null") else str(node.value)


def _typed(node: Node) -> Any:
    """What stands inside a mapping, which goes to a library as it is: numbers as JSON writes them, true and false."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        return {str(key.value): _typed(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_typed(entry) for entry in node.value]
    if node.tag.endswith(":null"):
        return None
    if node.tag.endswith(":bool"):
        return str(node.value).lower() in TRUE
    if getattr(node, "style", None) is not None:  # in quotation marks
        return node.value
    try:
        return json.loads(node.value)
    except (ValueError, RecursionError):
        return node.value
