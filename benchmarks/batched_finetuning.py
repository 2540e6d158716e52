"""Many fine-tunings at once, to choose the default preset: one line of settings per training, all in one big batch.

    python benchmarks/batched_finetuning.py --dataset clinc150 --settings settings.json --output lines.jsonl

``settings.json`` holds a list of settings, each with any of the fields of `DEFAULTS`. It is an implementation of its
own of what LwALTrainer does (AdamW without weight decay, linear decay, gradients clipped to norm 1, means refreshed at
every step), fast enough for hundreds of trainings: sixty of 240 steps take 35 s on one large GPU, which allows TF32 in
the backbone; distances are in float64. The lines behind ``docs/choosing-a-default.md`` are in ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from batched_models import BatchedMiniLM, BatchedMLP
from torch import Tensor

from hf_lwal.bench.datasets import load_data
from hf_lwal.functional import calibrated_scale, class_sums, pairwise_distances

DEFAULTS: dict[str, Any] = {
    "method": "lwal",  # or one_hot, or one_hot_class_means
    "lr": 5e-5,
    "seed": 12,
    "head": "random",  # standard deviation 0.02; orthonormal; or projected: class means apart, after whitening
    "shrinkage": 1.0,  # share of the identity in the within-class covariance; 1 does not whiten
    "power": 1.0,  # of the whitening; 0.5 goes half the way
    "condition": None,  # largest ratio of two scalings of the whitening
    "rms": None,  # root mean square of the head's entries; None leaves them
    "rms_per_lr": None,  # the same as a multiple of the learning rate
    "scale_factor": 1.0,  # of the calibrated scale
    "squared": False,  # logits from squared distances
    "memory": 50.0,
    "reanchor": True,
    "refresh_until": 1.0,  # share of training during which the means move
    "offset_rate": 1.0,  # learning rates as multiples; 0 learns none
    "feature_offset_rate": 0.0,  # an offset of the class means before the head
    "head_rate": 1.0,
    "scale_rate": 1.0,
    "evaluation_refresh": False,  # label vectors from evaluation-mode means, for the MLP
}


class Training:
    """V trainings on one data set, in step.

    Args:
        dataset: "fashion_mnist" for the MLP, any text data set for MiniLM.
        settings: V dicts, see `DEFAULTS`.
        steps: optimizer steps.
        batch_size: rows per step.
        test_rows: at most so many, chosen at random.
        data_root: folder of data sets.
    """

    def __init__(
        self, dataset: str, settings: list[dict[str, Any]], steps: int, batch_size: int, test_rows: int, data_root: str
    ) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.settings = [{**DEFAULTS, **own} for own in settings]
        self.steps, self.batch_size, self.count = steps, batch_size, len(settings)
        (self.rows, self.labels), (self.test, self.test_labels) = _tensors(dataset, test_rows, data_root, self.device)
        self.num_labels = int(self.labels.max()) + 1
        images = dataset == "fashion_mnist"
        seeds = [own["seed"] for own in self.settings]
        self.net = BatchedMLP(seeds, self.device) if images else BatchedMiniLM(self.count, self.device)
        self.dim = min(self.net.width, max(128, self.num_labels))
        self.chunk = len(self.rows) if images else max(16, 9000 // self.count)
        generator = np.random.default_rng(1)
        self.start_rows, self.evaluation_rows = self._some(16, generator), self._some(50, generator)
        self._start()
        orders = [
            np.concatenate(
                [
                    np.random.default_rng(100 + seed + 1000 * epoch).permutation(len(self.rows))
                    for epoch in range(steps * batch_size // len(self.rows) + 1)
                ]
            )
            for seed in seeds
        ]
        self.order = torch.as_tensor(np.stack(orders), device=self.device)

    def _some(self, per_class: int, generator: np.random.Generator) -> Tensor:
        labels = self.labels.cpu().numpy()
        rows = [generator.permutation(np.flatnonzero(labels == label))[:per_class] for label in range(self.num_labels)]
        return torch.as_tensor(np.concatenate(rows), device=self.device)

    def _column(self, name: str, dims: int = 1) -> Tensor:
        values = [float(own[name]) for own in self.settings]
        return torch.tensor(values, device=self.device).reshape(-1, *[1] * (dims - 1))

    # -- start ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        values = self._features(self.rows[self.start_rows]).double()  # (V, N, H)
        labels = self.labels[self.start_rows]
        shapes = {
            "weight": (self.dim, self.net.width),
            "bias": (self.dim,),
            "offset": (self.num_labels, self.dim),
            "feature_offset": (self.num_labels, self.net.width),
            "log_scale": (1,),
            "stock_weight": (self.num_labels, self.net.width),
            "stock_bias": (self.num_labels,),
        }
        own = {name: torch.zeros(self.count, *shape, device=self.device) for name, shape in shapes.items()}
        sums = torch.zeros(self.count, self.num_labels, self.net.width, device=self.device)
        for number, (settings, rows) in enumerate(zip(self.settings, values, strict=True)):
            sums[number], counts = (part.float() for part in class_sums(rows, labels, self.num_labels))
            if settings["method"] == "lwal":
                weight = _head(settings, rows, labels, self.num_labels, self.dim)
                power = 2 if settings["squared"] else 1
                own["weight"][number] = weight.float()
                scale = settings["scale_factor"] * _scale(rows @ weight.T, labels, self.num_labels, power)
                own["log_scale"][number] = math.log(scale)
            elif settings["method"] == "one_hot":
                generator = torch.Generator().manual_seed(settings["seed"])
                own["stock_weight"][number] = 0.02 * torch.randn(shapes["stock_weight"], generator=generator)
            else:
                own["stock_weight"][number], own["stock_bias"][number] = self._nearest_mean(settings, rows, labels)
        self.counts = counts.expand(self.count, -1)
        self.means = sums / self.counts.clamp(min=1.0).unsqueeze(-1)
        self.own = {name: part.requires_grad_() for name, part in own.items()}
        rates = {"weight": "head_rate", "bias": "head_rate", "stock_weight": "head_rate", "stock_bias": "head_rate"}
        rates |= {"offset": "offset_rate", "feature_offset": "feature_offset_rate", "log_scale": "scale_rate"}
        self.rates = {name: self._column(rate) for name, rate in rates.items()}
        self.parameters = {**self.net.parameters, **self.own}
        self.moments = {
            name: (torch.zeros_like(part), torch.zeros_like(part)) for name, part in self.parameters.items()
        }

    def _nearest_mean(self, settings: dict[str, Any], rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Linear classifier of ``-s |P (h - mean_c)|^2``, P the whitening."""
        projection = _projection(settings, rows, labels, self.num_labels, self.net.width)
        scale = settings["scale_factor"] * _scale(rows @ projection.T, labels, self.num_labels, 2)
        sums, counts = class_sums(rows, labels, self.num_labels)
        means, seen = sums / counts.clamp(min=1.0).unsqueeze(1), counts > 0
        centre = means[seen].mean(0)
        mapped = (means - centre) @ projection.T
        weight = 2.0 * scale * mapped @ projection
        bias = -scale * mapped.square().sum(1) - weight @ centre
        return weight.float(), torch.where(seen, bias, bias[seen].min()).float()

    # -- training -------------------------------------------------------------------------------------------------

    def run(self, evaluations: list[int]) -> list[dict[str, Any]]:
        """Train, measuring after the given steps; returns a line per variant with its accuracies in percent."""
        curve = [self.accuracies()] if 0 in evaluations else []
        for step in range(self.steps):
            self._step(step)
            if step + 1 in evaluations:
                curve.append(self.accuracies())
        return [
            {"settings": own, "accuracies": [round(float(point[number]), 2) for point in curve]}
            for number, own in enumerate(self.settings)
        ]

    def _step(self, step: int) -> None:
        chosen = self.order[:, step * self.batch_size : (step + 1) * self.batch_size]
        labels = self.labels[chosen]  # (V, B)
        features = self.net(self.rows[chosen], training=True)
        log_probabilities = self._logits(features, self.means).log_softmax(-1)
        losses = -log_probabilities.gather(2, labels.unsqueeze(-1)).squeeze(-1).mean(1)  # (V,)
        gradients = torch.autograd.grad(losses.sum(), list(self.parameters.values()), allow_unused=True)
        self._adam(dict(zip(self.parameters, gradients, strict=True)), step)
        self._refresh(features.detach(), labels, step)

    @torch.no_grad()
    def _adam(self, gradients: dict[str, Tensor | None], step: int) -> None:
        known = {name: gradient.float() for name, gradient in gradients.items() if gradient is not None}
        norms = sum(gradient.reshape(self.count, -1).square().sum(1) for gradient in known.values()).sqrt()
        clip = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        first, second = 1.0 - 0.9 ** (step + 1), math.sqrt(1.0 - 0.999 ** (step + 1))
        rate = self._column("lr") * (1.0 - step / self.steps)
        for name, gradient in known.items():
            shape = (self.count,) + (1,) * (gradient.dim() - 1)
            gradient = gradient * clip.reshape(shape)
            mean, square = self.moments[name]
            mean.lerp_(gradient, 0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            eta = (rate * self.rates[name] if name in self.rates else rate).reshape(shape)
            self.parameters[name].addcdiv_(
                mean, square.sqrt().add_(1e-8 * second).mul_(first / (second * eta)), value=-1.0
            )

    @torch.no_grad()
    def _refresh(self, features: Tensor, labels: Tensor, step: int) -> None:
        members = F.one_hot(labels, self.num_labels).to(features)
        sums, rows = torch.bmm(members.transpose(1, 2), features), members.sum(1)
        moving = self._column("refresh_until", 2) * self.steps > step
        kept = torch.minimum(self.counts, self._column("memory", 2)).unsqueeze(-1)
        merged = (kept * self.means + sums) / (kept + rows.unsqueeze(-1)).clamp(min=1e-9)
        means = torch.where(((rows > 0) & moving).unsqueeze(-1), merged, self.means)
        jump = torch.bmm(self.means - means, self.own["weight"].transpose(1, 2))
        self.own["offset"].add_(jump * self._column("reanchor", 3) * (self.counts > 0).unsqueeze(-1))
        self.means, self.counts = means, self.counts + rows * moving

    def _logits(self, features: Tensor, means: Tensor) -> Tensor:
        weight = self.own["weight"].double().transpose(1, 2)
        embeddings = torch.bmm(features.double(), weight)
        vectors = torch.bmm((means + self.own["feature_offset"]).double(), weight) + self.own["offset"].double()
        centre = vectors.mean(1, keepdim=True).detach()
        embeddings, vectors = embeddings - centre, vectors - centre
        squared = embeddings.square().sum(-1, keepdim=True) + vectors.square().sum(-1).unsqueeze(1)
        squared = (squared - 2.0 * torch.bmm(embeddings, vectors.transpose(1, 2))).clamp(min=1e-12)
        distances = torch.where(self._column("squared", 3) > 0, squared, squared.sqrt())
        ours = -self.own["log_scale"].double().exp().unsqueeze(-1) * distances
        ours = torch.where((self.counts > 0).unsqueeze(1), ours, -1e4)
        stock_weight, stock_bias = self.own["stock_weight"].double(), self.own["stock_bias"].double()
        stock = torch.baddbmm(stock_bias.unsqueeze(1), features.double(), stock_weight.transpose(1, 2))
        is_ours = torch.tensor([own["method"] == "lwal" for own in self.settings], device=self.device)
        return torch.where(is_ours.reshape(-1, 1, 1), ours, stock)

    # -- measuring ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _features(self, rows: Tensor) -> Tensor:
        parts = [
            self.net(rows[start : start + self.chunk].expand(self.count, -1, *[-1] * (rows.dim() - 1)), training=False)
            for start in range(0, len(rows), self.chunk)
        ]
        return torch.cat(parts, dim=1)

    @torch.no_grad()
    def accuracies(self) -> list[float]:
        """Percent of the test rows that every variant gets right."""
        means = self.means
        if self.net.keeps_statistics and any(own["evaluation_refresh"] for own in self.settings):
            labels = self.labels[self.evaluation_rows].expand(self.count, -1)
            members = F.one_hot(labels, self.num_labels).float()
            sums = torch.bmm(members.transpose(1, 2), self._features(self.rows[self.evaluation_rows]))
            fresh = sums / members.sum(1).clamp(min=1.0).unsqueeze(-1)
            means = torch.where(self._column("evaluation_refresh", 3) > 0, fresh, means)
        right = torch.zeros(self.count, device=self.device)
        for start in range(0, len(self.test), self.chunk):
            features = self._features(self.test[start : start + self.chunk])
            guesses = self._logits(features, means).argmax(-1)
            right += (guesses == self.test_labels[start : start + self.chunk]).sum(1)
        return (100.0 * right / len(self.test)).tolist()


def _scale(rows: Tensor, labels: Tensor, num_labels: int, power: int) -> float:
    sums, counts = class_sums(rows, labels, num_labels)
    distances = pairwise_distances(rows, sums / counts.clamp(min=1.0).unsqueeze(1), labels)
    return calibrated_scale(distances, labels, counts, power)


def _head(settings: dict[str, Any], rows: Tensor, labels: Tensor, num_labels: int, dim: int) -> Tensor:
    generator = torch.Generator().manual_seed(settings["seed"])
    width = rows.shape[1]
    if settings["head"] == "random":
        weight = 0.02 * torch.randn(dim, width, generator=generator).to(rows)
    elif settings["head"] == "orthonormal":
        size = max(width, dim)
        weight = torch.linalg.qr(torch.randn(size, size, generator=generator)).Q[:dim, :width].to(rows)
    else:
        weight = _projection(settings, rows, labels, num_labels, dim)
    wanted = settings["rms_per_lr"] * settings["lr"] if settings["rms_per_lr"] else settings["rms"]
    return weight * (wanted / weight.square().mean().sqrt()) if wanted else weight


def _projection(settings: dict[str, Any], rows: Tensor, labels: Tensor, num_labels: int, dim: int) -> Tensor:
    """(D, H): whitening with a shrunken within-class covariance, then the directions that class means differ in."""
    sums, counts = class_sums(rows, labels, num_labels)
    means, seen, width = sums / counts.clamp(min=1.0).unsqueeze(1), counts > 0, rows.shape[1]
    residuals, identity = rows - means[labels], torch.eye(width).to(rows)
    covariance = residuals.T @ residuals / max(1, len(labels) - int(seen.sum()))
    share = settings["shrinkage"]
    covariance = (1.0 - share) * covariance + share * covariance.trace() / width * identity
    values, vectors = torch.linalg.eigh(covariance)
    if settings["condition"]:
        values = values.clamp(min=float(values.max()) / settings["condition"] ** 2)
    whitening = (vectors * values.pow(-settings["power"] / 2.0)) @ vectors.T
    between = means[seen] @ whitening
    between = between - between.mean(0)
    scatter = between.T @ between
    directions = torch.linalg.eigh(scatter + 1e-6 * scatter.trace() / width * identity).eigenvectors
    return directions.flip(1)[:, :dim].T @ whitening


def _tensors(
    dataset: str, test_rows: int, data_root: str, device: torch.device
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Rows and labels of both splits: pixels (N, 784) or token ids (N, T), texts sorted by length for the test."""
    splits = load_data(dataset, data_root, None, None)
    result = []
    for rows in (splits.train, splits.test):
        labels = torch.tensor(rows["label"][:], device=device)
        if splits.kind == "image":
            pixels = torch.tensor(np.stack([np.asarray(image) for image in rows[splits.input]]), device=device)
            values = ((pixels / 255.0 - 0.286) / 0.353).reshape(len(pixels), -1)  # of Fashion-MNIST
        else:
            values = torch.tensor(_token_ids(rows[splits.input][:]), device=device)
        result.append((values, labels))
    (train, (test, test_labels)) = result
    if len(test) > test_rows:
        chosen = torch.as_tensor(np.random.default_rng(0).permutation(len(test))[:test_rows], device=device)
        test, test_labels = test[chosen], test_labels[chosen]
    if splits.kind == "text":
        order = (test != 0).sum(1).argsort()
        test, test_labels = test[order], test_labels[order]
    return train, (test, test_labels)


def _token_ids(texts: list[str]) -> np.ndarray[Any, Any]:
    from transformers import AutoTokenizer

    from hf_lwal.bench.comparison import embedded_model_path

    tokenizer = AutoTokenizer.from_pretrained(embedded_model_path())
    return tokenizer(texts, truncation=True, max_length=64, padding="max_length", return_tensors="np")["input_ids"]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--settings", required=True, type=Path, help="JSON list of settings")
    parser.add_argument("--output", required=True, type=Path, help="lines are appended")
    parser.add_argument("--data-root")
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--test-rows", type=int, default=3000)
    parser.add_argument("--at-once", type=int, default=60, help="trainings in one batch")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    settings = json.loads(options.settings.read_text(encoding="utf-8"))
    shares = (0, 1 / 12, 1 / 6, 1 / 3, 1 / 2, 2 / 3, 5 / 6, 1)
    evaluations = sorted({round(share * options.steps) for share in shares})
    for start in range(0, len(settings), options.at_once):
        part = settings[start : start + options.at_once]
        training = Training(
            options.dataset, part, options.steps, options.batch_size, options.test_rows, options.data_root
        )
        with options.output.open("a", encoding="utf-8") as lines:
            for line in training.run(evaluations):
                line |= {"dataset": options.dataset, "batch_size": options.batch_size, "steps": evaluations}
                print(json.dumps(line), file=lines)


if __name__ == "__main__":
    main()
