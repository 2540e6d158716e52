"""A loop with Accelerate in the manner of transformers' no_trainer examples, with the model's name swapped.

python tests/swap_loop.py --model FOLDER --modality image --output_dir out --checkpointing_steps epoch
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from huggingface_hub import HfApi
from swap_data import NAMES, STRING_LABELS, collate_images, rows_for
from torch.utils.data import DataLoader
from transformers import AutoConfig, PreTrainedModel, default_data_collator, get_scheduler

from hf_lwal import AutoModelForLwALClassification

EPOCHS = 4


def parse(line: list[str] | None) -> argparse.Namespace:
    """Options with the names that the scripts give them."""
    parser = argparse.ArgumentParser()
    for name in ("--model", "--modality", "--output_dir", "--resume_from_checkpoint", "--hub_model_id"):
        parser.add_argument(name)
    parser.add_argument("--per_device_train_batch_size", type=int, default=16)
    parser.add_argument("--checkpointing_steps", choices=["epoch"])
    return parser.parse_args(line)


def optimizer_of(model: PreTrainedModel) -> torch.optim.Optimizer:
    """AdamW that spares what the scripts spare of decay, by parts of names."""
    spared = [name for name, _ in model.named_parameters() if "bias" in name or "LayerNorm.weight" in name]
    decayed = [p for name, p in model.named_parameters() if name not in spared]
    others = [p for name, p in model.named_parameters() if name in spared]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=5e-3)


def main(line: list[str] | None = None) -> tuple[PreTrainedModel, float]:
    """Train, evaluate and save; returns the model and its accuracy."""
    options = parse(line)
    # Without these the order of the rows after a resumption is another, as in the example script.
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    set_seed(0)
    config = AutoConfig.from_pretrained(
        options.model, num_labels=len(NAMES), finetuning_task="toy", trust_remote_code=False, **STRING_LABELS
    )
    model: Any = AutoModelForLwALClassification.from_pretrained(
        options.model, from_tf=False, config=config, ignore_mismatched_sizes=False, trust_remote_code=False
    )
    collate = collate_images if options.modality == "image" else default_data_collator
    train, test = (
        DataLoader(
            rows_for(options.modality, rows, seed, raw=options.modality == "image"),
            size,
            shuffle=not seed,
            collate_fn=collate,
        )
        for seed, (rows, size) in enumerate(((160, options.per_device_train_batch_size), (40, 16)))
    )
    optimizer = optimizer_of(model)
    steps = EPOCHS * math.ceil(len(train))  # accelerate steps the schedule once per process
    schedule = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=steps)
    model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)
    first, accuracy = 0, 0.0
    if options.resume_from_checkpoint:
        accelerator.load_state(options.resume_from_checkpoint)
        first = int(Path(options.resume_from_checkpoint).name.removeprefix("epoch_")) + 1
    for epoch in range(first, EPOCHS):
        model.train()
        train.set_epoch(epoch)
        for batch in train:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        accuracy = evaluate(accelerator, model, test)
        if options.checkpointing_steps == "epoch":
            accelerator.save_state(str(Path(options.output_dir, f"epoch_{epoch}")))
    save(accelerator, model, options)
    accelerator.print(f"accuracy {accuracy:.3f}, {accelerator.num_processes} process(es)")
    accelerator.wait_for_everyone()
    trained: PreTrainedModel = accelerator.unwrap_model(model)
    accelerator.end_training()
    return trained, accuracy


@torch.no_grad()
def evaluate(accelerator: Accelerator, model: Any, test: DataLoader[Any]) -> float:
    """Accuracy over the rows of all processes."""
    model.eval()
    hits = []
    for batch in test:
        found, wanted = accelerator.gather_for_metrics((model(**batch).logits.argmax(dim=-1), batch["labels"]))
        hits.append(found == wanted)
    return float(torch.cat(hits).float().mean())


def save(accelerator: Accelerator, model: Any, options: argparse.Namespace) -> None:
    """Save as the scripts do, and upload the folder where a repository is named."""
    accelerator.unwrap_model(model).save_pretrained(
        options.output_dir, is_main_process=accelerator.is_main_process, save_function=accelerator.save
    )
    if accelerator.is_main_process and options.hub_model_id:
        repo = HfApi().create_repo(options.hub_model_id, exist_ok=True).repo_id
        HfApi().upload_folder(folder_path=options.output_dir, repo_id=repo, commit_message="End of training")


if __name__ == "__main__":
    main(sys.argv[1:])
