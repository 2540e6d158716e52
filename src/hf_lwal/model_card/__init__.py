"""The model card: facts about a trained model, rendered to ``README.md`` with metadata and pictures.

`render` is pure. `facts_of_trainer` and `facts_of_folder` collect what it needs, and `write_card` writes the files.
"""

from .facts import CardFacts, LabelFacts, Sample, SplitFacts, read_facts
from .files import write_card
from .gathering import facts_of_folder, facts_of_model
from .of_trainer import facts_of_trainer, write_trainer_card
from .rendering import render
from .samples import FILE_NAME as SAMPLE_FILE
from .samples import Reader, sample_rows, with_answers
from .training import split_facts

__all__ = [
    "SAMPLE_FILE",
    "CardFacts",
    "LabelFacts",
    "Reader",
    "Sample",
    "SplitFacts",
    "facts_of_folder",
    "facts_of_model",
    "facts_of_trainer",
    "read_facts",
    "render",
    "sample_rows",
    "split_facts",
    "with_answers",
    "write_card",
    "write_trainer_card",
]
