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
        value = getattr(node, "value", None)
        if attr.docstring is not None or not (isinstance(value, ast.Call) and ast.unparse(value.func) == "field"):
            return
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in value.keywords}
        text = ast.literal_eval(given.get("metadata", "{}")).get("help")
        if text is not None:
            attr.docstring = Docstring(text, lineno=attr.lineno, parent=attr)
            attr.value = given.get("default")  # what a reader of the signature wants to see, not the call of field()
