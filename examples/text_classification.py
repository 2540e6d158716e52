"""Fine-tune a text classifier with adaptive labels, on a task of GLUE or on your own csv or json files.

    python examples/text_classification.py --task_name mrpc --model_name_or_path google-bert/bert-base-cased \
        --output_dir mrpc --learning_rate 2e-5 --num_train_epochs 3 --eval_strategy epoch
    python examples/text_classification.py --train_file train.csv --validation_file dev.csv --output_dir out
    python examples/text_classification.py --smoke        # 4 steps of a tiny model, about 10 seconds

Your files have the columns "label" and "text" (or "sentence"). All of LwALTrainingArguments can be given, for example
`--label_method one_hot --lwal_init class_means` for the honest control, or `--resume_from_checkpoint true`.

Time: that of transformers' run_glue.py, and before the first step one forward pass over 16 rows per label. Departs
from the paper: this library's default preset instead of Algorithm 1 to the letter (`--lwal_preset paper`, which wants
some 50 rows of every label in a batch), and accuracy and macro-F1 instead of GLUE's own measures.
"""

import sys
from dataclasses import dataclass, field

from datasets import load_dataset
from transformers import AutoTokenizer, HfArgumentParser, set_seed

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.data.sources import encode_labels, find_columns

TASKS = {
    "cola": ["sentence"],
    "mnli": ["premise", "hypothesis"],
    "mrpc": ["sentence1", "sentence2"],
    "qnli": ["question", "sentence"],
    "qqp": ["question1", "question2"],
    "rte": ["sentence1", "sentence2"],
    "sst2": ["sentence"],
    "wnli": ["sentence1", "sentence2"],
}
"""Columns with text; stsb is a regression, which has no labels to learn vectors of."""


@dataclass
class Arguments:
    task_name: str | None = field(default=None, metadata={"help": "task of GLUE", "choices": [*TASKS]})
    train_file: str | None = field(default=None, metadata={"help": "csv or json file"})
    validation_file: str | None = field(default=None, metadata={"help": "csv or json file"})
    model_name_or_path: str = field(default="google-bert/bert-base-uncased", metadata={"help": "Hub name or folder"})
    max_length: int = field(default=128, metadata={"help": "tokens beyond this number are cut off"})
    smoke: bool = field(default=False, metadata={"help": "tiny model and data, 4 steps, no network"})


def load(options):
    """Training rows, evaluation rows, and the columns with text; labels are ids with names."""
    if options.task_name is not None:
        splits = load_dataset("nyu-mll/glue", options.task_name)
        evaluation = splits["validation_matched" if options.task_name == "mnli" else "validation"]
        return splits["train"], evaluation, TASKS[options.task_name]
    files = {"train": options.train_file, "validation": options.validation_file}
    if None in files.values():
        raise SystemExit("Give --task_name, or --train_file and --validation_file.")
    splits = load_dataset("csv" if options.train_file.endswith(".csv") else "json", data_files=files)
    columns = find_columns(splits["train"].features)
    splits = encode_labels(splits, columns.label)
    return splits["train"], splits["validation"], [columns.input]


def main():
    if "--smoke" in sys.argv:
        import smoke

        sys.argv[1:1] = smoke.arguments("files")
    options, args = HfArgumentParser((Arguments, LwALTrainingArguments)).parse_args_into_dataclasses()
    set_seed(args.seed)
    train, evaluation, columns = load(options)
    tokenizer = AutoTokenizer.from_pretrained(options.model_name_or_path)
    model = AutoModelForLwALClassification.from_pretrained(
        options.model_name_or_path, id2label=dict(enumerate(train.features["label"].names)), task="text"
    )

    def tokenize(batch):
        return tokenizer(*(batch[column] for column in columns), truncation=True, max_length=options.max_length)

    with args.main_process_first(desc="tokenizing"):
        train, evaluation = (rows.map(tokenize, batched=True) for rows in (train, evaluation))
    trainer = LwALTrainer(model, args, train_dataset=train, eval_dataset=evaluation, processing_class=tokenizer)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    metrics = trainer.evaluate()
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
    trainer.save_model()
    card = {"finetuned_from": options.model_name_or_path, "tasks": "text-classification", "dataset": options.task_name}
    _ = trainer.push_to_hub(**card) if args.push_to_hub else trainer.create_model_card(**card)


if __name__ == "__main__":
    main()
