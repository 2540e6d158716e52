"""Fine-tune an image classifier with adaptive labels, on a folder of pictures per label or a data set of the Hub.

    python examples/image_classification.py --dataset my-pictures --model_name_or_path facebook/convnext-tiny-224 \
        --output_dir out
    python examples/image_classification.py --dataset ethz/food101 --model_name_or_path timm/resnet50.a1_in1k \
        --output_dir out --num_train_epochs 5 --push_to_hub true
    python examples/image_classification.py --smoke        # 4 steps of a tiny model, about 10 seconds

Needs the extra "vision". my-pictures has one folder per label, perhaps inside folders train and test; or it has
parquet files. All of LwALTrainingArguments can be given, for example `--label_method one_hot --lwal_init class_means`
for the honest control, or `--resume_from_checkpoint true`.

Time: that of transformers' run_image_classification.py, and before the first step one forward pass over 16 rows per
label. Departs from the paper: pretrained weights instead of training from scratch, crops and mirrored pictures in
training, and this library's default preset instead of Algorithm 1 to the letter (`--lwal_preset paper`, which wants
some 50 rows of every label in a batch).
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from torchvision import transforms
from transformers import AutoImageProcessor, HfArgumentParser, TimmWrapperImageProcessor, set_seed

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.data.sources import encode_labels, evaluation_split, find_columns, load_splits

DEFAULTS = {"learning_rate": 5e-5, "per_device_train_batch_size": 32, "warmup_steps": 0.1, "eval_strategy": "epoch"}


@dataclass
class Arguments:
    dataset: str = field(metadata={"help": "folder, parquet file or Hub name"})
    model_name_or_path: str = field(
        default="google/vit-base-patch16-224-in21k", metadata={"help": "any image backbone: Hub name or folder"}
    )
    validation_share: float = field(default=0.1, metadata={"help": "of the rows, where there is only a train split"})
    smoke: bool = field(default=False, metadata={"help": "tiny model and data, 4 steps, no network"})


def load(options, seed):
    """Training and evaluation rows with a "label", and the column with pictures."""
    splits = load_splits(options.dataset)
    columns = find_columns(splits["train"].features)
    splits = encode_labels(splits, columns.label)
    if len(splits) == 1:
        splits = splits["train"].train_test_split(options.validation_share, stratify_by_column="label", seed=seed)
    return splits["train"], evaluation_split(splits), columns.input


def transforms_of(processor):
    """What turns a picture into pixels in training and in evaluation, at the backbone's size, mean and spread."""
    if isinstance(processor, TimmWrapperImageProcessor):
        return processor.train_transforms, processor.val_transforms
    size = processor.size
    side = size["shortest_edge"] if "shortest_edge" in size else (size["height"], size["width"])
    pixels = [transforms.ToTensor(), transforms.Normalize(processor.image_mean, processor.image_std)]
    crop = [transforms.RandomResizedCrop(side, scale=(0.5, 1.0)), transforms.RandomHorizontalFlip()]
    whole = [transforms.Resize(side), transforms.CenterCrop(side)]
    return transforms.Compose([*crop, *pixels]), transforms.Compose([*whole, *pixels])


def main():
    if "--smoke" in sys.argv:
        import smoke

        sys.argv[1:1] = smoke.arguments("images")
    parser = HfArgumentParser((Arguments, LwALTrainingArguments))
    parser.set_defaults(remove_unused_columns=False, **DEFAULTS)  # pixels are made when a row is read
    options, args = parser.parse_args_into_dataclasses()
    set_seed(args.seed)
    train, evaluation, column = load(options, args.seed)
    processor = AutoImageProcessor.from_pretrained(options.model_name_or_path)
    model = AutoModelForLwALClassification.from_pretrained(
        options.model_name_or_path, id2label=dict(enumerate(train.features["label"].names)), task="image"
    )

    def reads(rows, transform):
        def read(batch):
            pixels = [transform(image.convert("RGB")) for image in batch[column]]
            return {"pixel_values": pixels, "label": batch["label"]}

        return rows.with_transform(read)

    train_transform, transform = transforms_of(processor)
    train, evaluation = reads(train, train_transform), reads(evaluation, transform)
    trainer = LwALTrainer(model, args, train_dataset=train, eval_dataset=evaluation, processing_class=processor)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    metrics = trainer.evaluate()
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
    trainer.save_model()
    card = {"finetuned_from": options.model_name_or_path, "tasks": "image-classification"}
    card["dataset"] = None if Path(options.dataset).exists() else options.dataset
    _ = trainer.push_to_hub(**card) if args.push_to_hub else trainer.create_model_card(**card)


if __name__ == "__main__":
    main()
