"""Train a text classifier that says "unknown" to texts of no known label.

    python examples/open_set.py --unknown_file out_of_scope.csv --control --output_dir out          # CLINC150
    python examples/open_set.py --output_dir out        # every 10th label is left out of training, and is unknown
    python examples/open_set.py --smoke                 # 4 steps of a tiny model, about 10 seconds

Needs the extra "plots". The data set has splits "train", "validation" and "test", and columns "text" and "label";
clinc150 comes with hf-lwal. The file of unknown texts (csv, json, parquet) has a column "text". `--control` trains the
honest control too, a one-hot head started from class means, which rejects by its largest probability.

Writes predictions.csv and scores.png. Time: about 3 minutes on one core, and 2 for the control. Not in
the paper: a text is rejected by how far its features lie from class means and its embedding from label vectors, in
units that are measured on the validation rows.
"""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
from datasets import Dataset
from scipy.special import softmax
from sklearn.metrics import roc_auc_score
from transformers import AutoTokenizer, HfArgumentParser, set_seed

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.data.sources import encode_labels, load_splits
from hf_lwal.plots.figures import new_figure, save_figure

DEFAULTS = {
    **{"max_steps": 150, "learning_rate": 1e-4, "save_strategy": "no"},
    **{"per_device_train_batch_size": 32, "per_device_eval_batch_size": 64},
}
CONTROL = {"label_method": "one_hot", "lwal_init": "class_means"}
MOST = 3.0
"""Scores above it are drawn at the right border."""


@dataclass
class Arguments:
    dataset: str = field(default="clinc150", metadata={"help": "clinc150, a folder, or a Hub name"})
    model_name_or_path: str = field(
        default="sentence-transformers/all-MiniLM-L6-v2", metadata={"help": "Hub name or folder"}
    )
    unknown_file: str | None = field(default=None, metadata={"help": "texts of no label; default: every 10th label's"})
    control: bool = field(default=False, metadata={"help": "train a one-hot head too, and compare"})
    smoke: bool = field(default=False, metadata={"help": "tiny model and data, 4 steps, no network"})


def load(options):
    """Splits with the known labels only, texts of no known label, and the names of the known labels."""
    splits = encode_labels(load_splits(options.dataset), "label")
    names = splits["train"].features["label"].names
    if options.unknown_file is not None:
        return splits, load_splits(options.unknown_file)["train"]["text"][:], names
    known = [name for name in names if name not in names[::10]]
    unknown = splits["test"].filter(lambda label: names[label] not in known, input_columns="label")["text"][:]
    splits = splits.filter(lambda label: names[label] in known, input_columns="label")
    return splits.align_labels_with_mapping({name: i for i, name in enumerate(known)}, "label"), unknown, known


def train(options, args, rows, names, tokenizer):
    """A trainer whose model has been trained on the rows."""
    set_seed(args.seed)
    model = AutoModelForLwALClassification.from_pretrained(
        options.model_name_or_path, id2label=dict(enumerate(names)), task="text"
    )
    trainer = LwALTrainer(model, args, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    return trainer


def auroc(is_unknown, scores):
    """Chance that an unknown text has the higher score, for people."""
    return f"{100 * roc_auc_score(is_unknown, scores):.1f} %"


def draw(table, path):
    """Histograms of the rejection scores."""
    figure, axes = new_figure(7.0, 4.0)
    for unknown, rows in table.groupby(table["truth"].eq("unknown")):
        scores, title = rows["rejection_score"].clip(upper=MOST), "unknown" if unknown else "known labels"
        axes.hist(scores, bins=60, range=(0.0, MOST), density=True, alpha=0.6, label=title)
    axes.axvline(1.0, color="black", linestyle="--", linewidth=1.0, label="rejected beyond")
    axes.set(xlabel="rejection score: how far outside every class", ylabel="density of the rows")
    axes.legend()
    return save_figure(figure, path)


def main():
    if "--smoke" in sys.argv:
        import smoke

        sys.argv[1:1] = smoke.arguments("texts")
    parser = HfArgumentParser((Arguments, LwALTrainingArguments))
    parser.set_defaults(**DEFAULTS)
    options, args = parser.parse_args_into_dataclasses()
    splits, unknown, names = load(options)
    tokenizer = AutoTokenizer.from_pretrained(options.model_name_or_path)

    def tokenize(batch):
        return tokenizer(batch["text"], truncation=True, max_length=128)

    rows = splits["train"].map(tokenize, batched=True)
    model = train(options, args, rows, names, tokenizer).core_model
    model.fit_rejection(splits["validation"]["text"][:], tokenizer, splits["validation"]["label"][:])
    truth = [names[label] for label in splits["test"]["label"][:]] + ["unknown"] * len(unknown)
    texts = [*splits["test"]["text"][:], *unknown]
    table = pd.DataFrame(model.predict_with_rejection(texts, tokenizer, batch_size=64))
    table = pd.DataFrame({"text": texts, "truth": truth, **table})
    is_unknown = table["truth"].eq("unknown")
    right = table["nearest"].eq(table["truth"])[~is_unknown].mean()
    rejected = table["label"].eq("unknown").groupby(is_unknown).mean()
    print(f"{len(unknown)} unknown texts: {100 * rejected[True]:.1f} % rejected")
    print(f"{(~is_unknown).sum()} of known labels: {100 * rejected[False]:.1f} % rejected")
    print(f"adaptive labels: accuracy {100 * right:.1f} %, AUROC {auroc(is_unknown, table['rejection_score'])}")
    if options.control:
        trainer = train(options, replace(args, **CONTROL), rows, names, tokenizer)
        logits = trainer.predict(Dataset.from_dict({"text": texts}).map(tokenize, batched=True)).predictions
        right = (np.asarray(names)[logits.argmax(axis=1)] == table["truth"])[~is_unknown].mean()
        table["control_score"] = 1.0 - softmax(logits, axis=1).max(axis=1)
        print(f"control: accuracy {100 * right:.1f} %, AUROC {auroc(is_unknown, table['control_score'])}")
    folder = Path(args.output_dir)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    table.to_csv(folder / "predictions.csv", index=False)
    draw(table, folder / "scores.png")


if __name__ == "__main__":
    main()
