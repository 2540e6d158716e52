"""Fine-tune a text classifier with adaptive labels in a loop of your own, with Accelerate and without a Trainer.

    python examples/text_classification_no_trainer.py --dataset fancyzhx/ag_news --output_dir out
    accelerate launch --config_file examples/accelerate_configs/ddp.yaml --num_processes 8 \
        examples/text_classification_no_trainer.py --dataset my-folder --output_dir out
    python examples/text_classification_no_trainer.py --smoke        # 4 steps of a tiny model, about 10 seconds

The data set has splits "train" and "validation" or "test", and columns "text" and "label". Nothing in the loop knows
of label vectors: the model keeps its own class means in every training forward with labels (`model.label_tracking` is
"forward"), over all processes. Only the start pass is called by hand. With gradient accumulation each micro-batch
would be a step of the label table; LwALTrainer does better there.

Time: that of transformers' run_glue_no_trainer.py, and before the first step one forward pass over 16 rows per label.
Departs from the paper: this library's default preset instead of Algorithm 1 to the letter.
"""

import sys
from dataclasses import dataclass, field

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import load_dataset
from torch.utils.data import DataLoader, Subset
from tqdm.auto import tqdm
from transformers import AutoTokenizer, DataCollatorWithPadding, HfArgumentParser, get_scheduler

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.data.labels import rows_per_class
from hf_lwal.data.sources import encode_labels


@dataclass
class Arguments:
    dataset: str = field(metadata={"help": "Hub name or folder"})
    output_dir: str = field(metadata={"help": "folder for the model"})
    model_name_or_path: str = field(default="google-bert/bert-base-uncased", metadata={"help": "Hub name or folder"})
    max_steps: int = field(default=1000, metadata={"help": "optimizer steps"})
    per_device_train_batch_size: int = field(default=32, metadata={"help": "rows per step and process"})
    per_device_eval_batch_size: int = field(default=64, metadata={"help": "rows per evaluation batch and process"})
    learning_rate: float = field(default=5e-5, metadata={"help": "peak, reached after a tenth of the steps"})
    weight_decay: float = field(default=0.01, metadata={"help": "of all parameters but biases and norms"})
    seed: int = field(default=0, metadata={"help": "of the head and of the order of the rows"})
    smoke: bool = field(default=False, metadata={"help": "tiny model and data, 4 steps, no network"})


def optimizer_of(model, options):
    """AdamW; what learns the offsets and the scale of the label table is called "bias", and is not decayed either."""
    spared = [name for name, _ in model.named_parameters() if name.endswith("bias") or "norm" in name.lower()]
    groups = [([p for n, p in model.named_parameters() if n not in spared], options.weight_decay)]
    groups += [([p for n, p in model.named_parameters() if n in spared], 0.0)]
    return torch.optim.AdamW(
        [{"params": params, "weight_decay": decay} for params, decay in groups], lr=options.learning_rate
    )


def main():
    if "--smoke" in sys.argv:
        import smoke

        sys.argv[1:1] = smoke.arguments("texts", trainer=False)
    (options,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    accelerator = Accelerator(cpu=options.smoke)
    set_seed(options.seed)
    splits = encode_labels(load_dataset(options.dataset), "label")
    names = splits["train"].features["label"].names
    tokenizer = AutoTokenizer.from_pretrained(options.model_name_or_path)
    model = AutoModelForLwALClassification.from_pretrained(
        options.model_name_or_path, id2label=dict(enumerate(names)), task="text"
    ).to(accelerator.device)
    with accelerator.main_process_first():
        splits = splits.rename_column("label", "labels").map(
            lambda batch: tokenizer(batch["text"], truncation=True, max_length=128), batched=True
        )
    splits = splits.select_columns(["labels", *tokenizer.model_input_names])
    train, test = splits["train"], splits["validation" if "validation" in splits else "test"]
    collate, size = DataCollatorWithPadding(tokenizer), options.per_device_eval_batch_size
    start = Subset(train, rows_per_class(np.asarray(train["labels"]), per_class=16, seed=options.seed))
    # Before the optimizer and DistributedDataParallel see the weights: every process reads the same rows.
    model.initialize_labels(DataLoader(start, size, collate_fn=collate), learning_rate=options.learning_rate)

    optimizer = optimizer_of(model, options)
    warmup = options.max_steps // 10 * accelerator.num_processes  # accelerate steps the schedule once per process
    total = options.max_steps * accelerator.num_processes
    model, optimizer, train_loader, test_loader, schedule = accelerator.prepare(
        model,
        optimizer,
        DataLoader(train, options.per_device_train_batch_size, shuffle=True, drop_last=True, collate_fn=collate),
        DataLoader(test, size, collate_fn=collate),
        get_scheduler("linear", optimizer, warmup, total),
    )
    model.train()
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

    model.eval()  # brings the label vectors up to date
    right = rows = 0
    for batch in test_loader:
        with torch.no_grad():
            predicted = model(**batch).logits.argmax(dim=1)
        predicted, labels = accelerator.gather_for_metrics((predicted, batch["labels"]))
        right, rows = right + (predicted == labels).sum().item(), rows + len(labels)
    accelerator.print(f"accuracy {right / rows:.4f} on {rows} rows, {accelerator.num_processes} process(es)")
    accelerator.unwrap_model(model).save_pretrained(options.output_dir, is_main_process=accelerator.is_main_process)
    if accelerator.is_main_process:
        tokenizer.save_pretrained(options.output_dir)
    accelerator.end_training()


if __name__ == "__main__":
    main()
