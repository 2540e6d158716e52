"""The nearest label vector as the largest output of a linear layer, and the temperature of its probabilities.

``argmin |z - y_c|^2 = argmax (2 y_c.z - |y_c|^2)`` is linear in z, and z = W h + b is linear in the features h.
"""

from __future__ import annotations

from torch import Tensor, zeros_like

UNSEEN_BIAS = -1e4
"""Logit of classes without a mean. The others sum to 0, so their largest is never negative; float16 can hold it."""


def folded_linear(
    weight: Tensor,
    bias: Tensor | None,
    label_vectors: Tensor,
    usable: Tensor,
    temperature: float = 1.0,
    distance_bias: Tensor | float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Linear layer whose outputs rank the label vectors by their distance to ``weight @ h + bias``.

    With m the mean of the usable label vectors: ``W' = 2 (Y - m) W / T`` and
    ``b' = (2 (Y - m)(b - m) - |Y - m|^2) / T``, less its mean. Centring keeps the digits that a common offset of
    embeddings and label vectors would cost.

    Args:
        weight: (D, H) of the head.
        bias: (D,) of the head, or None.
        label_vectors: (C, D).
        usable: (C,) bool; the other classes get weight 0 and a bias far below.
        temperature: T.
        distance_bias: (C,) what is taken off the squared distance to a label vector.

    Returns:
        W' (C, H) and b' (C,) in float64.
    """
    weight, vectors = weight.double(), label_vectors.double()
    bias = zeros_like(weight[:, 0]) if bias is None else bias.double()
    centre = vectors[usable].mean(dim=0)  # (D,)
    outputs = rankings(bias.unsqueeze(0), label_vectors, usable, distance_bias).squeeze(0) / temperature  # (C,)
    folded = 2.0 * (vectors - centre) @ weight / temperature  # (C, H)
    return folded.masked_fill(~usable.unsqueeze(1), 0.0), outputs.masked_fill(~usable, UNSEEN_BIAS)


def rankings(embeddings: Tensor, label_vectors: Tensor, usable: Tensor, distance_bias: Tensor | float = 0.0) -> Tensor:
    """Linear function of the embeddings that is largest at the nearest label vector.

    Args:
        embeddings: (N, D).
        label_vectors: (C, D).
        usable: (C,) bool; their columns sum to 0 per row.
        distance_bias: (C,) b.

    Returns:
        (N, C) float64: ``2 (y_c - m)(z - m) - |y_c - m|^2 + b_c`` less its mean over the usable classes.
    """
    vectors = label_vectors.double()
    centre = vectors[usable].mean(dim=0)
    vectors = vectors - centre
    squares = vectors.square().sum(dim=1) - distance_bias  # (C,)
    return 2.0 * (embeddings.double() - centre) @ vectors.T - (squares - squares[usable].mean())


def fit_temperature(values: Tensor, log_probabilities: Tensor) -> float:
    """Temperature T at which ``softmax(values / T)`` has the least cross-entropy to given probabilities.

    The cross-entropy is convex in 1 / T; its derivative is the difference of two expectations of ``values``, and is
    bisected on a logarithmic scale.

    Args:
        values: (N, C) float64, ranked as the probabilities are.
        log_probabilities: (N, C) float64.
    """
    values = values - values.amax(dim=1, keepdim=True)
    return _temperature(values, (log_probabilities.exp() * values).sum(dim=1).mean())


def fit_label_temperature(logits: Tensor, labels: Tensor) -> float:
    """Temperature T at which ``softmax(logits / T)`` has the least cross-entropy to labels.

    Guo et al., "On Calibration of Modern Neural Networks" (ICML 2017). Where all N rows are right the steepest
    probabilities would be best: then one of N + 2 counts as wrong (Laplace's rule of succession), for the runner-up.

    Args:
        logits: (N, C) float64, at least two columns.
        labels: (N,) int64.

    Raises:
        ValueError: the logits find the labels no better than chance, so that equal probabilities would be best.
    """
    values = logits - logits.amax(dim=1, keepdim=True)
    wanted = values.gather(1, labels.unsqueeze(1)).mean()
    if float(wanted) == 0.0:
        wanted = values.topk(2, dim=1).values[:, 1].mean() / (len(values) + 2)
    if not bool(wanted > values.mean()):
        raise ValueError(
            f"The model finds the labels of these {len(values)} rows no better than chance, so no probabilities fit: "
            "check that the labels belong to the rows, or train the model first."
        )
    return _temperature(values, wanted)


def _temperature(values: Tensor, wanted: Tensor) -> float:
    """T at which the mean expectation of ``values`` (N, C), at most 0, under ``softmax(values / T)`` is ``wanted``."""
    spread = float(-values.mean()) or 1.0
    low, high = 1e-8 / spread, 1e8 / spread  # of 1 / T
    for _ in range(60):
        middle = (low * high) ** 0.5
        reached = ((values * middle).softmax(dim=1) * values).sum(dim=1).mean()
        low, high = (middle, high) if reached < wanted else (low, middle)
    return 1.0 / high
