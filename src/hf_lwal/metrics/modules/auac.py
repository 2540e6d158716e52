"""``evaluate`` module: area under the accuracy curve."""

import datasets
import evaluate

import hf_lwal.metrics

_CITATION = "https://arxiv.org/abs/2209.04528"
_DESCRIPTION = "Area under the accuracy curve: the mean of the accuracies at equally spaced evaluations."
_INPUTS = "predictions: one accuracy per evaluation."


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class Auac(evaluate.Metric):
    """Mean of the accuracies at equally spaced evaluations."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": datasets.Value("float64")}),
        )

    def _compute(self, predictions: list[float]) -> dict[str, float]:
        return {"auac": hf_lwal.metrics.auac(list(predictions))}
