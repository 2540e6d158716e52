"""What the lines of a file of results say: measures of every method, over seeds and against the tuned reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import CommandError
from ..metrics import MeanAndSd, auac, mean_and_sd, percent_reduced, steps_to_accuracy
from .methods import REFERENCE

START_COST = 1.0 / 3.0
"""Of a training row: a row of the start pass goes forwards only, which is a third of forwards and backwards."""


class Setting(NamedTuple):
    """What all methods of one table share."""

    dataset: str
    source: str
    train_rows: int | None
    test_rows: int | None
    model: str
    from_config: bool
    batch_size: int | str
    optimizer: str
    steps: int | None
    epochs: int | None
    evaluations: int | None
    rows_per_label: int | None = None

    def __str__(self) -> str:
        budget = f"{self.steps} steps" if self.steps else f"{self.epochs} epochs"
        weights = ", random weights" if self.from_config else ""
        few = f", {self.rows_per_label} rows per label" if self.rows_per_label else ""
        return f"{self.dataset}{few}, {self.model}{weights}, batch {self.batch_size}, {budget}, {self.optimizer}"


class Run(NamedTuple):
    """One finished training.

    Attributes:
        seed: its seed.
        curve: (step, accuracy in percent) per evaluation; a step counts the start pass.
        timed_curve: (seconds, accuracy in percent), evaluations left out and the start pass included.
        f1_macro: percent.
        seconds: "training" without evaluations and start pass, "start", and "with_evaluation" for everything.
        start_samples: rows of the start pass.
        rows: "train" and "test".
        device: processor or GPU.
        structure: what `structure.measure_structure` found, or None.
        calibration_error: percent, at the end; None where it was not measured.
    """

    seed: int
    curve: list[tuple[float, float]]
    timed_curve: list[tuple[float, float]]
    f1_macro: float
    seconds: Mapping[str, float]
    start_samples: int
    rows: Mapping[str, int]
    device: str
    structure: Mapping[str, Any] | None = None
    calibration_error: float | None = None

    @property
    def accuracies(self) -> list[float]:
        """After the first step."""
        return [accuracy for _, accuracy in self.curve[1:]]


MEASURES: dict[str, Callable[[Run], float | None]] = {
    "step 0": lambda run: run.curve[0][1],
    "best": lambda run: max(run.accuracies),
    "final": lambda run: run.accuracies[-1],
    "AUAC": lambda run: auac(run.accuracies),
    "macro-F1": lambda run: run.f1_macro,
    "ECE": lambda run: run.calibration_error,
    "training, s": lambda run: run.seconds["training"] + run.seconds["start"],
}
"""Column → measure of a training; ``training, s`` leaves evaluations out."""


@dataclass(frozen=True)
class Entry:
    """A method at a learning rate in a setting.

    Attributes:
        method: its name.
        learning_rate: peak learning rate.
        runs: finished trainings, in the order of their seeds.
        planned: number of trainings asked for.
        failed: whether one failed.
    """

    method: str
    learning_rate: float
    runs: Sequence[Run]
    planned: int
    failed: bool

    def __getitem__(self, measure: str) -> MeanAndSd | None:
        """Mean and spread over seeds of one of `MEASURES`; None without runs."""
        return _mean(map(MEASURES[measure], self.runs))

    def structure(self, measure: str, metric: str) -> MeanAndSd | None:
        """A measure of the label vectors, "correlation" or "disparity", over the seeds where it is defined."""
        return _mean((run.structure or {}).get(measure, {}).get(metric) for run in self.runs)


class Speed(NamedTuple):
    """How fast a method reaches the tuned reference's best accuracy; None where it never does.

    Attributes:
        steps: optimizer steps until then.
        steps_saved: percent of the reference's steps.
        time_saved: percent of the reference's seconds of training.
        reached: with how many seeds.
    """

    steps: MeanAndSd | None
    steps_saved: MeanAndSd | None
    time_saved: MeanAndSd | None
    reached: int


class Table(NamedTuple):
    """All methods of one setting."""

    setting: Setting
    entries: list[Entry]

    @property
    def methods(self) -> list[str]:
        """Names in the order of the file."""
        return list(dict.fromkeys(entry.method for entry in self.entries))

    @property
    def learning_rates(self) -> list[float]:
        """In ascending order."""
        return sorted({entry.learning_rate for entry in self.entries})

    def entry(self, method: str, learning_rate: float) -> Entry | None:
        """The entry of a method at a learning rate, if it was asked for."""
        found = (one for one in self.entries if (one.method, one.learning_rate) == (method, learning_rate))
        return next(found, None)

    def tuned(self, method: str) -> Entry:
        """The method at the learning rate with the highest mean best accuracy; of equals at the smallest.

        Only rates with the most seeds count: one that was tried with a single seed may have been lucky.
        """

        def rank(entry: Entry) -> tuple[int, float, float]:
            best = entry["best"]
            return len(entry.runs), -1.0 if best is None else best.mean, -entry.learning_rate

        return max((entry for entry in self.entries if entry.method == method), key=rank)

    @property
    def reference(self) -> Entry | None:
        """`REFERENCE` at its best learning rate; None where it did not run."""
        entry = self.tuned(REFERENCE) if REFERENCE in self.methods else None
        return entry if entry is not None and entry.runs else None

    def speed(self, entry: Entry) -> Speed:
        """Compare a method with the tuned reference of the same seed, seed by seed."""
        references = {} if self.reference is None else {run.seed: run for run in self.reference.runs}
        steps, saved, time_saved = [], [], []
        for run in entry.runs:
            if run.seed not in references:
                continue
            other = references[run.seed]
            target = max(other.accuracies)
            own = steps_to_accuracy(run.curve, target)
            if own is None:
                continue
            steps.append(own)
            saved.append(percent_reduced(steps_to_accuracy(other.curve, target), own))
            seconds = [steps_to_accuracy(one.timed_curve, target) for one in (other, run)]
            time_saved.append(percent_reduced(*seconds))
        return Speed(_mean(steps), _mean(saved), _mean(time_saved), len(steps))


def _mean(values: Iterable[float | None]) -> MeanAndSd | None:
    """Mean and spread of what there is."""
    found = [value for value in values if value is not None]
    return mean_and_sd(found) if found else None


def tables(records: Iterable[Mapping[str, Any]], plan: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Sort lines into tables, one per setting, in the order of their first appearance.

    Args:
        records: lines of a file of results; the last finished one of a key counts.
        plan: key → settings of all cells that were asked for.

    Raises:
        CommandError: lines of one table were measured on different rows.
    """
    finished: dict[str, Mapping[str, Any]] = {}
    failed: set[str] = set()
    cells: dict[str, Mapping[str, Any]] = dict(plan)
    for record in records:
        cells.setdefault(record["key"], record["settings"])
        if "error" in record:
            failed.add(record["key"])
        else:
            finished[record["key"]] = record
    groups: dict[Setting, dict[tuple[str, float], list[str]]] = {}
    for key, settings in cells.items():
        setting = Setting(**{name: settings[name] for name in Setting._fields if name in settings})
        place = (str(settings["method"]["name"]), float(settings["learning_rate"]))
        groups.setdefault(setting, {}).setdefault(place, []).append(key)
    found = []
    for setting, places in groups.items():
        entries = []
        for place, keys in places.items():
            runs = sorted((_run(finished[key]) for key in keys if key in finished), key=lambda run: run.seed)
            entries.append(Entry(*place, runs, len(keys), any(key in failed and key not in finished for key in keys)))
        found.append(Table(setting, entries))
        _check_rows(found[-1])
    return found


def _run(record: Mapping[str, Any]) -> Run:
    cost = START_COST * record["start_samples"] / record["batch_rows"]  # in steps
    seconds, last = record["seconds"], record["curve"][-1][0]
    start, per_step = seconds["start"], seconds["training"] / last
    return Run(
        seed=record["settings"]["seed"],
        curve=[(step + cost, 100.0 * accuracy) for step, accuracy in record["curve"]],
        timed_curve=[(start + per_step * step, 100.0 * accuracy) for step, accuracy in record["curve"]],
        f1_macro=100.0 * record["f1_macro"],
        seconds=seconds,
        start_samples=record["start_samples"],
        rows=record["rows"],
        device=record["machine"]["device"],
        structure=record.get("structure"),
        calibration_error=None if (error := record.get("calibration_error")) is None else 100.0 * error,
    )


def _check_rows(table: Table) -> None:
    """Accuracies on different rows have no place in one table."""
    seen = {(run.rows["train"], run.rows["test"]) for entry in table.entries for run in entry.runs}
    if len(seen) > 1:
        raise CommandError(
            f"The lines of {table.setting} come from different rows (train, test): "
            f"{', '.join(map(str, sorted(seen)))}; keep them in separate files."
        )
