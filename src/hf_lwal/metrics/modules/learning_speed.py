"""``evaluate`` module: how much earlier than a reference a training reaches the reference's best accuracy."""

from collections.abc import Sequence

import datasets
import evaluate

import hf_lwal.metrics

_CITATION = "https://arxiv.org/abs/2209.04528"
_DESCRIPTION = (
    "Epochs, steps or seconds to the best accuracy of a reference training, and the percent of them that were saved; "
    "None where that accuracy is never reached."
)
_INPUTS = (
    "predictions: one accuracy per evaluation; references: those of the reference training; x: the epochs, steps or "
    "seconds at which both were evaluated, 1, 2, 3 … by default."
)


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class LearningSpeed(evaluate.Metric):
    """Time to the best accuracy of a reference."""

    def _info(self) -> evaluate.MetricInfo:
        accuracy = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": accuracy, "references": accuracy}),
        )

    def _compute(
        self, predictions: list[float], references: list[float], x: Sequence[float] | None = None
    ) -> dict[str, float | None]:
        measures = hf_lwal.metrics
        places = range(1, len(predictions) + 1) if x is None else x
        target = max(references)
        own = measures.steps_to_accuracy(list(zip(places, predictions, strict=True)), target)
        reference = measures.steps_to_accuracy(list(zip(places, references, strict=True)), target)
        return {
            "target_accuracy": target,
            "reached": own,
            "reference_reached": reference,
            "percent_reduced": measures.percent_reduced(reference, own),
        }
