"""Time and memory of what looks at all labels, from a thousand of them to a hundred thousand.

    python benchmarks/large_label_sets.py --part start --labels 100000 --hidden 128 --rows-per-class 5
    python benchmarks/large_label_sets.py --part table --labels 100000
    python benchmarks/large_label_sets.py --part pictures --labels 300 1000 3000

A step of training stands in ``step_time.py --model many-labels``.
The features are class centres plus noise, so no backbone runs: what is left is the work of this library. Each
measurement has a process of its own; memory is the peak above what the features and the model take.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, PreTrainedTokenizerFast

from hf_lwal import AutoModelForLwALClassification, plots
from hf_lwal.modeling.start import StartSamples

NOISE = 0.5
"""Standard deviation of features around their class centre, whose own is 1."""
FEATURES_PER_BATCH = 4096


class Measurement(NamedTuple):
    """What one call took."""

    seconds: float
    cpu_seconds: float
    gibibytes: float


def measured(call: Callable[[], Any]) -> Measurement:
    """Run a call in this process, which has not done anything as large before."""
    before = resident_bytes()
    began, cpu = time.perf_counter(), time.process_time()
    call()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Measurement(seconds, cpu, (peak - before) / 2**30)


def resident_bytes() -> int:
    """Memory of this process now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def features(num_labels: int, hidden: int, rows_per_class: int) -> StartSamples:
    """Rows of all classes in random order, as a start pass would have them."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(num_labels, hidden, generator=generator)
    labels = torch.arange(num_labels).repeat(rows_per_class)[
        torch.randperm(num_labels * rows_per_class, generator=generator)
    ]
    values = torch.empty(len(labels), hidden).normal_(0.0, NOISE, generator=generator)
    for part, ids in zip(values.split(FEATURES_PER_BATCH), labels.split(FEATURES_PER_BATCH), strict=True):
        part += centres[ids]
    return StartSamples(values, labels, 0.0)


def text_model(num_labels: int, hidden: int) -> Any:
    """A text classifier with a label table, with next to no backbone."""
    names = {index: f"name {index}" for index in range(num_labels)}
    config = BertConfig(
        vocab_size=64,
        hidden_size=hidden,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=hidden,
        id2label=names,
        label2id={name: index for index, name in names.items()},
    )
    return AutoModelForLwALClassification.from_config(config)


def batches_of(samples: StartSamples) -> Iterator[dict[str, Any]]:
    """The features as batches of a data loader."""
    for start in range(0, len(samples.labels), FEATURES_PER_BATCH):
        part = slice(start, start + FEATURES_PER_BATCH)
        yield {"values": samples.values[part], "labels": samples.labels[part]}


def start(num_labels: int, hidden: int, rows_per_class: int) -> Measurement:
    """Head, class means and scale from features."""
    samples, model = features(num_labels, hidden, rows_per_class), text_model(num_labels, hidden)
    return measured(lambda: model.start_from(samples, learning_rate=2e-5))


def rejection(num_labels: int, hidden: int, rows_per_class: int) -> Measurement:
    """Radii of all labels from features."""
    samples, model = features(num_labels, hidden, rows_per_class), text_model(num_labels, hidden)
    model.label_table.start(samples.values, samples.labels, model.head)
    model.start_values = lambda inputs: inputs["values"]
    return measured(lambda: model.fit_rejection(batches_of(samples), progress=False))


def filled(num_labels: int, hidden: int) -> Any:
    """A model all of whose labels have means, in evaluation mode."""
    samples, model = features(num_labels, hidden, 1), text_model(num_labels, hidden)
    model.label_table.start(samples.values, samples.labels, model.head)
    return model.eval()


def tokenizer() -> Any:
    """A tokenizer of 60 words."""
    words = {word: index for index, word in enumerate(["[PAD]", "[UNK]", *(f"w{index}" for index in range(60))])}
    splitting = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    splitting.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=splitting,
        pad_token="[PAD]",
        unk_token="[UNK]",
        model_max_length=32,
    )


TEXTS = [f"w{index} w{index + 1}" for index in range(50)]


def saving(num_labels: int, hidden: int, _: int) -> Measurement:
    """Weights, configuration and ``label_table.json``."""
    model = filled(num_labels, hidden)
    with tempfile.TemporaryDirectory() as folder:
        return measured(lambda: model.save_pretrained(folder))


def loading(num_labels: int, hidden: int, _: int) -> Measurement:
    """What was saved."""
    with tempfile.TemporaryDirectory() as folder:
        filled(num_labels, hidden).save_pretrained(folder)
        return measured(lambda: AutoModelForLwALClassification.from_pretrained(folder))


def predicting(num_labels: int, hidden: int, _: int) -> Measurement:
    """Names of the nearest labels of 50 texts."""
    model, words = filled(num_labels, hidden), tokenizer()
    return measured(lambda: model.predict(TEXTS, words, top_k=3))


def adding(num_labels: int, hidden: int, _: int) -> Measurement:
    """A label from three texts, another renamed, and one removed."""
    model, words = filled(num_labels, hidden), tokenizer()

    def edit() -> None:
        model.add_label("a new one", TEXTS[:3], words)
        model.rename_label("name 7", "another")
        model.remove_label("name 8")

    return measured(edit)


def folding(num_labels: int, hidden: int, _: int) -> Measurement:
    """A stock classifier, compared on random inputs."""
    model = filled(num_labels, hidden)
    return measured(model.fold)


PICTURES = ("plot_label_distances", "plot_dendrogram", "plot_label_map")


def drawing(picture: str, num_labels: int, hidden: int, _: int) -> Measurement:
    """One of the pictures of labels."""
    vectors = features(num_labels, hidden, 1).values
    names = [f"name {index}" for index in range(num_labels)]
    with tempfile.TemporaryDirectory() as folder:
        return measured(lambda: getattr(plots, picture)(vectors, names, f"{folder}/picture.png"))


PARTS: dict[str, dict[str, Callable[[int, int, int], Measurement]]] = {
    "start": {"start_from": start, "fit_rejection": rejection},
    "table": {"save": saving, "load": loading, "predict": predicting, "edit": adding, "fold": folding},
    "pictures": {name: partial(drawing, name) for name in PICTURES},
}


def main() -> None:
    """Print a line per call and number of labels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, default="start")
    parser.add_argument("--labels", type=int, nargs="+", default=[1000, 3000, 10_000, 100_000])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rows-per-class", type=int, default=5)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    for num_labels in args.labels:
        for name, function in PARTS[args.part].items():
            with context.Pool(1) as pool:
                found = pool.apply(function, (num_labels, args.hidden, args.rows_per_class))
            print(
                f"{name:14} {num_labels:7} labels: {found.seconds:6.1f} s, {found.cpu_seconds:6.1f} CPU s, "
                f"{found.gibibytes:5.2f} GiB",
                flush=True,
            )


if __name__ == "__main__":
    main()
