"""Probabilities that say how often they are right: one temperature, fitted to rows with labels after training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .labelled_inputs import labelled_values, of_all_ranks
from .linear_fold import fit_label_temperature
from .row_blocks import some_of


class Calibration:
    """A temperature for the probabilities; `LwALPreTrainedModel` inherits it."""

    # Type checkers do not let a mixin's self be the class that inherits it, hence Any.

    @torch.no_grad()
    def calibrate(
        self: Any,
        inputs: Iterable[dict[str, Any]] | Sequence[Any],
        processing_class: Any = None,
        labels: Sequence[int | str] | None = None,
        *,
        batch_size: int = 32,
        progress: bool = True,
    ) -> float:
        """Divide the logits by the temperature that fits these rows best (`fit_label_temperature`).

        The label table's scale takes it up, so that it is saved, folded and exported with the model. Predictions do
        not change. A training that goes on moves the scale again: calibrate after it.

        Give rows that the model was not trained on. Where the same rows chose the best checkpoint, probabilities come
        out a little too sure. With several processes all of them must call this, each with all rows in the same order
        or each with its own part of them.

        Args:
            inputs: batches (dicts with "labels"), as of a data loader; or, with ``processing_class`` and ``labels``,
                a list of texts, images or sounds.
            processing_class: tokenizer, image processor or feature extractor.
            labels: id or name of each input.
            batch_size: inputs per forward pass, where these are not batches yet.
            progress: show a progress bar.

        Returns:
            The temperature: above 1 where probabilities were too sure.

        Raises:
            ValueError: no rows, a label that is not the model's, or labels that the model finds no better than chance.
        """
        self.bring_labels_up_to_date()
        embeddings, ids, _ = of_all_ranks(
            *labelled_values(self, self.embed, inputs, processing_class, labels, batch_size, progress, "Calibration")
        )
        table = self.label_table
        usable = table.seen | (~table.seen.any() if table.mask_unseen else torch.ones_like(table.seen))  # (C,)
        rows = some_of(usable[ids].nonzero()[:, 0], int(usable.sum()))
        if not len(rows) or int(usable.sum()) < 2:
            raise ValueError(
                "A temperature needs rows with a label that the model was trained on, and at least two such labels: "
                f"{len(rows)} of {len(ids)} rows have one."
            )
        places = usable.cumsum(0) - 1  # (C,) of the labels that can be predicted
        logits = table(embeddings[rows])[:, usable].cpu().double()  # not every device has float64
        temperature = fit_label_temperature(logits, places[ids[rows]].cpu())
        table.set_scale(float(table.scale) / temperature)
        return temperature
