"""Fine-tune an image classifier with adaptive labels in a loop of your own, with Accelerate and without a Trainer.

    python examples/image_classification_no_trainer.py --dataset my-pictures --output_dir out
    accelerate launch --config_file examples/accelerate_configs/ddp.yaml --num_processes 8 \
        examples/image_classification_no_trainer.py --dataset my-pictures --output_dir out
    python examples/image_classification_no_trainer.py --smoke        # 4 steps of a tiny model, about 10 seconds

Needs the extra "vision". my-pictures has folders train and test, and in each one folder per label; or it has parquet
files of both splits. Nothing in the loop knows of label vectors: the model keeps its own class means in every training
forward with labels (`model.label_tracking` is "forward"), over all processes. Only the start pass is called by hand.
With gradient accumulation each micro-batch would be a step of the label table; LwALTrainer does better there.

Time: that of transformers' run_image_classification_no_trainer.py, and before the first step one forward pass over 16
rows per label. Departs from the paper: pretrained weights instead of training from scratch, crops and mirrored
pictures in training, and this library's default preset instead of Algorithm 1 to the letter.
"""

import sys
from dataclasses import dataclass, field

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Subset
from torchvision import transforms
from tqdm.auto import tqdm
from transformers import (
    AutoImageProcessor,
    HfArgumentParser,
    TimmWrapperImageProcessor,
    default_data_collator,
    get_scheduler,
)

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.data.labels import rows_per_class
from hf_lwal.data.sources import encode_labels, evaluation_split, find_columns, load_splits


@dataclass
class Arguments:
    dataset: str = field(metadata={"help": "folder or Hub name"})
    output_dir: str = field(metadata={"help": "folder for the model"})
    model_name_or_path: str = field(
        default="google/vit-base-patch16-224-in21k", metadata={"help": "any image backbone: Hub name or folder"}
    )
    max_steps: int = field(default=1000, metadata={"help": "optimizer steps"})
    per_device_train_batch_size: int = field(default=32, metadata={"help": "rows per step and process"})
    per_device_eval_batch_size: int = field(default=64, metadata={"help": "rows per evaluation batch and process"})
    learning_rate: float = field(default=5e-5, metadata={"help": "peak, reached after a tenth of the steps"})
    weight_decay: float = field(default=0.01, metadata={"help": "of weights; not of biases and norms"})
    workers: int = field(default=0, metadata={"help": "processes per process that read pictures"})
    seed: int = field(default=0, metadata={"help": "of the head and of the order of the rows"})
    smoke: bool = field(default=False, metadata={"help": "tiny model and data, 4 steps, no network"})


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


def optimizer_of(model, options):
    """AdamW; what learns the offsets and the scale of the label table is called "bias", and is not decayed either."""
    named = list(model.named_parameters())
    spared = [p for name, p in named if name.endswith("bias") or p.ndim < 2]  # weights of norms are vectors
    decayed = [p for name, p in named if not (name.endswith("bias") or p.ndim < 2)]
    groups = [{"params": decayed, "weight_decay": options.weight_decay}, {"params": spared, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=options.learning_rate)


@torch.no_grad()
def evaluate(model, batches, accelerator):
    """Share of rows that are right, and their number, over all processes."""
    model.eval()  # brings the label vectors up to date
    right = rows = 0
    for batch in batches:
        predicted = model(**batch).logits.argmax(dim=1)
        predicted, labels = accelerator.gather_for_metrics((predicted, batch["labels"]))
        right, rows = right + (predicted == labels).sum().item(), rows + len(labels)
    model.train()
    return right / rows, rows


def main():
    if "--smoke" in sys.argv:
        import smoke

        sys.argv[1:1] = smoke.arguments("images", trainer=False)
    (options,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    accelerator = Accelerator(cpu=options.smoke)
    set_seed(options.seed)
    with accelerator.main_process_first():
        splits = load_splits(options.dataset)
    columns = find_columns(splits["train"].features)
    splits = encode_labels(splits, columns.label)
    names = splits["train"].features["label"].names
    processor = AutoImageProcessor.from_pretrained(options.model_name_or_path)
    model = AutoModelForLwALClassification.from_pretrained(
        options.model_name_or_path, id2label=dict(enumerate(names)), task="image"
    ).to(accelerator.device)

    def reads(rows, transform):
        def read(batch):
            pixels = [transform(image.convert("RGB")) for image in batch[columns.input]]
            return {"pixel_values": pixels, "labels": batch["label"]}

        return rows.with_transform(read)

    train_transform, transform = transforms_of(processor)
    start = rows_per_class(np.asarray(splits["train"]["label"]), per_class=16, seed=options.seed)
    loading = {"collate_fn": default_data_collator, "num_workers": options.workers}
    start = DataLoader(Subset(reads(splits["train"], transform), start), options.per_device_eval_batch_size, **loading)
    # Before the optimizer and DistributedDataParallel see the weights: every process reads the same rows. In training
    # mode BatchNorm normalises by the statistics of batches here, too.
    model.train()
    model.initialize_labels(start, learning_rate=options.learning_rate)

    optimizer = optimizer_of(model, options)
    warmup = options.max_steps // 10 * accelerator.num_processes  # accelerate steps the schedule once per process
    total = options.max_steps * accelerator.num_processes
    train, test = reads(splits["train"], train_transform), reads(evaluation_split(splits), transform)
    model, optimizer, train_loader, test_loader, schedule = accelerator.prepare(
        model,
        optimizer,
        DataLoader(train, options.per_device_train_batch_size, shuffle=True, drop_last=True, **loading),
        DataLoader(test, options.per_device_eval_batch_size, **loading),
        get_scheduler("linear", optimizer, warmup, total),
    )
    before, _ = evaluate(model, test_loader, accelerator)
    accelerator.print(f"accuracy {before:.4f} before the first step")
    bar = tqdm(total=options.max_steps, disable=not accelerator.is_local_main_process)
    step = 0  # a bar that is not shown counts nothing
    while step < options.max_steps:
        for batch in train_loader:
            accelerator.backward(model(**batch).loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            bar.update()
            step += 1
            if step == options.max_steps:
                break

    accuracy, rows = evaluate(model, test_loader, accelerator)
    accelerator.print(f"accuracy {accuracy:.4f} on {rows} rows, {accelerator.num_processes} process(es)")
    accelerator.unwrap_model(model).save_pretrained(options.output_dir, is_main_process=accelerator.is_main_process)
    if accelerator.is_main_process:
        processor.save_pretrained(options.output_dir)
    accelerator.end_training()


if __name__ == "__main__":
    main()
