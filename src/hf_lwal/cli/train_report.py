"""What ``hf-lwal train`` leaves behind: measurements, curves and model card; and what to do with the model next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data import EMBEDDED
from ..errors import CommandError, reason
from ..modeling.label_table_file import FILE_NAME
from ..modeling.tasks import TASKS
from ..training.folder_lock import LOCK_FILE
from .train_data import prepare_rows

if TYPE_CHECKING:
    from ..training.trainer import LwALTrainer
    from .train_model import Job

NOT_UPLOADED = ("checkpoint-*", "control/*", "training_args.bin", "trainer_state.json")
"""What a training leaves beside the model: large, another model, or telling of the machine."""
ERROR = "calibration_error"
SPLITS = {"eval": "validation", "test": "test"}
"""Prefix of a metric → the rows it was measured on."""


def report(job: Job, trained: Mapping[str, LwALTrainer]) -> list[str]:
    """Measure, write metrics, curves and card, push where asked; returns the closing lines.

    The first trainer is that of the user's model, a second one that of the control.
    """
    curves = {name: learning_curve(trainer) for name, trainer in trained.items()}
    metrics = {name: _measure(trainer, job) for name, trainer in trained.items()}
    trainer, *_ = trained.values()
    controls = list(trained)[1:]
    for control in controls:
        trainer.save_metrics("control", {f"control_{key}": value for key, value in metrics[control].items()})
    notes: list[str] = []
    if trainer.is_world_process_zero():
        drawn = _write_curves(curves, job.output), _write_reliability(trained, job)
        notes = list(dict.fromkeys(filter(None, drawn)))
    # Without evaluations during training there is the one of the saved model.
    last = {name: [(trainer.state.global_step, 100.0 * metrics[name]["eval_accuracy"])] for name in controls}
    shares = {name: [(int(step), value / 100.0) for step, value in curves[name] or last[name]] for name in controls}
    tests = {name: metrics[name]["test_accuracy"] for name in controls if "test_accuracy" in metrics[name]}
    trainer.create_model_card(
        finetuned_from=job.start.base,
        tasks=TASKS[job.rows.columns.kind].pipeline,
        controls=shares,
        control_tests=tests,
        command="hf-lwal train train.yaml",
        **_data_for_card(job.data),
    )
    lines = [
        "",
        *render(metrics),
        "",
        *_chosen(trainer, job.rows.test is not None),
        *_calibrated(trainer, metrics),
        *notes,
    ]
    lines.append(f"Written to {job.output}: {', '.join(written(job.output))}")
    if trainer.args.push_to_hub:
        lines.append(f"Pushed to {_push(trainer, job)}")
    return [*lines, "", "Next:", *(f"  {step}" for step in next_steps(job, trainer))]


def _data_for_card(data: str) -> dict[str, Any]:
    """Name of the data, and its id where it has one on the Hub."""
    if data in EMBEDDED or Path(data).exists():
        return {"dataset": Path(data).name}
    name, _, configuration = data.partition(":")
    known = {"dataset": name, "dataset_tags": name}
    return {**known, "dataset_args": configuration} if configuration else known


def learning_curve(trainer: LwALTrainer) -> list[tuple[float, float]]:
    """Points (step, validation accuracy in percent) of the log so far."""
    log = trainer.state.log_history
    return [(entry["step"], 100.0 * entry["eval_accuracy"]) for entry in log if "eval_accuracy" in entry]


def _measure(trainer: LwALTrainer, job: Job) -> dict[str, float]:
    """Metrics of the model as it is saved, on the validation rows and, where there are any, on the test rows."""
    metrics = dict(trainer.evaluate(metric_key_prefix="eval"))
    trainer.save_metrics("eval", metrics)
    if job.rows.test is not None:
        rows = prepare_rows(job.rows.test, job.rows, job.start.processing_class, job.max_length, by_length=True)
        measured = trainer.evaluate(rows, metric_key_prefix="test")
        trainer.save_metrics("test", measured)
        metrics |= measured
    return metrics


def render(metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Accuracy, macro-F1 and calibration error, where measured, in percent as a table, one row per method.

    >>> for line in render({"LwAL": {"eval_accuracy": 0.5, "eval_f1_macro": 0.25}}):
    ...     print(line)
    method  validation accuracy  macro-F1
    LwAL                   50.0      25.0
    """
    prefixes = [prefix for prefix in SPLITS if any(f"{prefix}_accuracy" in values for values in metrics.values())]
    titles = {"accuracy": "accuracy", "f1_macro": "macro-F1"}
    if all(f"{prefix}_{ERROR}" in values for values in metrics.values() for prefix in prefixes):
        titles[ERROR] = "ECE"
    heads = (
        f"{SPLITS[prefix]} {title}" if title == "accuracy" else title
        for prefix in prefixes
        for title in titles.values()
    )
    rows = [["method", *heads]]
    for name, values in metrics.items():
        numbers = (values[f"{prefix}_{key}"] for prefix in prefixes for key in titles)
        rows.append([name, *(f"{100.0 * number:.1f}" for number in numbers)])
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]


def _chosen(trainer: LwALTrainer, tested: bool) -> list[str]:
    """Which step the model is from, and what its accuracy on the rows that chose it is worth."""
    best = trainer.state.best_model_checkpoint
    if not trainer.args.load_best_model_at_end or best is None:
        return [f"The model is the one after the last step, {trainer.state.global_step}."]
    step = Path(best).name.rpartition("-")[2]
    metric = trainer.best_metric
    chosen = f"The model is the best of {trainer.state.global_step} steps by validation {metric}, from step {step}."
    if tested:
        return [chosen]
    return [
        chosen,
        "The validation rows chose it, so what is measured on them is a little too good: --test-share 0.1 sets rows "
        "apart that only measure.",
    ]


def _calibrated(trainer: LwALTrainer, metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    """What the temperature did to the probabilities, and what that is worth."""
    temperature, (values, *_) = trainer.compute_metrics.temperature, metrics.values()
    if temperature == 1.0:
        return []
    errors = [
        f"{100.0 * before:.1f} → {100.0 * values[f'{prefix}_{ERROR}']:.1f} % on the {title} rows"
        for prefix, title in SPLITS.items()
        if (before := values.get(f"{prefix}_{ERROR}_before")) is not None
    ]
    chose = ", which also chose the checkpoint," if trainer.state.best_model_checkpoint else ""
    return [
        f"Calibrated on the validation rows{chose} with temperature {temperature:.3g}: "
        f"expected calibration error {', '.join(errors)}."
    ]


def _write_reliability(trained: Mapping[str, LwALTrainer], job: Job) -> str | None:
    """Draw how often probabilities are right; a sentence instead of a picture where there is no matplotlib."""
    from ..plots import plot_reliability

    titles = {"": "", "before": ", before calibration", "after": ", calibrated"}
    curves = {
        f"{name}{titles[kind]}": found
        for name, trainer in trained.items()
        for kind, found in sorted(trainer.compute_metrics.reliability.items(), reverse=True)
    }
    try:
        plot_reliability(
            curves, job.output / "reliability.png", title="validation rows" if job.rows.test is None else "test rows"
        )
    except ImportError as error:
        return str(error)
    return None


def _write_curves(curves: Mapping[str, Sequence[tuple[float, float]]], output: Path) -> str | None:
    """Draw the learning curves; a sentence instead of a picture where there is no matplotlib."""
    from ..plots import plot_learning_curves

    if not any(curves.values()):
        return "No curves: nothing was evaluated during training."
    try:
        plot_learning_curves(curves, output / "curves.png", ylabel="validation accuracy (%)")
    except ImportError as error:
        return str(error)
    return None


def _push(trainer: LwALTrainer, job: Job) -> str:
    """Push the output folder, and say where it went."""
    try:
        return str(trainer.push_to_hub())
    except (OSError, ValueError) as error:
        raise CommandError(
            f"The model is saved in {job.output}, but pushing it failed: {reason(error).rstrip('.')}. Try again with "
            f"`{upload_command(job.output)}`."
        ) from error


def written(output: Path) -> list[str]:
    """Names in the output folder, checkpoints and what goes at the end apart."""
    names = [path.name + "/" * path.is_dir() for path in output.iterdir()]
    return sorted(name for name in names if not name.startswith(("checkpoint-", ".", LOCK_FILE)))


def next_steps(job: Job, trainer: LwALTrainer) -> list[str]:
    """Commands that do something with the model."""
    folder = shlex.quote(str(job.output))
    example = '"some text"' if job.rows.columns.kind == "text" else "picture.png"
    table = None if trainer.lwal_model is None else trainer.lwal_model.label_table
    rejects = table is not None and bool((table.rejection_radii > 0).all())
    steps = [f"hf-lwal predict {folder} {example}" + " --reject unknown" * rejects]
    if (job.output / FILE_NAME).exists():  # the other methods train stock classifiers
        steps.append(f"hf-lwal hierarchy {folder} --output {shlex.quote(f'{job.output}-hierarchy')}")
        steps.append(f"hf-lwal fold {folder} --output {shlex.quote(f'{job.output}-stock')}")
    if not trainer.args.push_to_hub:
        steps.append(upload_command(job.output))
    return steps


def upload_command(output: Path) -> str:
    """The command that uploads the model alone, seen by its owner: no checkpoints, no control, no local settings."""
    left_out = " ".join(f"--exclude {shlex.quote(pattern)}" for pattern in NOT_UPLOADED)
    return f"hf upload YOUR-NAME/{output.resolve().name} {shlex.quote(str(output))} --private {left_out}"
