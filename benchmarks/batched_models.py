"""Two backbones whose parameters have a leading dimension V: V trainings run as one, each with its own weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_lwal.bench.comparison import embedded_model_path


class BatchedMiniLM:
    """The pooled features of V copies of MiniLM (a 6-layer BERT), written out for speed; dropout as in transformers.

    Args:
        variants: V.
        device: where the weights go.
    """

    width = 384
    heads = 12
    layers = 6
    keeps_statistics = False

    def __init__(self, variants: int, device: torch.device) -> None:
        from transformers import AutoModel

        state = AutoModel.from_pretrained(embedded_model_path(), dtype=torch.float32).state_dict()
        floats = {name: value for name, value in state.items() if value.is_floating_point()}
        self.parameters = {
            name: value.to(device).unsqueeze(0).repeat(variants, *[1] * value.dim()).requires_grad_()
            for name, value in floats.items()
        }

    def __call__(self, ids: Tensor, training: bool) -> Tensor:
        """Features (V, B, H) of token ids (V, B, T); id 0 is padding."""
        kept = ids != 0
        length = int(kept.sum(-1).max())
        ids, kept = ids[..., :length], kept[..., :length]
        variants, rows, length = ids.shape
        weights = self.parameters
        rate = 0.1 if training else 0.0
        table = weights["embeddings.word_embeddings.weight"]
        offsets = torch.arange(variants, device=ids.device)[:, None, None] * table.shape[1]
        hidden = F.embedding(ids + offsets, table.reshape(-1, self.width))
        hidden = hidden + weights["embeddings.position_embeddings.weight"][:, None, :length]
        hidden = hidden + weights["embeddings.token_type_embeddings.weight"][:, None, :1]
        hidden = F.dropout(self._norm(hidden.reshape(variants, rows * length, -1), "embeddings.LayerNorm"), rate)
        mask = torch.zeros(variants * rows, 1, 1, length, device=ids.device)
        mask = mask.masked_fill(~kept.reshape(-1, 1, 1, length), -1e9).expand(-1, 1, length, -1)
        for number in range(self.layers):
            hidden = self._layer(hidden, f"encoder.layer.{number}.", mask, rate)
        first = hidden.reshape(variants, rows, length, -1)[:, :, 0]
        return F.dropout(torch.tanh(self._linear(first, "pooler.dense")), rate)

    def _layer(self, hidden: Tensor, name: str, mask: Tensor, rate: float) -> Tensor:
        variants, length = hidden.shape[0], mask.shape[-1]
        query, key, value = (
            self._linear(hidden, f"{name}attention.self.{part}")
            .reshape(len(mask), length, self.heads, -1)
            .transpose(1, 2)
            for part in ("query", "key", "value")
        )
        mixed = F.scaled_dot_product_attention(query, key, value, mask, dropout_p=rate)
        mixed = self._linear(mixed.transpose(1, 2).reshape(variants, -1, self.width), f"{name}attention.output.dense")
        hidden = self._norm(hidden + F.dropout(mixed, rate), f"{name}attention.output.LayerNorm")
        inner = self._linear(F.gelu(self._linear(hidden, f"{name}intermediate.dense")), f"{name}output.dense")
        return self._norm(hidden + F.dropout(inner, rate), f"{name}output.LayerNorm")

    def _linear(self, rows: Tensor, name: str) -> Tensor:
        weight, bias = self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"]
        return torch.baddbmm(bias[:, None], rows, weight.transpose(1, 2))

    def _norm(self, rows: Tensor, name: str) -> Tensor:
        weight, bias = self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"]
        return F.layer_norm(rows, rows.shape[-1:], eps=1e-12) * weight[:, None] + bias[:, None]


class BatchedMLP:
    """V perceptrons with two hidden layers and BatchNorm, from scratch.

    Args:
        seeds: one per variant.
        device: where the weights go.
    """

    width = 256
    keeps_statistics = True

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.parameters: dict[str, Tensor] = {}
        self._statistics: list[tuple[Tensor, Tensor]] = []
        self._filled = False
        for number, inputs in enumerate((784, self.width)):
            weights = [(torch.rand(self.width, inputs, generator=g) * 2 - 1) / math.sqrt(inputs) for g in generators]
            self.parameters[f"weight{number}"] = torch.stack(weights).to(device).requires_grad_()
            ones = torch.ones(len(seeds), self.width, device=device)
            self.parameters[f"gain{number}"] = ones.clone().requires_grad_()
            self.parameters[f"shift{number}"] = torch.zeros_like(ones).requires_grad_()
            self._statistics.append((torch.zeros_like(ones), ones.clone()))

    def __call__(self, rows: Tensor, training: bool) -> Tensor:
        """Features (V, B, H) of pixels (V, B, 784); until the first training step the rows' own statistics count."""
        for number, (mean, variance) in enumerate(self._statistics):
            rows = torch.bmm(rows, self.parameters[f"weight{number}"].transpose(1, 2))
            if training or not self._filled:
                own_mean, own_variance = rows.mean(1), rows.var(1, unbiased=False)
                if training:
                    mean.lerp_(own_mean.detach(), 0.1)
                    variance.lerp_(own_variance.detach(), 0.1)
                mean, variance = own_mean, own_variance
            rows = (rows - mean[:, None]) * torch.rsqrt(variance + 1e-5)[:, None]
            rows = F.relu(
                rows * self.parameters[f"gain{number}"][:, None] + self.parameters[f"shift{number}"][:, None]
            )
        self._filled |= training
        return rows
