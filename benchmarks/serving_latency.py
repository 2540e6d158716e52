"""Time of one call in the forms in which a model is served, side by side in one process, as ratios to the stock model.

    python benchmarks/serving_latency.py --output serving_latency.jsonl     # MiniLM, 150 labels
    python benchmarks/serving_latency.py --tiny --rounds 3                  # a model of no use, in seconds

stock: transformers' own class for the checkpoint. lwal: the model with its label table. folded: the plain classifier
that `fold` makes of it. onnx: the folded one in ONNX Runtime. All have the same encoder and get the same token ids,
ready made. In every round each of them answers the same number of calls, in an order that turns with the rounds; a
ratio is the median over rounds of the time beside the stock model's in the same round.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, BertConfig, PreTrainedModel, set_seed

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.bench.comparison import embedded_model_path, quiet
from hf_lwal.bench.results import append_line
from hf_lwal.bench.training import machine
from hf_lwal.modeling.export import fold_with_report
from hf_lwal.modeling.onnx_export import FILE_NAME, export_onnx

FORMS = ("stock", "lwal", "folded", "onnx")
ROWS_PER_LABEL = 2
Batch = dict[str, Tensor]
Call = Callable[[], Any]


def batch_of(rows: int, tokens: int, vocabulary: int) -> Batch:
    """Random token ids, none of them padding."""
    ids = torch.randint(vocabulary // 2, vocabulary, (rows, tokens))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}


def models_of(name: str | None, labels: int, tokens: int) -> dict[str, PreTrainedModel]:
    """The stock model, one with a label table that has seen every label, and its fold; tiny ones without a name."""
    if name is None:
        config = BertConfig(
            vocab_size=64,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            num_labels=labels,
        )
        stock = AutoModelForSequenceClassification.from_config(config)
        lwal = AutoModelForLwALClassification.from_config(config)
    else:
        with quiet():
            stock = AutoModelForSequenceClassification.from_pretrained(name, num_labels=labels, dtype=torch.float32)
            lwal = AutoModelForLwALClassification.from_pretrained(name, num_labels=labels, dtype=torch.float32)
    ids = torch.arange(labels).repeat(ROWS_PER_LABEL)
    rows = batch_of(len(ids), tokens, stock.config.vocab_size)
    rows["labels"] = ids
    parts = [{key: value[first : first + 32] for key, value in rows.items()} for first in range(0, len(ids), 32)]
    lwal.eval().initialize_labels(parts, progress=False)
    return {"stock": stock.eval(), "lwal": lwal, "folded": fold_with_report(lwal)[0]}


def torch_call(model: PreTrainedModel, batch: Batch) -> Call:
    """A call of a model in PyTorch."""

    @torch.inference_mode()
    def call() -> Tensor:
        return model(**batch).logits

    return call


def onnx_session(model: PreTrainedModel, batch: Batch, folder: str, threads: int) -> Any:
    """ONNX Runtime with the graph of a folded model, on the CPU."""
    import onnxruntime

    export_onnx(model, folder, batch)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(Path(folder) / FILE_NAME, options, providers=["CPUExecutionProvider"])


def onnx_call(session: Any, batch: Batch) -> Call:
    """A call of a graph."""
    inputs = {given.name: batch[given.name].numpy().astype(np.int64) for given in session.get_inputs()}
    return lambda: session.run(["logits"], inputs)


def seconds_of(call: Call, calls: int) -> float:
    """Mean seconds of a call."""
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - started) / calls


def interleaved(calls: dict[str, Call], rounds: int, repetitions: int) -> dict[str, list[float]]:
    """Seconds of a call of each form, by round; every round begins with another form."""
    seconds: dict[str, list[float]] = {form: [] for form in calls}
    for call in calls.values():
        seconds_of(call, repetitions)  # the first calls set up more than later ones
    for number in range(rounds):
        first = number % len(calls)
        for form in [*calls][first:] + [*calls][:first]:
            seconds[form].append(seconds_of(calls[form], repetitions))
    return seconds


def summary(form: str, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Median milliseconds of a form, and its ratio to the stock model with quartiles over the rounds."""
    ratios = [own / stock for own, stock in zip(seconds[form], seconds["stock"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {
        "form": form,
        "median_ms": round(1e3 * statistics.median(seconds[form]), 4),
        "ratio_to_stock": round(middle, 4),
        "ratio_quartiles": [round(low, 4), round(high, 4)],
    }


def main() -> None:
    """Parse the arguments, measure every batch size, print a table and append a line of JSON for each of its rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", help="a text model's folder or name; default: the MiniLM of the quickstart")
    model.add_argument("--tiny", action="store_true", help="a tiny model with random weights, to try this out")
    parser.add_argument("--forms", nargs="+", choices=FORMS[1:], default=FORMS[1:], help="beside the stock model")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--labels", type=int, default=150)
    parser.add_argument("--tokens", type=int, default=16, help="of a text")
    parser.add_argument("--rounds", type=int, default=41, help="at least 2")
    parser.add_argument("--calls", type=int, default=5, help="of each form in a round")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch and of ONNX Runtime")
    parser.add_argument("--output", type=Path, help="file of JSON lines to append to")
    args = parser.parse_args()
    if min(args.rounds - 1, args.calls, args.threads, args.labels - 1, args.tokens, *args.batch_sizes) < 1:
        parser.error("--rounds and --labels must be at least 2, and all other numbers at least 1")
    set_seed(0)
    torch.set_num_threads(args.threads)
    name = None if args.tiny else args.model or embedded_model_path()
    models = models_of(name, args.labels, args.tokens)
    vocabulary = models["stock"].config.vocab_size
    shared = {key: getattr(args, key) for key in ("labels", "tokens", "rounds", "calls")}
    shared |= {"model": Path(name).name if args.model else "tiny" if args.tiny else "MiniLM", "machine": machine()}
    print("| batch | form | ms per call | ratio to stock | quartiles |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        session = None
        if "onnx" in args.forms:
            session = onnx_session(models["folded"], batch_of(2, args.tokens, vocabulary), folder, args.threads)
        for rows in args.batch_sizes:
            batch = batch_of(rows, args.tokens, vocabulary)
            asked = [form for form in models if form in ("stock", *args.forms)]
            calls = {form: torch_call(models[form], batch) for form in asked}
            if session is not None:
                calls["onnx"] = onnx_call(session, batch)
            seconds = interleaved(calls, args.rounds, args.calls)
            for form in calls:
                found = summary(form, seconds)
                low, high = found["ratio_quartiles"]
                ms, ratio = found["median_ms"], found["ratio_to_stock"]
                print(f"| {rows} | {form} | {ms:.2f} | {ratio:.2f} | {low:.2f} to {high:.2f} |", flush=True)
                if args.output:
                    append_line(args.output, {**found, "batch_size": rows, **shared})


if __name__ == "__main__":
    main()
