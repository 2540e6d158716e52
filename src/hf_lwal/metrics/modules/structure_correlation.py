"""``evaluate`` module: rank correlation between label distances and reference distances."""

import datasets
import evaluate

import hf_lwal.metrics

_CITATION = "https://arxiv.org/abs/2209.04528"
_DESCRIPTION = "Mean over classes of Kendall's tau-b between the distances to the other classes and the reference's."
_INPUTS = "predictions: the C rows of label distances (C, C); references: the C rows of reference distances (C, C)."


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class StructureCorrelation(evaluate.Metric):
    """Mean tau-b of the rows of two distance matrices."""

    def _info(self) -> evaluate.MetricInfo:
        row = datasets.Sequence(datasets.Value("float64"))
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": row, "references": row}),
        )

    def _compute(self, predictions: list[list[float]], references: list[list[float]]) -> dict[str, float]:
        return {"structure_correlation": hf_lwal.metrics.structure_correlation(predictions, references)}
