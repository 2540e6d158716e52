"""A training script in the manner of transformers' examples, with the two names swapped, which test_swap runs.

python tests/swap_script.py --model FOLDER --modality image --output_dir out --do_train --do_eval --do_predict
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from swap_data import NAMES, STRING_LABELS, collate_images, rows_for
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoTokenizer,
    EvalPrediction,
    HfArgumentParser,
    TrainingArguments,
    set_seed,
)

from hf_lwal import AutoModelForLwALClassification, LwALTrainer

CARDS: dict[str, dict[str, Any]] = {
    "text": {"language": "en", "dataset_tags": "glue", "dataset_args": "toy", "dataset": "GLUE TOY"},
    "image": {"dataset": None, "tags": ["image-classification", "vision"]},
}


@dataclass
class Arguments:
    model: str = field(metadata={"help": "folder"})
    modality: str = field(default="text", metadata={"help": "text or image"})


def load_model(script: Arguments) -> Any:
    """The model with its labels, through every keyword that the scripts use, for text as for images."""
    hub = {"cache_dir": None, "revision": "main", "token": None, "trust_remote_code": False}
    labels = {} if script.modality == "text" else STRING_LABELS
    task = "toy" if script.modality == "text" else "image-classification"
    config = AutoConfig.from_pretrained(script.model, num_labels=len(NAMES), finetuning_task=task, **labels, **hub)
    config.problem_type = "single_label_classification"
    model = AutoModelForLwALClassification.from_pretrained(
        script.model, from_tf=False, config=config, ignore_mismatched_sizes=script.modality == "text", **hub
    )
    if script.modality == "text":  # text scripts find the names in the data, after they have made the model
        label_to_id = {name: index for index, name in enumerate(NAMES)}
        if model.config.label2id != label_to_id:
            model.config.label2id = label_to_id
            model.config.id2label = {index: name for name, index in label_to_id.items()}
    return model


def main(line: list[str] | None = None) -> LwALTrainer:
    """Do what the command line says, and return the trainer."""
    script, args = HfArgumentParser((Arguments, TrainingArguments)).parse_args_into_dataclasses(line)
    set_seed(args.seed)
    model = load_model(script)
    image, processor = script.modality == "image", AutoImageProcessor if script.modality == "image" else AutoTokenizer
    train, test, new = (
        rows_for(script.modality, rows, seed, raw=image != args.remove_unused_columns)
        for seed, rows in enumerate((160, 40, 20))
    )

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
        logits, labels = prediction.predictions, prediction.label_ids
        if not args.eval_do_concat_batches:
            logits, labels = np.concatenate(logits, axis=0), np.concatenate(labels, axis=0)
        return {"accuracy": float((np.argmax(logits, axis=1) == labels).mean())}

    trainer = LwALTrainer(
        model=model,
        args=args,
        train_dataset=train if args.do_train else None,
        eval_dataset=test if args.do_eval else None,
        compute_metrics=compute_metrics,
        processing_class=processor.from_pretrained(script.model),
        data_collator=collate_images if image else None,
    )
    if args.do_train:
        result = trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
        trainer.save_model()
        trainer.log_metrics("train", result.metrics)
        trainer.save_metrics("train", result.metrics)
        trainer.save_state()
    if args.do_eval:
        metrics = trainer.evaluate(eval_dataset=test)
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
    if args.do_predict:
        unlabelled = new if image else new.remove_columns("label")  # the collator of the image scripts wants labels
        logits = trainer.predict(unlabelled, metric_key_prefix="predict").predictions
        if trainer.is_world_process_zero():
            names = [model.config.id2label[item] for item in np.argmax(logits, axis=1)]
            Path(args.output_dir, "predictions.txt").write_text("\n".join(names))
    card = {"finetuned_from": script.model, "tasks": f"{script.modality}-classification", **CARDS[script.modality]}
    _ = trainer.push_to_hub(**card) if args.push_to_hub else trainer.create_model_card(**card)
    return trainer


if __name__ == "__main__":
    trained = main(sys.argv[1:])
    print(f"trained in {trained.args.world_size} process(es)")
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
