"""Whose label vectors follow the common drift of the features, and how far."""

from __future__ import annotations

import pytest
import torch
from transformers import set_seed

from hf_lwal import AutoModelForLwALClassification, LabelTable
from hf_lwal.modeling.algorithm import RunningMeans
from hf_lwal.modeling.step_sums import StepSums


@pytest.mark.parametrize(
    ("mode", "share", "followed"),
    [
        ("forward", None, 1.0),
        ("forward", 0.3, 0.3),
        ("forward", 0.0, 0.0),
        ("trainer", None, 0.3),
        ("trainer", 0.0, 0.0),
    ],
)
def test_the_drift_is_followed_by_the_share_that_was_given(tiny_config, mode, share, followed):
    """Features drift together: vectors left behind lose the labels. A share of 0 that was given stays 0."""
    set_seed(0)
    model = AutoModelForLwALClassification.from_config(tiny_config("bert", num_labels=3), embedding_dim=8)
    model.label_tracking, model.config.follow_drift = mode, share
    table = model.label_table
    first = torch.cat([torch.randn(3, table.class_features.shape[1]), torch.ones(3, 1)], dim=1)
    RunningMeans.first_sight(table, StepSums(first))
    means, before = table.class_features.clone(), model.current_label_vectors().detach()
    shift = torch.linspace(-1, 1, means.shape[1])
    rows = torch.tensor([[2.0], [2.0], [0.0]])  # the third label, of which the step has no rows, must follow too
    model.commit(torch.cat([rows * (means + shift), rows], dim=1))
    moved = model.current_label_vectors().detach() - before
    weight = model.head_module.weight.detach()
    assert torch.allclose(moved, (followed * weight @ shift).expand(3, -1), atol=1e-5)


def test_a_table_without_unseen_labels_masks_nothing(monkeypatch):
    """The shorter way must give the same bits, and must not be taken once a label has lost its mean again."""
    set_seed(0)
    table, embeddings = LabelTable(4, 6, 6), torch.randn(5, 6)
    table.start(torch.randn(12, 6), torch.arange(12) % 4, None)
    short = table(embeddings)
    with monkeypatch.context() as patch:
        patch.setattr(LabelTable, "_nothing_to_mask", lambda self: False)
        assert torch.equal(table(embeddings), short)
    table.counts[2] = 0
    assert (table(embeddings).argmin(dim=1) == 2).all()
