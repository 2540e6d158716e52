"""A method of the user's own by the name of its class, ``module:Class``, for flags and files that cannot hold one."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from .base import Objective


def own_objective(name: str) -> Objective:
    """Build the objective that a name such as ``my_methods:SquaredError`` means.

    Args:
        name: module, found on Python's path or in the working folder, and a class in it that takes no arguments.

    Raises:
        ValueError: there is no such module or class, or it is no `Objective`.
    """
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that it hides nothing
    try:
        found = getattr(import_module(module), attribute, None)
    except (ImportError, ValueError) as error:  # the second for an empty name
        raise ValueError(f"label_method {name!r}: {module!r} cannot be imported ({error}).") from error
    if found is None:
        raise ValueError(f"label_method {name!r}: the module {module!r} has no {attribute!r}.")
    if not (isinstance(found, type) and issubclass(found, Objective)):
        raise ValueError(f"label_method {name!r}: {attribute} is no subclass of hf_lwal.objectives.Objective.")
    try:
        return found()
    except TypeError as error:
        raise ValueError(
            f"label_method {name!r}: {attribute} must be built without arguments ({error}); give them defaults, or "
            "pass objective=… to LwALTrainer."
        ) from error
