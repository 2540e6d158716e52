"""Labels of a model added, removed, renamed, merged and put in a data set's order, names and table together."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from .configuration_lwal import match_label_names
from .core import LabelTableModel
from .heads import active_copy
from .inference import as_list, start_values
from .label_snapshot import changing_labels
from .name_start import ENOUGH_SAMPLES, check_label_names, name_texts

logger = logging.getLogger(__name__)


class LabelEditing:
    """Edits of the labels of a trained model; `LwALPreTrainedModel` inherits them.

    Each edit changes the label table and the names in the configuration together, so that prediction, pipelines and
    what is saved agree at once. Label vectors stay as edited until the next training step derives them anew from
    class means, which are edited as well. The embedding dimension never changes. An optimizer made before an edit
    does not know the new table: make a new one (`LwALTrainer.train` does).

    Every edit raises ValueError while a training by `LwALTrainer` is in progress and inside a PEFT adapter. Other
    threads may predict meanwhile (`label_snapshot`), or edit: one edit follows the other.
    """

    # Type checkers do not let a mixin's self be the class that inherits it, hence Any.

    def add_label(
        self: Any,
        name: str,
        examples: Sequence[Any] | None = None,
        processing_class: Any = None,
        *,
        description: str | None = None,
        features: Tensor | None = None,
        offset: Tensor | None = None,
        count_name: bool | None = None,
        batch_size: int = 32,
    ) -> int:
        """Add a label from a few examples, without training: its vector is the current head's output for their mean.

        Without examples, the text model reads the name instead, or a description of the label. Beside fewer than 16
        examples the name counts as one more, where the names of the model's other labels tell theirs apart. How many
        examples there are counts, too: `LabelTable.add_label`.

        Args:
            name: the new label's name.
            examples: list of texts, images or sounds of the new class.
            processing_class: tokenizer, image processor or feature extractor.
            description: what to read in place of the name.
            features: (n, N) what `start_values` gives for the examples, in place of ``examples``.
            offset: (D,) to add to the label vector; zero by default.
            count_name: whether the name, or the description, counts as one more example; None as above, and yes for a
                description.
            batch_size: examples per forward pass.

        Returns:
            The new label's id, the number of labels before the call.

        Raises:
            ValueError: the name is taken, there are no examples, or the model has no class means to stand beside.
        """
        _refuse_taken(name, _names_to_edit(self))
        _refuse_without_means(self)
        if examples is None and features is None and processing_class is not None:
            examples, count_name = [self._text_of_label(name, description)], False
            logger.info("Label %r has no examples: it starts from the text %r alone.", name, examples[0])
        elif (description is not None or count_name) and (examples is None or processing_class is None):
            raise ValueError(
                "A name or description is read beside or in place of examples, by a tokenizer: give add_label the "
                "processing_class, and examples instead of features."
            )
        elif description is not None and count_name is False:
            raise ValueError("add_label was given a description that is not to count: leave out one of the two.")
        if (examples is None) == (features is None):
            raise ValueError(
                "add_label needs either examples with their processing_class, or features, or the processing_class "
                "alone, which lets a text model read the label's name."
            )
        if features is None:
            found: list[Any] = as_list([] if examples is None else examples, self.task)
            if found and self._name_counts(name, description, count_name, found, processing_class):
                found = [*found, self._text_of_label(name, description)]
                logger.info("The text %r counts as one more example of label %r.", found[-1], name)
            features = start_values(self, found, processing_class, batch_size)
        with changing_labels():
            names = _names_to_edit(self)
            _refuse_taken(name, names)  # again: another thread may have edited while the examples were read
            index: int = self.label_table.add_label(features.to(self.device), self.head, offset)
            _set_names(self, [*names, name])
        return index

    def _name_counts(
        self: Any,
        name: str,
        description: str | None,
        count_name: bool | None,
        examples: list[Any],
        processing_class: Any,
    ) -> bool:
        """Whether what is read of a label's name or description counts as one more example of it."""
        if count_name is not None or description is not None:
            return count_name is not False
        if self.task != "text" or len(examples) >= ENOUGH_SAMPLES or not name_texts("auto", {0: name}):
            return False
        return isinstance(examples[0], str) and bool(self.names_tell_labels(processing_class))

    def _text_of_label(self: Any, name: str, description: str | None) -> str:
        """What a text model reads to know a label without examples."""
        self._refuse_names_of_labels()
        texts = name_texts("auto" if description is None else check_label_names({name: description}), {0: name})
        if not texts:
            raise ValueError(
                f"The name {name!r} tells nothing of its label: give add_label examples or a description of it."
            )
        return texts[0]

    @changing_labels()
    def remove_label(self: Any, name: str) -> None:
        """Remove a label; the ids of those behind it move down by one.

        Raises:
            ValueError: no such label, or fewer than two would be left.
        """
        names = _names_to_edit(self)
        gone = _id_of(name, _places(names))
        kept = [index for index in range(len(names)) if index != gone]
        self.label_table.take_labels(kept)
        _set_names(self, [names[index] for index in kept])

    @changing_labels()
    def rename_label(self: Any, old: str, new: str) -> None:
        """Rename a label; nothing else changes.

        Raises:
            ValueError: no label ``old``, or ``new`` is taken.
        """
        names = _names_to_edit(self)
        index = _id_of(old, _places(names))
        _refuse_taken(new, [name for name in names if name != old])
        _set_names(self, [*names[:index], new, *names[index + 1 :]])

    @changing_labels()
    def merge_labels(self: Any, names: Sequence[str], new_name: str) -> int:
        """Make one label of several, weighted by how many rows each has seen; see `EditableRows.merge_labels`.

        Args:
            names: at least two labels.
            new_name: may be one of them.

        Returns:
            The merged label's id; it takes the place of the first of ``names`` in the table.

        Raises:
            ValueError: an unknown label, a new name that is taken, or fewer than two labels would be left.
        """
        before = _names_to_edit(self)
        places = _places(before)
        ids = [_id_of(name, places) for name in names]
        merging = set(ids)
        rest = [name for index, name in enumerate(before) if index not in merging]
        _refuse_taken(new_name, rest)
        _refuse_kept_head(self, "merged")
        if not rest:
            raise ValueError("A classifier needs at least two labels, but merging these would leave one.")
        index = self.label_table.merge_labels(ids)
        _set_names(self, [*rest[:index], new_name, *rest[index:]])
        return index

    @changing_labels()
    def align(self: Any, labels: Any) -> None:
        """Give the labels the ids that a data set uses, by their names.

        Args:
            labels: ``label2id``, a list of names, or a ``ClassLabel`` feature such as ``dataset.features["label"]``.

        Raises:
            ValueError: the data set's names are not exactly the model's; both are listed.
        """
        names = _names_to_edit(self)
        wanted = _wanted_names(labels)
        if set(wanted) != set(names):
            raise ValueError(
                f"The labels do not match: only the model has {_listed(set(names) - set(wanted))}, only the data has "
                f"{_listed(set(wanted) - set(names))}. Use rename_label, add_label or remove_label first."
            )
        places = _places(names)
        self.label_table.take_labels([places[name] for name in wanted])
        _set_names(self, wanted)


def _names_to_edit(model: LabelTableModel) -> list[str]:
    """Names of the labels by id, of a model that can be edited now and whose label vectors are up to date."""
    if active_copy(model.classifier) is not model.classifier or getattr(model, "_hf_peft_config_loaded", False):
        raise ValueError(
            "An adapter holds a copy of this model's label table, and would not fit the model's other copy after an "
            "edit: edit the labels before adding the adapter, or after merge_and_unload()."
        )
    if model.label_tracking == "trainer":
        raise ValueError(
            "A training is in progress, whose optimizer holds the label table: edit the labels before or after it."
        )
    model.bring_labels_up_to_date()
    return list(model.config.label_names.values())


def _set_names(model: LabelTableModel, names: list[str]) -> None:
    """Write the names of an edited table; the model forgets what it had derived from the table before."""
    config = model.config
    if len(names) != config.num_labels and config.initial_num_labels is None:
        config.initial_num_labels = config.num_labels
    config.id2label = dict(enumerate(names))
    config.label2id = {name: index for index, name in enumerate(names)}
    model.tracker.forget()
    if any(parameter.grad is not None for parameter in model.parameters()):
        logger.warning(
            "The labels were edited while gradients of a training are there: an optimizer made before this does not "
            "train the new label table. Make a new one before training goes on."
        )


def _places(names: Sequence[str]) -> dict[str, int]:
    """Name to id, made once for an edit: to look for every name in a list takes minutes with 100,000 labels."""
    return {name: index for index, name in enumerate(names)}


def _id_of(name: str, places: Mapping[str, int]) -> int:
    if not isinstance(name, str) or name not in places:
        raise ValueError(f"There is no label {name!r}; the model has {_listed(places)}.")
    return places[name]


def _refuse_taken(name: str, others: Sequence[str]) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"A label's name must be a text that is not empty, but it is {name!r}.")
    if name in others:
        raise ValueError(f"There is already a label {name!r}: choose another name, or remove_label({name!r}) first.")


def _refuse_without_means(model: LabelTableModel) -> None:
    if not bool(model.label_table.seen.any()):
        raise ValueError(
            "The label table has no class means yet, so a new label would have nothing to stand beside: train the "
            "model or call initialize_labels(dataloader) first."
        )
    _refuse_kept_head(model, "added")


def _refuse_kept_head(model: LabelTableModel, what: str) -> None:
    """A kept head's label vectors lie far outside the embeddings: a mean beside them would win every row."""
    if model.config.initial_labels == "one_hot" and model.config.initial_label_norm > 1.0:
        raise ValueError(
            f"This model kept its classifier's head (keep_head=True), whose label vectors are no class means: labels "
            f"cannot be {what}. Load the checkpoint without keep_head and train it."
        )


def _wanted_names(labels: Any) -> list[str]:
    """Names by id of a ``label2id``, a list or a ``ClassLabel``."""
    if isinstance(labels, Mapping):
        return list((match_label_names(None, dict(labels))[0] or {}).values())
    names = getattr(labels, "names", labels)
    if names is None or isinstance(names, str):
        raise ValueError(f"labels must be label2id, a list of names or a ClassLabel feature, but are {labels!r}.")
    return list((match_label_names(dict(enumerate(names)), None)[0] or {}).values())


def _listed(names: Any) -> str:
    shown = sorted(names)
    return (", ".join(map(repr, shown[:10])) + (", …" if len(shown) > 10 else "")) or "none"
