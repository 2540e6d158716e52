"""One model called by several threads at once: wrong answers, and calls per second beside the stock classifier's.

    python benchmarks/threads.py
    python benchmarks/threads.py --calls 100000 --threads 16 --backend inductor
    python benchmarks/threads.py --calls 1600 --hidden-size 384   # texts alone, six layers: the size of MiniLM

Tiny models of texts, images and sounds with random weights, eager and compiled, with embeddings as wide as the
features and narrower. Every answer is compared with that of the same batch in a single thread. The ratio is the median
over rounds, in which both models answer the same calls one after the other.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import set_seed

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.modeling.heads import stock_from_config

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from tiny_models import tiny_config

MODELS = {"text": ("bert", 32), "image": ("vit", 32), "audio": ("wav2vec2", 16)}
"""Task -> architecture and width of its features."""
ROUNDS, BATCHES, LABELS = 4, 10, 8


def batch(task: str, seed: int) -> dict[str, Tensor]:
    """A batch of two rows."""
    generator = torch.Generator().manual_seed(seed)
    if task == "text":
        return {"input_ids": torch.randint(4, 60, (2, 12), generator=generator)}
    if task == "image":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator)}
    return {"input_values": torch.randn(2, 400, generator=generator)}


def with_labels(config: Any, task: str, embedding_dim: int) -> Any:
    """A model with a label table that three steps have filled."""
    model = AutoModelForLwALClassification.from_config(config, task=task, embedding_dim=embedding_dim)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for seed in range(3):
        rows = [batch(task, 100 * seed + i) for i in range(LABELS // 2)]
        inputs = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
        model(**inputs, labels=torch.arange(LABELS)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def in_threads(call: Callable[[int], bool], calls: int, threads: int) -> tuple[int, float]:
    """Wrong answers and seconds of ``calls`` calls by threads that are let loose at the same moment."""
    gate = threading.Barrier(threads + 1)

    def part(first: int) -> int:
        gate.wait()
        return sum(not call(i) for i in range(first, calls, threads))

    with ThreadPoolExecutor(threads) as pool:
        parts = [pool.submit(part, first) for first in range(threads)]
        gate.wait()
        started = time.perf_counter()
        return sum(done.result() for done in parts), time.perf_counter() - started


def checked(model: Any, called: Any, batches: list[dict[str, Tensor]]) -> Callable[[int], bool]:
    """A call that says whether the answer is that of a single thread; an error is a wrong answer."""
    with torch.inference_mode():
        alone = [model(**inputs).logits for inputs in batches]
        called(**batches[0])

    @torch.inference_mode()
    def call(i: int) -> bool:
        logits = called(**batches[i % BATCHES]).logits
        return torch.allclose(logits, alone[i % BATCHES], rtol=1e-4, atol=1e-4)

    return call


def main() -> None:
    """Parse the arguments, let the threads loose on every model, print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000, help="of the models with label tables, in all")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--backend", default="aot_eager", help="of torch.compile")
    parser.add_argument("--hidden-size", type=int, help="of a six-layer model of texts, instead of the tiny models")
    args = parser.parse_args()
    sys.setswitchinterval(1e-4)
    torch.set_num_threads(1)
    models, size = MODELS, {}
    if args.hidden_size:
        models = {"text": ("bert", args.hidden_size)}
        size = {"hidden_size": args.hidden_size, "num_hidden_layers": 6, "num_attention_heads": args.hidden_size // 32}
        size["intermediate_size"] = 4 * args.hidden_size
    settings = [(task, narrow, compiled) for task in models for narrow in (False, True) for compiled in (False, True)]
    per_round = -(-args.calls // (len(settings) * ROUNDS))
    wrong_of_all = 0
    for task, narrow, compiled in settings:
        set_seed(0)
        name, width = models[task]
        ours = with_labels(tiny_config(name, num_labels=LABELS, **size), task, width // 4 if narrow else width)
        stock = stock_from_config(tiny_config(name, num_labels=LABELS, **size), task).eval()
        batches = [batch(task, seed) for seed in range(BATCHES)]
        calls = []
        for model in (ours, stock):
            called = torch.compile(model, backend=args.backend) if compiled else model
            calls.append(checked(model, called, batches))
        rounds = [[in_threads(call, per_round, args.threads) for call in calls] for _ in range(ROUNDS)]
        wrong, wrong_of_stock = (sum(both[i][0] for both in rounds) for i in range(2))
        wrong_of_all += wrong
        rate = per_round / statistics.median(both[0][1] for both in rounds)
        ratio = statistics.median(both[0][1] / both[1][1] for both in rounds)
        print(
            f"{task:5} {'narrow' if narrow else 'wide':6} {'compiled' if compiled else 'eager':8} "
            f"{ROUNDS * per_round} calls: {wrong} wrong (stock {wrong_of_stock}), {rate:.0f} calls/s, "
            f"time {ratio:.2f} of stock",
            flush=True,
        )
    print(f"{len(settings) * ROUNDS * per_round} calls by {args.threads} threads: {wrong_of_all} wrong")
    sys.exit(wrong_of_all > 0)


if __name__ == "__main__":
    main()
