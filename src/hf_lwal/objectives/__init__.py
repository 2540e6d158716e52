"""Label-learning methods behind one interface: a literal dict from ``label_method`` to what builds it."""

from __future__ import annotations

from collections.abc import Callable

from ..training_args import LwALSettings
from .base import LossContext, Objective, ObjectiveLoss
from .lwal import LwAL
from .one_hot import OneHot

OBJECTIVES: dict[str, Callable[[LwALSettings], Objective]] = {
    "lwal": lambda settings: LwAL(scale=settings.scale),
    "one_hot": lambda settings: OneHot(init=settings.init),
}


def build_objective(settings: LwALSettings) -> Objective:
    """Build the objective that ``label_method`` names.

    Raises:
        ValueError: unknown name; the message lists the known ones.
    """
    if settings.label_method not in OBJECTIVES:
        raise ValueError(
            f"Unknown label_method {settings.label_method!r}: choose one of {', '.join(sorted(OBJECTIVES))}."
        )
    return OBJECTIVES[settings.label_method](settings)


__all__ = ["OBJECTIVES", "LossContext", "LwAL", "Objective", "ObjectiveLoss", "OneHot", "build_objective"]
