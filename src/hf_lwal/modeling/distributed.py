"""Sums over ranks: the one file that talks to ``torch.distributed``. Without a process group every call is local."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def is_distributed() -> bool:
    """Whether more than one process takes part."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def world_size() -> int:
    """Number of processes; 1 without a process group."""
    return dist.get_world_size() if is_distributed() else 1


class _AllReduceSum(torch.autograd.Function):
    """Sum over ranks whose backward pass sums the gradient over ranks.

    The gradient convention is that of a total loss equal to the sum of all ranks' losses, which is what
    DistributedDataParallel averages.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Sum ``tensor`` over ranks, differentiably; every rank must call it with the same shape and dtype."""
    if not is_distributed():
        return tensor
    if tensor.requires_grad and torch.is_grad_enabled():
        result: Tensor = _AllReduceSum.apply(tensor)
        return result
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total


def broadcast_(tensor: Tensor) -> None:
    """Overwrite ``tensor`` in place by rank 0's."""
    if is_distributed():
        dist.broadcast(tensor, src=0)


def broadcast_rows(rows: Tensor) -> Tensor:
    """Rank 0's ``rows`` (N, …) on every rank; the others may have any number of rows, of any width.

    Args:
        rows: of the same dtype, number of dimensions and kind of device on all ranks.
    """
    if not is_distributed():
        return rows
    shape = torch.tensor(rows.shape, device=rows.device)
    dist.broadcast(shape, src=0)
    sizes = [int(size) for size in shape]
    same = rows.contiguous() if dist.get_rank() == 0 else rows.new_empty(sizes)
    dist.broadcast(same, src=0)
    return same


def first_rank_says(value: bool, device: torch.device) -> bool:
    """Rank 0's ``value``: what decides whether ranks go into a collective must be one decision."""
    flag = torch.tensor([int(value)], device=device)
    broadcast_(flag)
    return bool(flag)


def differs_between_ranks(tensors: Iterable[Tensor]) -> bool:
    """Whether any of these tensors has other bits on another rank; the same answer on all ranks."""
    if not is_distributed():
        return False
    parts = [tensor.detach() for tensor in tensors]
    sums = [hashlib.blake2b(part.float().cpu().numpy().tobytes(), digest_size=7).digest() for part in parts]
    own = torch.tensor([int.from_bytes(value, "big") for value in sums], device=parts[0].device)
    first = own.clone()
    dist.broadcast(first, src=0)
    unequal = (own != first).sum()
    dist.all_reduce(unequal)
    return bool(unequal > 0)


def rows_of_ranks(rows: Tensor) -> list[Tensor]:
    """The rows that each rank has, in the order of the ranks and without gradient; the same list on every rank.

    Args:
        rows: (N, …) with an N of each rank's own; dtype and further dimensions must be the same on all ranks.
    """
    if not is_distributed():
        return [rows.detach()]
    counts = [torch.zeros(1, dtype=torch.int64, device=rows.device) for _ in range(world_size())]
    dist.all_gather(counts, torch.tensor([len(rows)], device=rows.device))
    most = max(int(count) for count in counts)
    padded = rows.new_zeros(most, *rows.shape[1:])  # all_gather wants one shape
    padded[: len(rows)] = rows.detach()
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    return [part[: int(count)] for part, count in zip(parts, counts, strict=True)]


def gathered_rows(rows: Tensor) -> Tensor:
    """(ranks * n, …) rows of all ranks, in the order of the ranks, without gradient; n must be the same on all."""
    if not is_distributed():
        return rows
    parts = [torch.empty_like(rows) for _ in range(world_size())]
    dist.all_gather(parts, rows.contiguous())
    return torch.cat(parts)


def largest_of_ranks(number: int, device: torch.device) -> int:
    """The largest of a number that each rank has."""
    if not is_distributed():
        return number
    largest = torch.tensor([number], device=device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return int(largest)


def peer_is_gone(error: BaseException) -> bool:
    """Whether an error says that another process of the group ended, or no longer answers."""
    said = any(words in str(error) for words in ("gloo/transport", "gloo::", "NCCL", "closed by peer"))
    return said or (dist.is_available() and isinstance(error, (dist.DistBackendError, dist.DistNetworkError)))
