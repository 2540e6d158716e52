"""Streams that can be read once: the start pass must take no row from the training."""

import pytest
import torch
from datasets import IterableDataset
from tiny_models import tiny_config
from toy import separable_text

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments

ROWS = [{**row, "number": index} for index, row in enumerate(separable_text(4, 64))]


class OneIterator(torch.utils.data.IterableDataset):
    """`iter` gives the same generator again and again."""

    def __init__(self):
        self.rows = iter(ROWS)

    def __iter__(self):
        return self.rows


class Queue(OneIterator):
    """`iter` gives a new generator, but over what is left."""

    def __iter__(self):
        while (row := next(self.rows, None)) is not None:
            yield row


class Again(torch.utils.data.IterableDataset):
    """Can be read again, and shares its rows among workers."""

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        yield from ROWS if worker is None else ROWS[worker.id :: worker.num_workers]


def seen(tmp_path, stream, steps=8, size=8, **options):
    """Numbers of the rows that the training got."""
    numbers = []

    class Noting(LwALTrainer):
        def training_step(self, model, inputs, *args, **kwargs):
            numbers.extend(inputs.pop("number").tolist())
            return super().training_step(model, inputs, *args, **kwargs)

    trainer = Noting(
        AutoModelForLwALClassification.from_config(tiny_config("bert", num_labels=4)),
        args=LwALTrainingArguments(
            str(tmp_path), max_steps=steps, per_device_train_batch_size=size, report_to="none", use_cpu=True,
            disable_tqdm=True, save_strategy="no", remove_unused_columns=False, **options,
        ),
        train_dataset=stream,
    )  # fmt: skip
    trainer.label_objective.start_values = lambda model: (
        lambda batch: model.start_values({name: value for name, value in batch.items() if name != "number"})
    )
    trainer.train()
    assert bool(trainer.model.label_table.seen.all())
    return numbers


STREAMS = {
    "generator": OneIterator,
    "queue": Queue,
    "read again": Again,
    "datasets": lambda: IterableDataset.from_generator(lambda: iter(ROWS)),
}


@pytest.mark.parametrize("name", STREAMS)
def test_every_row_once_and_in_order(tmp_path, name):
    """The first 2,000 rows, here all, were gone; a stream of just the right length ended the training."""
    assert seen(tmp_path, STREAMS[name]()) == list(range(64))


@pytest.mark.parametrize("name", ["generator", "queue", "read again"])
def test_with_a_worker(tmp_path, name):
    assert sorted(seen(tmp_path, STREAMS[name](), dataloader_num_workers=1)) == list(range(64))


def test_workers_share_a_stream_that_can_be_read_again(tmp_path):
    assert sorted(seen(tmp_path, Again(), dataloader_num_workers=2)) == list(range(64))


def test_a_second_epoch_reads_the_stream_anew(tmp_path):
    assert seen(tmp_path, Again(), steps=16) == list(range(64)) * 2
