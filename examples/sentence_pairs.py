"""Classify pairs of sentences whose labels are unequally frequent, and write predictions for a test set.

    python examples/sentence_pairs.py --dataset nyu-mll/glue:mrpc --output_dir out
    python examples/sentence_pairs.py --dataset my-pairs --columns query answer --output_dir out
    python examples/sentence_pairs.py --smoke        # 4 steps of a tiny model, about 10 seconds

my-pairs holds train.csv, validation.csv and test.csv. The columns with the sentences are found by their usual names
(sentence1 and sentence2, premise and hypothesis, ...) or given; the test rows need no labels. All of
LwALTrainingArguments can be given.

Beyond text_classification.py: rows of rare labels weigh more (`--lwal_class_weights balanced`), the epoch with the
best macro-F1 is kept, out/predictions.csv has the label and the probabilities of every test row, and a pipeline with
text and text_pair answers at the end.

Time: that of transformers' run_glue.py, and before the first step one forward pass over 16 rows per label. Departs
from the paper, which has no pairs and no weights: this library's default preset.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoTokenizer, HfArgumentParser, pipeline, set_seed

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.cli.train_data import choose_columns
from hf_lwal.data.sources import encode_labels, evaluation_split, load_splits

DEFAULTS = {
    "lwal_class_weights": "balanced",
    "metric_for_best_model": "f1_macro",
    "load_best_model_at_end": True,
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "save_total_limit": 1,
    "learning_rate": 3e-5,
    "per_device_train_batch_size": 32,
}


@dataclass
class Arguments:
    dataset: str = field(metadata={"help": "folder or Hub name with train and validation, perhaps test"})
    model_name_or_path: str = field(default="google-bert/bert-base-uncased", metadata={"help": "Hub name or folder"})
    columns: list[str] = field(default_factory=list, metadata={"help": "the two columns with text"})
    label_column: str | None = field(default=None, metadata={"help": "column with the label"})
    max_length: int = field(default=128, metadata={"help": "tokens of a pair; the longer text is cut first"})
    smoke: bool = field(default=False, metadata={"help": "tiny model and data, 4 steps, no network"})


def write_predictions(path, texts, logits, names):
    """A csv file with both texts, the likeliest label and the probability of every label; one row per pair."""
    probabilities = torch.tensor(logits).softmax(dim=1)  # (N, C)
    rows = {**texts, "prediction": [names[label] for label in probabilities.argmax(dim=1)]}
    rows |= {f"probability of {name}": probabilities[:, label].tolist() for label, name in enumerate(names)}
    Dataset.from_dict(rows).to_csv(path)


def main():
    if "--smoke" in sys.argv:
        import smoke

        sys.argv[1:1] = smoke.arguments("pairs")
    parser = HfArgumentParser((Arguments, LwALTrainingArguments))
    parser.set_defaults(**DEFAULTS)
    options, args = parser.parse_args_into_dataclasses()
    set_seed(args.seed)
    splits = load_splits(options.dataset)
    first, second = options.columns or (None, None)
    columns, second = choose_columns(splits["train"].features, first, second, options.label_column)
    if second is None:
        found = ", ".join(splits["train"].features)
        raise SystemExit(f"Which two columns hold the texts? Name them with --columns: {found}.")
    test = splits.pop("test", None)
    splits = encode_labels(splits, columns.label)
    names = splits["train"].features["label"].names
    tokenizer = AutoTokenizer.from_pretrained(options.model_name_or_path)
    model = AutoModelForLwALClassification.from_pretrained(
        options.model_name_or_path, id2label=dict(enumerate(names)), task="text"
    )

    def tokenize(batch):
        return tokenizer(batch[columns.input], batch[second], truncation=True, max_length=options.max_length)

    with args.main_process_first(desc="tokenizing"):
        train, evaluation = (rows.map(tokenize, batched=True) for rows in (splits["train"], evaluation_split(splits)))
    trainer = LwALTrainer(model, args, train_dataset=train, eval_dataset=evaluation, processing_class=tokenizer)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    metrics = trainer.evaluate()
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
    trainer.save_model()
    card = {"finetuned_from": options.model_name_or_path, "tasks": "text-classification"}
    _ = trainer.push_to_hub(**card) if args.push_to_hub else trainer.create_model_card(**card)
    if test is None:
        return

    texts = {column: test[column][:] for column in (columns.input, second)}
    unlabelled = test.select_columns(list(texts)).map(tokenize, batched=True)
    logits = trainer.predict(unlabelled).predictions
    if not trainer.is_world_process_zero():
        return
    write_predictions(Path(args.output_dir, "predictions.csv"), texts, logits, names)
    classify = pipeline("text-classification", model=args.output_dir)
    pair = {"text": texts[columns.input][0], "text_pair": texts[second][0]}
    print(pair, classify(pair))


if __name__ == "__main__":
    main()
