"""Label-learning methods behind one interface: a literal dict from ``label_method`` to what builds it."""

from __future__ import annotations

from collections.abc import Callable

from ..settings.training_args import LwALSettings
from .base import LossContext, Objective, ObjectiveLoss
from .label_embed import LabelEmbedding
from .label_smoothing import LabelSmoothing
from .lwal import LwAL
from .lwr import LearningWithRetrospection
from .max_entropy import MaxEntropy
from .one_hot import OneHot
from .own import own_objective
from .state import average_gradients, has_state, load_objective, save_objective
from .static_label import StaticLabel
from .stock import StockObjective
from .teacher_free import TeacherFree

OBJECTIVES: dict[str, Callable[[LwALSettings], Objective]] = {
    "label_embed": lambda settings: LabelEmbedding(**renamed(settings.of_the_method, weight="beta")),
    "label_smoothing": lambda settings: LabelSmoothing(),
    "lwal": lambda settings: LwAL(scale=settings.scale),
    "lwr": lambda settings: LearningWithRetrospection(
        settings.lwr_every, **renamed(settings.of_the_method, weight="beta")
    ),
    "max_entropy": lambda settings: MaxEntropy(beta=0.1 if settings.weight is None else settings.weight),
    "one_hot": lambda settings: OneHot(init=settings.init, initial_head=settings.initial_head),
    "static_label": lambda settings: StaticLabel(settings.static_model, scale=settings.scale or 1.0),
    "teacher_free": lambda settings: TeacherFree(**renamed(settings.of_the_method, weight="alpha")),
}


def renamed(values: dict[str, float], **names: str) -> dict[str, float]:
    """The same values under the names that a method's own literature uses."""
    return {names.get(name, name): value for name, value in values.items()}


def build_objective(settings: LwALSettings) -> Objective:
    """Build the objective that ``label_method`` names; ``module:Class`` names one of the user's own.

    Raises:
        ValueError: unknown name; the message lists the known ones.
    """
    if ":" in settings.label_method:
        return own_objective(settings.label_method)
    if settings.label_method not in OBJECTIVES:
        raise ValueError(
            f"Unknown label_method {settings.label_method!r}: choose one of {', '.join(sorted(OBJECTIVES))}, or name "
            "a class of your own as module:Class."
        )
    return OBJECTIVES[settings.label_method](settings)


__all__ = [
    "OBJECTIVES",
    "LabelEmbedding",
    "LabelSmoothing",
    "LearningWithRetrospection",
    "LossContext",
    "LwAL",
    "MaxEntropy",
    "Objective",
    "ObjectiveLoss",
    "OneHot",
    "StaticLabel",
    "StockObjective",
    "TeacherFree",
    "average_gradients",
    "build_objective",
    "has_state",
    "load_objective",
    "save_objective",
]
