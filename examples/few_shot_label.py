"""Train a text classifier without some labels, then add them from five examples each, without further training.

    python examples/few_shot_label.py --output_dir out              # CLINC150 without 5 of its labels
    python examples/few_shot_label.py --dataset my-folder --new_labels refund parcel --examples 10 --output_dir out
    python examples/few_shot_label.py --smoke        # 4 steps of a tiny model, about 10 seconds

The data set has splits "train" and "test", and columns "text" and "label"; clinc150 comes with hf-lwal. All of
LwALTrainingArguments can be given, for example `--max_steps 500`.

Time: about 4 minutes on one core, most of it the training and two passes over the test rows; adding a label costs one
forward pass over its examples. Not in the paper, whose labels are fixed: the vector of a new label is what the head
gives for the mean of its examples, and stands beside those that were learned.
"""

import sys
from dataclasses import dataclass, field

import numpy as np
from transformers import AutoTokenizer, HfArgumentParser, pipeline, set_seed

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.data.sources import encode_labels, load_splits

DEFAULTS = {
    **{"max_steps": 150, "learning_rate": 1e-4, "save_strategy": "no"},
    **{"per_device_train_batch_size": 32, "per_device_eval_batch_size": 64},
}


@dataclass
class Arguments:
    dataset: str = field(default="clinc150", metadata={"help": "clinc150, a file or folder, or a Hub name"})
    model_name_or_path: str = field(
        default="sentence-transformers/all-MiniLM-L6-v2", metadata={"help": "Hub name or folder"}
    )
    new_labels: list[str] = field(default_factory=list, metadata={"help": "left out of training; default: every 30th"})
    examples: int = field(default=5, metadata={"help": "rows that each new label is added from"})
    smoke: bool = field(default=False, metadata={"help": "tiny model and data, 4 steps, no network"})


def texts_of(rows, name):
    """The texts of one label."""
    label = rows.features["label"].str2int(name)
    return rows.filter(lambda other: other == label, input_columns="label")["text"][:]


def accuracies(model, tokenizer, test, new):
    """Percent right of the rows of new labels, and of all others."""
    truth = np.asarray(test.features["label"].int2str(test["label"][:]))
    answers = model.predict(test["text"][:], tokenizer, batch_size=64)
    right = np.asarray([answer[0]["label"] for answer in answers]) == truth
    is_new = np.isin(truth, new)
    return 100 * right[is_new].mean(), 100 * right[~is_new].mean()


def main():
    if "--smoke" in sys.argv:
        import smoke

        sys.argv[1:1] = smoke.arguments("texts")
    parser = HfArgumentParser((Arguments, LwALTrainingArguments))
    parser.set_defaults(**DEFAULTS)
    options, args = parser.parse_args_into_dataclasses()
    set_seed(args.seed)
    splits = encode_labels(load_splits(options.dataset), "label")
    names = splits["train"].features["label"].names
    new = options.new_labels or names[::30]
    known = [name for name in names if name not in new]
    tokenizer = AutoTokenizer.from_pretrained(options.model_name_or_path)
    model = AutoModelForLwALClassification.from_pretrained(
        options.model_name_or_path, id2label=dict(enumerate(known)), task="text"
    )
    train = splits["train"].filter(lambda label: names[label] in known, input_columns="label")
    train = train.align_labels_with_mapping({name: i for i, name in enumerate(known)}, "label")
    train = train.map(lambda batch: tokenizer(batch["text"], truncation=True, max_length=128), batched=True)
    trainer = LwALTrainer(model, args, train_dataset=train, processing_class=tokenizer)
    trainer.train()

    before = accuracies(trainer.core_model, tokenizer, splits["test"], new)
    for name in new:
        trainer.core_model.add_label(name, texts_of(splits["train"], name)[: options.examples], tokenizer)
    after = accuracies(trainer.core_model, tokenizer, splits["test"], new)
    print(f"{'accuracy in %':30s} {len(new)} new labels  {len(known)} others")
    for title, (of_new, of_others) in ((f"{len(known)} labels", before), (f"{options.examples} examples each", after)):
        print(f"{title:30s} {of_new:12.1f} {of_others:10.1f}")

    trainer.save_model()
    classify = pipeline("text-classification", model=args.output_dir)  # the new labels come with the model
    for name in new:
        text = texts_of(splits["test"], name)[0]
        print(f"{text!r} ({name}): {classify(text)[0]['label']}")


if __name__ == "__main__":
    main()
