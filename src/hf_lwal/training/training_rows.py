"""The training rows: numbered, or a stream whose first rows are read twice; and passes over so many of each class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset

from ..data.labels import balanced_weights, ids_of, label_column, rows_per_class, scanned_rows
from ..data.sample_ids import NumberedCollator, NumberedRows, RowWeights
from ..data.start_budget import batches_by_length
from ..data.streams import KeptStream
from ..modeling.distributed import broadcast_rows, rows_of_ranks, world_size
from ..modeling.functional import IGNORE_INDEX
from ..modeling.start import StartSamples, batch_norms, collect_any, finite_samples, own_random_state
from .transformers_internals import HookedTrainer, TrainerPart

Batches = list[Any] | DataLoader[Any]


class TrainingRows(TrainerPart):
    """Reads training rows for the start pass and for refreshes, beside the loader of the training itself."""

    _stream: KeptStream | None = None

    def __init__(self, trainer: HookedTrainer) -> None:
        super().__init__(trainer)
        self.weights = RowWeights()

    def rows_to_load(self, dataset: Any, collator: Any, description: str, training: bool) -> tuple[Any, Any]:
        """Remember the first rows of a stream; number rows for objectives that keep something of each."""
        trainer, objective = self.trainer, self.trainer.label_objective
        trainer.data_collator.names = trainer.label_names_by_id()  # scripts name the labels after building the trainer
        judged = trainer.lwal_settings.noisy_labels != "keep"
        if training and judged and _is_stream(dataset):
            raise ValueError(
                f"lwal_noisy_labels={trainer.lwal_settings.noisy_labels!r} judges all training rows before the first "
                f"step, but {type(dataset).__name__} is a stream, whose rows have no number: use a map-style data "
                "set, with a length and an index, or lwal_noisy_labels='keep'."
            )
        numbered = objective.needs_sample_ids or judged
        if training and isinstance(dataset, IterableDataset) and not numbered:
            self._stream = KeptStream(dataset)
            return self._stream, collator
        if not training or not numbered:
            return dataset, collator
        if _is_stream(dataset):
            raise ValueError(
                f"{type(objective).__name__} keeps something of every training row, but "
                f"{type(dataset).__name__} is a stream, whose rows have no number: use a map-style data set, with a "
                "length and an index."
            )
        if objective.needs_sample_ids:
            objective.allocate(len(dataset), len(trainer.label_names_by_id()))
        rows, collator = trainer.with_columns_of_model(dataset, collator, description)
        return NumberedRows(rows), NumberedCollator(collator)

    def of_each_class(self, per_class: int) -> Batches:
        """Collated batches of up to ``per_class`` training rows per class, the same on every rank.

        Those of a map-style data set are read anew each time, since thousands of pictures would fill the memory.
        """
        trainer, args = self.trainer, self.trainer.args
        dataset, collator = trainer.with_columns_of_model(trainer.train_dataset, trainer.data_collator, "training")
        num_labels = len(trainer.label_names_by_id())
        with own_random_state():
            if _is_stream(dataset):
                rows = (KeptStream(dataset) if self._stream is None else self._stream).first(per_class, num_labels)
                size = args.eval_batch_size
                return [collator(rows[start : start + size]) for start in range(0, len(rows), size)]
            labels = self.label_column()
            if labels is None:
                kept = self.weights.kept(len(dataset))
                indices = [
                    kept[place] for place in scanned_rows(Subset(dataset, kept), per_class, num_labels, args.seed)
                ]
            else:
                indices = rows_per_class(labels, per_class, args.seed)
            return self._batches_of(dataset, collator, indices)

    def of_some_classes(self, most: int) -> Batches:
        """Collated batches of at least two rows per class, of as many random classes as there are rows for.

        Args:
            most: rows in all.

        Returns:
            None of a stream, and of data sets whose labels are not known without reading all of them.
        """
        trainer, args = self.trainer, self.trainer.args
        labels = None if _is_stream(trainer.train_dataset) else self.label_column()
        if labels is None:
            return []
        dataset, collator = trainer.with_columns_of_model(trainer.train_dataset, trainer.data_collator, "training")
        known = np.unique(labels)
        known = known if labels.dtype.kind in "OUS" else known[known != IGNORE_INDEX]
        generator = np.random.default_rng(args.seed)
        classes = generator.permutation(known)[: max(most // 2, 1)]
        rows = np.flatnonzero(np.isin(labels, classes))
        indices = rows[rows_per_class(labels[rows], max(most // len(classes), 2), args.seed)]
        with own_random_state():
            return self._batches_of(dataset, collator, indices.tolist())

    def all(self) -> Batches:
        """Collated batches of all rows of a map-style data set."""
        trainer = self.trainer
        dataset, collator = trainer.with_columns_of_model(trainer.train_dataset, trainer.data_collator, "training")
        return self._batches_of(dataset, collator, range(len(dataset)))

    def _batches_of(self, dataset: Any, collator: Any, indices: Sequence[int]) -> Batches:
        parts: Any = batches_by_length(dataset, indices, self.trainer.args.eval_batch_size)
        return DataLoader(Subset(dataset, indices), batch_sampler=parts, collate_fn=collator)

    def label_column(self) -> np.ndarray | None:
        """Labels (N,), where they can be read at once; of rows that do not count, -100."""
        labels = label_column(self.trainer.train_dataset)
        if labels is None or self.weights.values is None:
            return labels
        return np.where(self.weights.values >= 0.5, ids_of(labels, self.trainer.label_names_by_id()), IGNORE_INDEX)

    def balanced_weights(self) -> Tensor | None:
        """Class weights (C,) by the numbers of the rows that count, where labels can be read at once."""
        names, labels = self.trainer.label_names_by_id(), self.label_column()
        return (
            None
            if labels is None
            else balanced_weights(ids_of(labels, names), len(names)).to(self.trainer.args.device)
        )

    def collect(
        self,
        batches: Batches,
        description: str,
        as_in_training: bool = False,
        values_of: Callable[[dict[str, Any]], Tensor] | None = None,
    ) -> StartSamples:
        """What class means are taken of for these batches, the same on every rank, each of which reads its share.

        Args:
            batches: from `of_each_class`.
            description: of the progress bar.
            as_in_training: BatchNorm layers normalise by the statistics of batches.
            values_of: what to collect instead.
        """
        trainer, device = self.trainer, self.trainer.args.device
        model = trainer.core_model
        values_of = values_of or trainer.label_objective.start_values(model)
        show = not trainer.args.disable_tqdm and trainer.is_local_process_zero()
        samples = StartSamples(torch.zeros(0, 0, device=device), torch.zeros(0, dtype=torch.int64, device=device), 0.0)
        shares = self._shares_of_ranks(batches)
        mine = batches
        if len(shares) > 1 and isinstance(batches, DataLoader):
            mine = _with_batches(batches, shares[trainer.args.process_index])
        if len(batches):  # a rank whose share of a stream is empty takes the rows of the first rank
            with trainer.compute_loss_context_manager():
                samples = collect_any(model, values_of, mine, device, show, description, as_in_training)
            if isinstance(batches, DataLoader):
                order = torch.tensor([row for share in shares for batch in share for row in batch], device=device)
                gather = rows_of_ranks if len(shares) > 1 else lambda rows: [rows]
                found = [torch.cat(gather(part))[order.argsort()] for part in samples[:2]]
                samples = StartSamples(found[0], found[1], samples.seconds)
            samples = finite_samples(samples)
        # Ranks on unlike hardware, with unlike seeds or unlike shares of a stream must not start from unlike tables.
        return StartSamples(broadcast_rows(samples.values), broadcast_rows(samples.labels), samples.seconds)

    def _shares_of_ranks(self, batches: Batches) -> list[list[list[int]]]:
        """The batches that each rank reads, as positions of their rows; of one share alone each rank reads all.

        Statistics of BatchNorm layers are those of all batches, and where ranks hold parts of the weights, all of
        them must run as often.
        """
        trainer = self.trainer
        parts: Any = batches.batch_sampler if isinstance(batches, DataLoader) else []
        if trainer.shards_weights or batch_norms(trainer.core_model) or len(parts) < world_size():
            return [list(parts)]
        return [list(parts[rank :: world_size()]) for rank in range(world_size())]


def _is_stream(dataset: Any) -> bool:
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__")


def _with_batches(loader: DataLoader[Any], parts: Any) -> DataLoader[Any]:
    """The loader with other batches of the same rows."""
    return DataLoader(loader.dataset, batch_sampler=parts, collate_fn=loader.collate_fn)
