"""``evaluate`` module: misfit between maps of the labels by label distances and by reference distances."""

import datasets
import evaluate

import hf_lwal.metrics

_CITATION = "https://arxiv.org/abs/2209.04528"
_DESCRIPTION = "Procrustes disparity between two-dimensional maps (metric MDS) of label and reference distances."
_INPUTS = "predictions: the C rows of label distances (C, C); references: the C rows of reference distances (C, C)."


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class MdsDisparity(evaluate.Metric):
    """Misfit of the maps of two distance matrices."""

    def _info(self) -> evaluate.MetricInfo:
        row = datasets.Sequence(datasets.Value("float64"))
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": row, "references": row}),
        )

    def _compute(self, predictions: list[list[float]], references: list[list[float]]) -> dict[str, float]:
        return {"mds_disparity": hf_lwal.metrics.mds_disparity(predictions, references)}
