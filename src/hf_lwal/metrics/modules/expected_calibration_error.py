"""``evaluate`` module: expected calibration error."""

import datasets
import evaluate

import hf_lwal.metrics

_CITATION = "https://arxiv.org/abs/1706.04599"
_DESCRIPTION = "Mean gap between how sure the likeliest label is and how often it is right, over bins of confidence."
_INPUTS = "predictions: a row of probabilities per sample (N, C); references: the N label ids; bins: 15 by default."


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class ExpectedCalibrationError(evaluate.Metric):
    """Gap between confidence and accuracy."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(
                {"predictions": datasets.Sequence(datasets.Value("float64")), "references": datasets.Value("int64")}
            ),
        )

    def _compute(self, predictions: list[list[float]], references: list[int], bins: int = 15) -> dict[str, float]:
        error = hf_lwal.metrics.expected_calibration_error(predictions, references, bins)
        return {"expected_calibration_error": error}
