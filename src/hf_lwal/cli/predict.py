"""``hf-lwal predict``: labels and probabilities of texts, images or sounds, for people or for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bench.comparison import load_part, quiet
from ..data.tables import quoting
from ..errors import CommandError, harmless
from ..modeling.files import write_text_atomically
from ..modeling.tasks import TASKS, inferred_task
from .flags import argument, check_above_0, option
from .predict_inputs import STANDARD_INPUT, Input, Wanted, loader, read_inputs, say
from .writing import check_output_file, writing

OUTPUTS = (".csv", ".tsv", ".json", ".jsonl")
SHOWN = 5
"""Inputs without an answer that are named one by one."""


@dataclass(frozen=True)
class PredictOptions:
    """Print the likeliest label of texts, images or sounds with its probability.

    Takes any classifier of transformers, with a label table or without.
    """

    model: str = argument("folder or Hub name of the classifier")
    inputs: list[str] = option(
        [],
        "texts; or paths of files, which are read wherever they exist, and of folders of images or sounds; - for "
        "lines of standard input",
        positional=True,
    )
    file: str | None = option(
        None,
        "rows to classify: txt (one text per line), csv, tsv, json, jsonl or parquet; - for lines of standard input",
    )
    text_column: str | None = option(None, "column of the file with the text or image; default: found by name")
    pair_column: str | None = option(None, "column of the file with the second text of a pair; default: found by name")
    id_column: str | None = option(None, "column of the file that --json and --output repeat; default: id")
    output: str | None = option(None, "file for the answers, csv, tsv, json or jsonl, instead of printing them")
    top_k: int = option(1, "labels per input, likeliest first")
    batch_size: int = option(32, "inputs per forward pass")
    json: bool = option(False, "print one JSON object per input")

    def check(self) -> None:
        """Raise for values that cannot work, before the model is loaded."""
        check_above_0(self, "top_k", "batch_size")
        if bool(self.inputs) == (self.file is not None):
            raise CommandError("Give what to classify: texts or paths after the model, or a file with --file.")
        if self.file not in (None, STANDARD_INPUT) and not Path(str(self.file)).expanduser().exists():
            raise CommandError(f"--file: there is no file {self.file!r}.")
        if self.output is not None:
            self._check_output(Path(self.output))

    def _check_output(self, path: Path) -> None:
        if path.suffix.lower() not in OUTPUTS:
            raise CommandError(f"--output: {self.output!r} must end in {', '.join(OUTPUTS)}.")
        path = check_output_file(str(path))
        if not path.absolute().parent.is_dir():
            raise CommandError(f"--output: {self.output!r} lies in a folder that does not exist: make that first.")
        sources = [Path(word).expanduser() for word in (*self.inputs, self.file) if word is not None]
        if path.exists() and any(source.exists() and path.samefile(source) for source in sources):
            raise CommandError(f"--output: {self.output!r} is what is to be classified; name another file.")


Answered = tuple[Input, list[dict[str, Any]], str | None]
"""An input, its labels with their probabilities, and why it has none."""


def run(options: PredictOptions) -> int:
    """Classify, and print or write; returns the exit code: 1 where a picture or sound could not be read."""
    options.check()
    kind = kind_of_model(options.model)
    words, wanted = options.inputs, Wanted(options.text_column, options.pair_column, options.id_column)
    given = [options.file] if options.file is not None else words
    inputs = read_inputs(given, kind, wanted, say, file=options.file is not None)
    if all(entry.value is None for entry in inputs):
        raise CommandError(f"{options.file or words!r} holds nothing to classify.")
    classify = load(options.model, kind)
    answers = _answers(inputs, classify, loader(kind, _part(classify, kind)), options, kind)
    if options.output is None:
        kept = list(_printed(answers, options.json))
    else:
        kept, file = list(answers), Path(options.output).expanduser()
        with writing(file):
            write_text_atomically(file, _as_file([_record(*entry) for entry in kept], options.output))
        print(f"Written: {options.output} ({len(kept):,} answers)")
    return _report(kept)


def kind_of_model(name: str) -> str:
    """Kind of input of a classifier, from its configuration."""
    import transformers

    config = load_part(transformers.AutoConfig, name)
    classes = config.architectures or []
    suffixes = [task.suffix for task in TASKS.values()]
    if not any(suffix in architecture for suffix in suffixes for architecture in classes):
        raise CommandError(f"{name!r} is no classifier of texts, images or sounds: its class is {', '.join(classes)}.")
    try:
        # Not from the name of its class: transformers' classifiers of sounds are called ...ForSequenceClassification.
        return inferred_task(config, None)
    except ValueError as error:
        raise CommandError(f"{name!r}: {error}") from error


def load(name: str, kind: str) -> Any:
    """Load a classifier as a pipeline."""
    import transformers

    task = TASKS[kind]
    with quiet():
        model, part = load_part(task.stock, name), load_part(task.processor, name)
        return transformers.pipeline(task.pipeline, model=model, **{task.processor_argument: part})


def _part(classify: Any, kind: str) -> Any:
    return getattr(classify, TASKS[kind].processor_argument)


def _answers(
    inputs: Sequence[Input], classify: Any, read: Callable[[Any], Any], options: PredictOptions, kind: str
) -> Iterator[Answered]:
    """An answer for every input in its order, batch by batch, so that the first come at once."""
    keywords: dict[str, Any] = {"top_k": options.top_k, "batch_size": options.batch_size}
    if kind == "text":
        from ..modeling.inference import max_length_of

        keywords["truncation"] = True
        limit = max_length_of(classify.model, classify.tokenizer)
        if limit is not None:  # which the tokenizer need not know
            keywords["max_length"] = limit
    for number in range(0, len(inputs), options.batch_size):
        batch = inputs[number : number + options.batch_size]
        values, faults = [], {}
        for place, entry in enumerate(batch):
            try:
                if entry.value is None:
                    faults[place] = "nothing to classify"
                else:
                    values.append(read(entry.value))
            except ValueError as error:
                faults[place] = f"cannot be read ({error})"
            except ImportError as error:
                raise CommandError(f"{entry.place}: {error}.") from error
        found = iter(classify(values, **keywords) if values else [])
        for place, entry in enumerate(batch):
            fault = faults.get(place)
            yield entry, [] if fault else list(next(found)), fault


def _printed(answers: Iterator[Answered], as_json: bool) -> Iterator[Answered]:
    """Print answers as they come; what has none has no line, but for programs, which count lines."""
    for entry in answers:
        if as_json:
            print(json.dumps(_record(*entry), ensure_ascii=False), flush=True)
        elif entry[2] is None:
            print(_as_text(entry[0].shown, entry[1]), flush=True)
        yield entry


def _report(answers: Sequence[Answered]) -> int:
    """Name the inputs without an answer on standard error; returns the exit code."""
    without = [(entry, fault) for entry, _, fault in answers if fault is not None]
    for entry, fault in without[:SHOWN]:
        say(f"no answer for {entry.place}: {fault}")
    if len(without) > SHOWN:
        say(f"no answer for {len(without) - SHOWN:,} more; {len(without):,} of {len(answers):,} in all")
    return int(any(entry.value is not None for entry, _ in without))


def _record(entry: Input, answers: Sequence[dict[str, Any]], fault: str | None) -> dict[str, Any]:
    """What programs get: the label is None where there is no answer."""
    record: dict[str, Any] = {} if entry.id is None else {"id": entry.id}
    record |= {"input": entry.shown, **(answers[0] if answers else {"label": None, "score": None})}
    if len(answers) > 1:
        record["top"] = list(answers)
    return record if fault is None else {**record, "error": fault}


def _as_file(records: Sequence[dict[str, Any]], name: str) -> str:
    """All records in the format that the name of the file ends in."""
    kind = Path(name).suffix.lower()
    if kind == ".json":
        return json.dumps(list(records), ensure_ascii=False, indent=2) + "\n"
    if kind == ".jsonl":
        return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    import pandas

    table = pandas.DataFrame(map(_flat, records), dtype=object)  # which leaves numbers beside gaps what they are
    separator, quoted = "," if kind == ".csv" else "\t", quoting(table.to_numpy().flat)
    return str(table.to_csv(index=False, sep=separator, lineterminator="\n", quoting=quoted))


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """A record as one row with the columns label, score, label_2, score_2 and so on."""
    more = {
        f"{name}_{place}": answer[name]
        for place, answer in enumerate(record.get("top", [])[1:], start=2)
        for name in ("label", "score")
    }
    return {name: value for name, value in record.items() if name != "top"} | more


def _as_text(name: str, answers: Sequence[dict[str, Any]]) -> str:
    labels = ", ".join(f"{answer['label']} {answer['score']:.3f}" for answer in answers)
    return harmless(f"{' '.join(labels.split())}\t{' '.join(name.split())}")
