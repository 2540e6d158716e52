"""``hf-lwal fold``: from a model with a label table to a stock checkpoint, to ONNX and to Sentence Transformers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CommandError
from ..modeling.files import staged
from ..modeling.tasks import TASKS
from .flags import argument, option
from .writing import check_output_folder, writing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..modeling.modeling_lwal import LwALPreTrainedModel

BATCH_SIZE = 16
ONNX_FOLDER = "onnx"


@dataclass(frozen=True)
class FoldOptions:
    """Write a stock classifier with the same predictions, which needs no hf-lwal.

    Predictions are compared before anything is written.
    """

    output: str = field(metadata={"help": "new folder for the stock classifier"})
    model: str = argument("folder or Hub name of a model with a label table")
    inputs: str | None = option(
        None,
        "real inputs to compare and to fit probabilities on, read as `hf-lwal predict --file` does: a text file with "
        "one text per line, a table, or images or sounds or a folder of them; default: random inputs",
    )
    onnx: bool = option(False, "also write onnx/model.onnx, compared with onnxruntime")
    sentence_transformers: bool = option(
        False,
        "write a Sentence Transformers folder instead, whose encode gives the logits; for text models with a pooling",
    )

    def check(self) -> None:
        """Raise for paths that cannot be used and extras that are missing, before the long work."""
        output = check_output_folder(self.output)
        if output.exists() and not (output.is_dir() and not any(output.iterdir())):
            raise CommandError(f"--output: {self.output!r} exists already; name a new folder.")
        if self.inputs is not None and not Path(self.inputs).exists():
            raise CommandError(f"--inputs: there is no {self.inputs!r}.")
        if self.onnx and self.sentence_transformers:
            raise CommandError(
                "--onnx and --sentence-transformers are two folders: call the command once with each of them."
            )
        if self.onnx:
            from ..modeling.onnx_export import require_onnx

            require_onnx()
        if self.sentence_transformers:
            from ..modeling.sentence_export import require_sentence_transformers

            require_sentence_transformers()


def run(options: FoldOptions) -> int:
    """Fold, compare, write and say what was compared; returns the exit code."""
    options.check()
    model = _load(options.model)
    processor = _processor(options.model, model.task)
    try:
        lines = _write(model, processor, options)
    except ValueError as error:
        raise CommandError(str(error)) from error
    print("\n".join([*lines, f"Written to {options.output}"]))
    return 0


def _write(model: LwALPreTrainedModel, processor: Any, options: FoldOptions) -> list[str]:
    """Fold and write everything into the new folder; what there is to say about it."""
    from ..bench.comparison import quiet
    from ..modeling.export import fold_with_report

    if options.sentence_transformers:
        _check_texts(model, processor, options)
    rows = None if options.inputs is None else _given(model, processor, options)
    batches = None if rows is None else list(_batches(model, processor, rows))
    stock, report = fold_with_report(model, batches, add_bias=options.onnx)
    with writing(options.output), quiet(), staged(Path(options.output).expanduser()) as folder:
        if options.sentence_transformers:
            return [str(report), _write_sentence_transformer(stock, folder, processor, rows or [])]
        if model.head_module.bias is not None:
            stock.save_pretrained(folder)
        if processor is not None:
            processor.save_pretrained(folder)
        said = [str(report)]
        if options.onnx:
            random = _random_batches(model, processor, given=batches is not None) if report.random_rows else []
            said.append(_write_onnx(model, stock, folder, [*(batches or ()), *random]))
    return [*said, *_notes(model, processor, options)]


def _check_texts(model: LwALPreTrainedModel, processor: Any, options: FoldOptions) -> None:
    """Raise before the long work for a model that Sentence Transformers cannot serve."""
    from ..modeling.sentence_export import check_pooled

    check_pooled(model.encoder)
    if processor is None:
        raise CommandError(f"--sentence-transformers needs a tokenizer, but {options.model!r} holds none.")


def _write_sentence_transformer(stock: PreTrainedModel, folder: Path, tokenizer: Any, texts: list[str]) -> str:
    from ..modeling.sentence_export import export_sentence_transformer

    compared = export_sentence_transformer(stock, folder, tokenizer, texts)
    return (
        f"Sentence Transformers: the logits that encode gives differ from PyTorch's by {compared.difference:.1e} at "
        f"most, on {compared.rows:,} texts."
    )


def _write_onnx(
    model: LwALPreTrainedModel, stock: PreTrainedModel, folder: Path, batches: list[dict[str, Any]]
) -> str:
    from ..modeling.onnx_export import export_onnx, rejection_of
    from ..modeling.probes import on_device

    example, *compared = [on_device(batch, model) for batch in batches]
    rejection = rejection_of(model)
    largest = export_onnx(stock, folder / ONNX_FOLDER, example, compared, rejection)
    rows = sum(len(next(iter(batch.values()))) for batch in batches)
    outputs = "logits" if rejection is None else "logits and rejection scores"
    return f"ONNX: onnxruntime's {outputs} differ from PyTorch's by {largest:.1e} at most, on {rows:,} rows."


def _random_batches(model: LwALPreTrainedModel, processor: Any, given: bool) -> list[dict[str, Any]]:
    """Random inputs with the same names as the given ones, which a graph has one set of."""
    from ..modeling.probes import RANDOM_ROWS, many_random_batches
    from ..modeling.sentence_export import random_texts

    if not given or model.task != "text":
        return many_random_batches(model)
    return list(_batches(model, processor, random_texts(processor, RANDOM_ROWS)))


def _notes(model: LwALPreTrainedModel, processor: Any, options: FoldOptions) -> Iterator[str]:
    """What the folder lacks."""
    from ..modeling.modeling_pooled import LwALPooledForSequenceClassification

    if model.head_module.bias is None:
        yield f"{type(model.encoder).__name__} has no place for the bias of the fold: no checkpoint was written."
    elif isinstance(model.encoder, LwALPooledForSequenceClassification):
        yield (
            f"No stock class pools the tokens by {model.config.pooling!r}: where hf-lwal is not installed, load the "
            "folder with trust_remote_code=True, or use --sentence-transformers or --onnx."
        )
    if processor is None:
        yield f"{options.model} holds no tokenizer or processor, so none was written."


def _load(name: str) -> LwALPreTrainedModel:
    """Load a model with a label table; anything else is the user's to put right."""
    from transformers import AutoConfig

    from ..bench.comparison import load_part
    from ..modeling.auto import AutoModelForLwALClassification
    from ..modeling.configuration_lwal import LwALConfig

    config = load_part(AutoConfig, name)
    if not isinstance(config, LwALConfig):
        raise CommandError(f"{name!r} has no label table (its model_type is {config.model_type!r}): nothing to fold.")
    model: LwALPreTrainedModel = load_part(AutoModelForLwALClassification, name)
    return model.eval()


def _processor(name: str, task: str) -> Any:
    """The tokenizer, image processor or feature extractor saved with the model; None without one."""
    from ..bench.comparison import quiet

    try:
        with quiet():
            return TASKS[task].processor.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # which one depends on the kind and the version
        return None


def _given(model: LwALPreTrainedModel, processor: Any, options: FoldOptions) -> list[Any]:
    """The raw inputs of ``--inputs``."""
    if processor is None:
        raise CommandError(f"--inputs needs a tokenizer or processor, but {options.model!r} holds none.")
    rows = _rows(str(options.inputs), model.task, processor)
    if not rows:
        raise CommandError(f"--inputs: {options.inputs!r} holds no {model.task}.")
    return rows


def _batches(model: LwALPreTrainedModel, processor: Any, rows: list[Any]) -> Iterator[dict[str, Any]]:
    from ..modeling.inference import prepare

    for start in range(0, len(rows), BATCH_SIZE):
        yield prepare(model, rows[start : start + BATCH_SIZE], processor)


def _rows(path: str, task: str, processor: Any) -> list[Any]:
    """What ``hf-lwal predict`` would classify; missing cells and unreadable files are left out and said so."""
    from .predict_inputs import Wanted, loader, read_inputs, remark, say

    found, faults, read = [], [], loader(task, processor)
    for entry in read_inputs([path], task, Wanted(), remark, file=True):
        try:
            if entry.value is not None:
                found.append(read(entry.value))
        except ValueError as error:
            faults.append(f"{entry.place} cannot be read: {error}")
        except ImportError as error:
            raise CommandError(f"--inputs: {error}.") from error
    if faults and not found:
        raise CommandError(f"--inputs: {faults[0]}.")
    for fault in faults:
        say(f"{fault}; it is left out")
    if any(isinstance(value, dict) for value in found):
        raise CommandError(f"--inputs: {path!r} holds pairs of texts; name a file of single texts.")
    return found
