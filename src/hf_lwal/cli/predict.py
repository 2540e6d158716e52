"""``hf-lwal predict``: labels and probabilities of texts, images or sounds, for people or for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ..bench.comparison import load_part, quiet
from ..errors import CommandError
from ..modeling.files import write_text_atomically
from ..modeling.tasks import TASKS, inferred_task
from .flags import argument, check_above_0, option
from .predict_answers import as_file, as_text, record_of
from .predict_inputs import STANDARD_INPUT, Group, Input, Wanted, loader, read_groups, remark, say
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
    id_column: str | None = option(
        None, "column of the file that --json and --output repeat; default: id, or the only one such as ticket_id"
    )
    output: str | None = option(None, "file for the answers, csv, tsv, json or jsonl, instead of printing them")
    top_k: int = option(1, "labels per input, likeliest first")
    batch_size: int = option(32, "inputs per forward pass")
    reject: str | None = option(
        None,
        "what to call inputs that belong to none of the labels, for example unknown; for models whose radii are "
        "known, as of `hf-lwal train --fit-rejection`",
    )
    threshold: float | None = option(
        None, "with --reject: rejection score above which an input is rejected; a larger one rejects less (default: 1)"
    )
    json: bool = option(False, "print one JSON object per input")

    def check(self) -> None:
        """Raise for values that cannot work, before the model is loaded."""
        check_above_0(self, "top_k", "batch_size", "threshold")
        if self.reject is None and self.threshold is not None:
            raise CommandError("--threshold is for --reject, which says what to call inputs of no label: add it.")
        if self.reject is not None and not self.reject.strip():
            raise CommandError("--reject is empty: give a word for inputs of no label, for example --reject unknown.")
        if self.reject is not None and self.top_k > 1:
            raise CommandError("--reject gives one answer and --top-k several: leave one of them out.")
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
    groups = read_groups(given, kind, wanted, remark, file=options.file is not None)
    groups = begun(groups, options.file or words)
    classify = load(options.model, kind)
    answers = _answers(groups, classifier(classify, options, kind), loader(kind, _part(classify, kind)), options)
    if options.output is None:
        return _report(_printed(answers, options.json))
    kept, file = list(answers), Path(options.output).expanduser()
    with writing(file):
        write_text_atomically(file, as_file([record_of(*entry) for entry in kept], options.output))
    print(f"Written: {options.output} ({len(kept):,} answers)")
    return _report(kept)


def begun(groups: Iterator[Group], given: Any) -> Iterator[Group]:
    """The same groups, read up to the first that holds something to classify.

    Raises:
        CommandError: none does.
    """
    seen: list[Group] = []
    for group in groups:
        seen.append(group)
        if any(entry.value is not None for entry in group):
            return chain(seen, groups)
    raise CommandError(f"{given!r} holds nothing to classify.")


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


Classify = Callable[[list[Any]], Iterable[list[dict[str, Any]]]]
"""From the values of inputs to their labels with probabilities."""


def classifier(pipeline: Any, options: PredictOptions, kind: str) -> Classify:
    """What a pipeline answers, or with ``--reject`` its model."""
    if options.reject is not None:
        return _with_rejection(pipeline.model, _part(pipeline, kind), options)
    keywords: dict[str, Any] = {"top_k": options.top_k, "batch_size": options.batch_size}
    if kind == "text":
        from ..modeling.inference import max_length_of

        keywords["truncation"] = True
        limit = max_length_of(pipeline.model, pipeline.tokenizer)
        if limit is not None:  # which the tokenizer need not know
            keywords["max_length"] = limit
    return lambda values: pipeline(values, **keywords)


def _with_rejection(model: Any, part: Any, options: PredictOptions) -> Classify:
    """Labels, or the word for none of them.

    Raises:
        CommandError: the model cannot tell, or the word is one of its labels.
    """
    from ..modeling.modeling_lwal import LwALPreTrainedModel
    from ..modeling.open_set import RejectionScores

    if not isinstance(model, LwALPreTrainedModel):
        raise CommandError(f"--reject needs a model with a label table, but {options.model!r} is a stock classifier.")
    if options.reject in model.config.label_names.values():
        raise CommandError(f"--reject: {options.reject!r} is a label of the model; choose another word.")
    try:
        RejectionScores(model)
    except ValueError as error:
        raise CommandError(
            f"--reject: how far rows of a label usually lie from it was not measured for {options.model!r}: train "
            "with --fit-rejection, or call model.fit_rejection(texts, tokenizer, labels) in Python and save the model."
        ) from error

    def classify(values: list[Any]) -> Iterable[list[dict[str, Any]]]:
        inputs = [(value["text"], value["text_pair"]) if isinstance(value, dict) else value for value in values]
        threshold = 1.0 if options.threshold is None else options.threshold
        rows = model.predict_with_rejection(
            inputs, part, str(options.reject), threshold=threshold, batch_size=options.batch_size
        )
        return ([row] for row in rows)

    return classify


def _answers(
    groups: Iterable[Group], classify: Classify, read: Callable[[Any], Any], options: PredictOptions
) -> Iterator[Answered]:
    """An answer for every input in its order, batch by batch, so that the first come at once."""
    batches = (
        group[number : number + options.batch_size]
        for group in groups
        for number in range(0, len(group), options.batch_size)
    )
    for batch in batches:
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
        found = iter(classify(values) if values else [])
        for place, entry in enumerate(batch):
            fault = faults.get(place)
            yield entry, [] if fault else list(next(found)), fault


def _printed(answers: Iterator[Answered], as_json: bool) -> Iterator[Answered]:
    """Print answers as they come; what has none has no line, but for programs, which count lines."""
    for entry in answers:
        if as_json:
            print(json.dumps(record_of(*entry), ensure_ascii=False), flush=True)
        elif entry[2] is None:
            print(as_text(entry[0].shown, entry[1]), flush=True)
        yield entry


def _report(answers: Iterable[Answered]) -> int:
    """Name the inputs without an answer on standard error; returns the exit code."""
    named, without, total, unreadable = [], 0, 0, False
    for entry, _, fault in answers:
        total += 1
        if fault is not None:
            without += 1
            unreadable |= entry.value is not None
            named += [f"no answer for {entry.place}: {fault}"] * (without <= SHOWN)
    for line in named:
        say(line)
    if without > SHOWN:
        say(f"no answer for {without - SHOWN:,} more; {without:,} of {total:,} in all")
    return int(unreadable)
