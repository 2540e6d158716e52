"""Replays the authors' own training steps (``oracle/README.md``) with `hf_lwal.functional`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hf_lwal.functional import class_sums, pairwise_distances, pull_loss, refreshed_label_vectors, repel_loss

ORACLE = Path(__file__).parent / "oracle"
CASES: dict[str, dict[str, Any]] = json.loads((ORACLE / "meta.json").read_text())
STEPS = [(name, step) for name, case in CASES.items() for step in range(case["steps"])]

LOSS, GRADIENT, LABEL_VECTORS, DISTANCES = 1e-5, 2e-7, 1e-6, 3e-5
SINGLETON_LOSS, SINGLETON_DISTANCES = 2e-5, 3e-3  # the reference's own cancellation at distance 0


def _load(name: str) -> dict[str, Tensor]:
    with np.load(ORACLE / f"{name}.npz") as arrays:
        return {key: torch.from_numpy(arrays[key]) for key in arrays.files}


def _is_refresh(case: dict[str, Any], step: int) -> bool:
    return step >= case["warmup_steps"] and (step - case["warmup_steps"]) % case["update_every"] == 0


def _replay(name: str, last_step: int) -> dict[str, Tensor]:
    """Run the case's steps 0…last_step from the initial label vectors; return what the last one computes."""
    case, arrays = CASES[name], _load(name)
    label_vectors = arrays["initial_label_vectors"]
    for step in range(last_step + 1):
        embeddings = arrays[f"embeddings_{step}"].requires_grad_()  # (B, D)
        labels = arrays[f"labels_{step}"]  # (B,)
        label_vectors, repel = label_vectors.detach(), torch.zeros(())
        if _is_refresh(case, step):
            sums, counts = class_sums(embeddings, labels, case["num_labels"])
            label_vectors = refreshed_label_vectors(label_vectors, counts, sums, counts, memory=0)
            repel = repel_loss(embeddings, labels, case["num_labels"])
        distances = pairwise_distances(embeddings, label_vectors, labels)
        pull = pull_loss(distances, labels)
        loss = pull + case["repel_weight"] * repel
    (gradient,) = torch.autograd.grad(loss, embeddings)
    return {
        "loss": loss.detach(),
        "pull_loss": pull.detach(),
        "repel_loss": repel.detach(),
        "grad": gradient,
        "label_vectors_after": label_vectors.detach(),
        "distances": distances.detach(),
        "predictions": pairwise_distances(embeddings, label_vectors).argmin(dim=1),  # as in evaluation: no labels
    }


def _assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=tolerance)


@pytest.mark.parametrize(("name", "step"), STEPS)
def test_step_equals_the_authors_code(name: str, step: int) -> None:
    """A step that trains, but not as the paper's: a detached centroid, an old label vector, repel as a sum."""
    actual = _replay(name, step)
    expected = {key: value for key, value in _load(name).items() if key.endswith(f"_{step}")}
    loss, distances = (SINGLETON_LOSS, SINGLETON_DISTANCES) if name == "singletons" else (LOSS, DISTANCES)
    _assert_close(actual["label_vectors_after"], expected[f"label_vectors_after_{step}"], LABEL_VECTORS)
    _assert_close(actual["distances"], expected[f"distances_{step}"], distances)
    _assert_close(actual["pull_loss"], expected[f"pull_loss_{step}"], loss)
    _assert_close(actual["repel_loss"], expected[f"repel_loss_{step}"], loss)
    _assert_close(actual["loss"], expected[f"loss_{step}"], loss)
    _assert_close(actual["grad"], expected[f"grad_{step}"], GRADIENT)
    assert torch.equal(actual["predictions"], expected[f"predictions_{step}"])


def test_cases_cover_what_they_claim() -> None:
    """Files swapped or regenerated so that absent classes, singletons, warm-up or repel are no longer exercised."""
    arrays = {name: _load(name) for name in CASES}
    assert set(CASES) == {"square", "wide", "norepel", "absent_classes", "every_2_warmup_1", "singletons"}
    assert CASES["wide"]["embedding_dim"] == 10 * CASES["wide"]["num_labels"]
    assert len(arrays["absent_classes"]["labels_1"].unique()) < CASES["absent_classes"]["num_labels"]
    assert arrays["singletons"]["labels_0"].bincount().max() == 1
    refreshed = [_is_refresh(CASES["every_2_warmup_1"], step) for step in range(5)]
    assert refreshed == [False, True, False, True, False]
    moved = [bool(arrays["every_2_warmup_1"][f"repel_loss_{step}"] != 0) for step in range(5)]
    assert moved == refreshed
    assert CASES["norepel"]["repel_weight"] == 0.0
    assert all(arrays[name]["repel_loss_0"].abs() > 1e-4 for name in ("square", "wide", "absent_classes"))
