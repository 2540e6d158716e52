"""Extension of griffe: the help text of a dataclass field becomes the field's documentation.

The fields of ``LwALTrainingArguments`` explain themselves in ``metadata={"help": …}``, which the command line prints;
the reference shows the same words.
"""

import ast
from typing import Any

from griffe import Attribute, Docstring, Extension


class FieldHelp(Extension):
    """Documents attributes assigned from ``field(…, metadata={"help": "…"})``."""

    def on_attribute_instance(self, *, node: Any, attr: Attribute, **kwargs: Any) -> None:
        """Take the help text where the attribute has no docstring of its own."""
        text = help_of(getattr(node, "value", None))
        if text is not None and attr.docstring is None:
            attr.docstring = Docstring(text, lineno=attr.lineno, parent=attr)
            attr.value = None  # the default is in the text; the whole call of field() would only hide it


def help_of(value: ast.expr | None) -> str | None:
    """Help text of a call of ``field``, or None."""
    if not (isinstance(value, ast.Call) and ast.unparse(value.func) == "field"):
        return None
    metadata = next((keyword.value for keyword in value.keywords if keyword.arg == "metadata"), None)
    found = ast.literal_eval(metadata) if metadata is not None else {}
    return found.get("help")
