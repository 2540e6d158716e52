"""Ways of learning from labels by name, as fields of the training arguments."""

from __future__ import annotations

import difflib
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from ..errors import CommandError
from ..settings.presets import PRESETS

METHODS: dict[str, dict[str, Any]] = {
    "one_hot": {"label_method": "one_hot"},
    "one_hot_class_means": {"label_method": "one_hot", "lwal_init": "class_means"},
    "one_hot_whitened": {"label_method": "one_hot", "lwal_init": "class_means", "lwal_initial_head": "whitened"},
    "one_hot_probe": {"label_method": "one_hot", "lwal_init": "class_means", "lwal_initial_head": "probe"},
    "lp_ft": {"label_method": "one_hot", "head_start": "regression", "lwal_init_samples": 100},
    "frozen_regression": {
        **{"label_method": "one_hot", "head_start": "regression", "lwal_init_samples": 100},
        **{"max_steps": 1, "eval_steps": 1, "learning_rate": 0.0},  # one step that changes nothing
    },
    "setfit": {"peer": "setfit"},
    "setfit_tuned": {"peer": "setfit", "peer_head": "cross_validated"},
    "one_hot_head10": {"label_method": "one_hot", "head_rate": 10.0},
    **{name: {"lwal_preset": name} for name in PRESETS if name.startswith("paper:")},
    "default": {"lwal_preset": "default"},
    "default_probe": {"lwal_preset": "default", "lwal_initial_head": "probe"},
    "default_whitened": {"lwal_preset": "default", "lwal_initial_head": "whitened", "lwal_follow_drift": 0.0},
    "default_no_offset": {"lwal_preset": "default", "lwal_offset": False},
    "default_frozen_means": {"lwal_preset": "default", "lwal_refresh_every": 0},
    "default_no_reanchor": {"lwal_preset": "default", "lwal_reanchor": False},
    "label_smoothing": {"label_method": "label_smoothing"},
    "max_entropy": {"label_method": "max_entropy"},
    "teacher_free": {"label_method": "teacher_free"},
    "lwr": {"label_method": "lwr"},
    "label_embed": {"label_method": "label_embed"},
    "static_label": {"label_method": "static_label"},
}
"""Name → fields of `LwALTrainingArguments`, and of `OWN_FIELDS`."""

OWN_FIELDS = {
    "head_rate": "multiple of the learning rate for the last linear layer",
    "head_start": "regression starts the last linear layer as a logistic regression on the frozen features",
    "peer": "library that trains instead of this one: setfit",
    "peer_head": "its head: default, or cross_validated, a regression whose strength was chosen by cross-validation",
    "embedding_dim": "length of the label vectors: a number, or a multiple of the number of labels such as 5x",
}
"""What a method can set besides training arguments."""

PEERS = ("setfit",)
HEADS = ("default", "cross_validated")
"""SetFit's own logistic regression; one whose strength was chosen by cross-validation on the same vectors."""

REFERENCE = "one_hot"
"""The method whose best accuracy the others are timed against."""


def parse_method(method: str | Mapping[str, Any]) -> dict[str, Any]:
    """Spell a method out.

    Args:
        method: a key of `METHODS`, or fields with a ``name``, and with ``like`` to start from a known method.

    Returns:
        ``name`` and all fields.

    Raises:
        CommandError: unknown method or field, or a value that makes no sense.

    >>> parse_method({"name": "mine", "like": "default", "lwal_memory": 10})
    {'name': 'mine', 'lwal_preset': 'default', 'lwal_memory': 10}
    """
    given = {"name": method} if isinstance(method, str) else dict(method)
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise CommandError(f"The method {method!r} needs a name.")
    if given and name in METHODS:
        raise CommandError(f"The method name {name!r} has a meaning already: call this one otherwise.")
    if not given and ":" in name and name not in METHODS:
        given = {"label_method": name}  # a class of the user's own
    base = given.pop("like", None if given else name)
    if base is not None and base not in METHODS:
        raise CommandError(f"Unknown method {base!r}: choose one of {', '.join(METHODS)}, or give its fields.")
    fields = {**METHODS.get(str(base), {}), **given}
    check_fields(name, fields)
    return {"name": name, **fields}


def check_fields(name: str, fields: Mapping[str, Any]) -> None:
    """Raise CommandError for a field that does not exist, or a value that makes no sense."""
    from ..objectives.own import own_objective
    from ..settings.training_args import LwALTrainingArguments, resolve

    known = [*LwALTrainingArguments.__dataclass_fields__, *OWN_FIELDS]
    for field in fields:
        if field not in known:
            close = difflib.get_close_matches(field, known, n=1)
            hint = f": did you mean {close[0]}?" if close else "."
            raise CommandError(f"Method {name!r}: there is no training argument {field!r}{hint}")
    try:
        settings = resolve(Namespace(**fields))  # it reads attributes only
        if ":" in settings.label_method:
            own_objective(settings.label_method)
    except ValueError as error:
        raise CommandError(f"Method {name!r}: {error}") from error
