"""The model card: facts about a trained model, rendered to ``README.md`` with metadata and pictures.

`render` is pure. `facts_of_trainer` and `facts_of_folder` collect what it needs, and `write_card` writes the files.
"""

from .facts import CardFacts, LabelFacts, SplitFacts, read_facts
from .files import write_card
from .gathering import facts_of_folder, facts_of_model
from .of_trainer import facts_of_trainer, write_trainer_card
from .rendering import render

__all__ = [
    "CardFacts",
    "LabelFacts",
    "SplitFacts",
    "facts_of_folder",
    "facts_of_model",
    "facts_of_trainer",
    "read_facts",
    "render",
    "write_card",
    "write_trainer_card",
]
