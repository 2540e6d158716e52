"""Cost of a training step with a label table, as a ratio to the stock classifier with cross-entropy.

    python benchmarks/overhead.py --architecture bert-base --batch-size 32 --length 128
    python benchmarks/overhead.py --architecture resnet50 --batch-size 256 --device cuda --dtype bfloat16

Both models have the same random backbone and are trained on the same rows, one step each in turn, in one process; the
ratio is the median over pairs of steps. The start pass is not a part of a step: its cost is the number of its rows.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    BertConfig,
    PreTrainedConfig,
    ResNetConfig,
    set_seed,
)

from hf_lwal import AutoModelForLwALClassification

ARCHITECTURES: dict[str, Callable[[], PreTrainedConfig]] = {
    "bert-base": BertConfig,
    "minilm": lambda: BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536),
    "resnet50": ResNetConfig,
}


def random_batch(config: PreTrainedConfig, rows: int, length: int, size: int, labels: int) -> dict[str, Tensor]:
    """Random texts of ``length`` tokens or images of ``size`` x ``size`` pixels, with labels."""
    batch = {"labels": torch.randint(labels, (rows,))}
    if config.model_type == "bert":
        ids = torch.randint(1000, 2000, (rows, length))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **batch}
    return {"pixel_values": torch.randn(rows, 3, size, size), **batch}


def stock_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]) -> None:
    """One step of the stock classifier with its own cross-entropy."""
    model(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def lwal_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]) -> None:
    """One step as `LwALTrainer` does it: class sums of the batch, refresh of the means, loss terms."""
    output = model(**batch)
    output.loss.backward()
    sums = model.label_table.sums_of(model.values(output.embeddings, output.features), batch["labels"])
    optimizer.step()
    model.commit(sums)
    optimizer.zero_grad()


def main() -> None:
    """Parse the arguments, time the steps, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", choices=sorted(ARCHITECTURES), default="bert-base")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--length", type=int, default=128, help="tokens per text")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--labels", type=int, default=150)
    parser.add_argument("--steps", type=int, default=20, help="pairs of steps")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of autocast")
    args = parser.parse_args()

    set_seed(0)
    config = ARCHITECTURES[args.architecture]()
    config.num_labels = args.labels
    text = config.model_type == "bert"
    auto = AutoModelForSequenceClassification if text else AutoModelForImageClassification
    batch = random_batch(config, args.batch_size, args.length, args.image_size, args.labels)
    batch = {name: value.to(args.device) for name, value in batch.items()}
    stock = auto.from_config(config).to(args.device).train()
    ours = AutoModelForLwALClassification.from_config(config).to(args.device)
    ours.initialize_labels([batch], progress=False)
    ours.train()
    ours.label_tracking = "trainer"
    runs = [(stock_step, stock), (lwal_step, ours)]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-5) for _, model in runs]
    pairs = []
    for pair in range(args.steps + 3):
        seconds = [0.0, 0.0]
        for index in (0, 1) if pair % 2 else (1, 0):  # whoever runs second finds warmer caches: take turns
            step, model = runs[index]
            begin = time.perf_counter()
            with torch.autocast(torch.device(args.device).type, torch.bfloat16, enabled=args.dtype == "bfloat16"):
                step(model, optimizers[index], batch)
            if args.device != "cpu":
                torch.cuda.synchronize()
            seconds[index] = time.perf_counter() - begin
        if pair >= 3:  # the first steps allocate
            pairs.append(seconds)
    stock_seconds, our_seconds = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(our / reference for reference, our in pairs)
    print(f"{args.architecture}, {args.batch_size} rows, {args.labels} labels, {args.device}, {args.dtype}:")
    print(f"stock {stock_seconds * 1e3:.1f} ms, with label table {our_seconds * 1e3:.1f} ms, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
