"""The label table and the names of its labels at one moment, for calls beside which other threads edit the labels."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .core import LabelTableModel
from .label_table import LabelTable

_changing = threading.RLock()  # of all models, which are copied and pickled, as a lock of their own could not be


@contextmanager
def changing_labels() -> Iterator[None]:
    """Table and names change in here, so that no other thread sees the one without the other."""
    with _changing:
        yield


def labels_of_now(model: LabelTableModel) -> tuple[LabelTable, dict[int, str]]:
    """The label table and the names by id, which later edits leave as they are: these replace tensors and names.

    The tensors are not copied, so that a training, which writes into them, is seen.
    """
    with _changing:
        model.bring_labels_up_to_date()
        model.label_table.has_no_bias()  # asked once for all copies
        table = copy.copy(model.label_table)
        table._buffers, table._parameters = dict(table._buffers), dict(table._parameters)
        return table, model.config.label_names
