"""Train a small image model from scratch, with one-hot labels and with adaptive labels.

    python examples/image_classification_from_scratch.py                 # ConvNeXt, about 2 minutes on two cores
    python examples/image_classification_from_scratch.py --model vit
    python examples/image_classification_from_scratch.py --smoke         # a few steps, to see that it runs

Needs the extra "vision". Departs from the paper: 2,000 pictures of Fashion-MNIST instead of 60,000, one seed, a small
ConvNeXt or ViT, and this library's default preset; `--preset paper` uses Algorithm 1 to the letter.
"""

import argparse

import numpy as np
import torch
from transformers import AutoModelForImageClassification as Stock
from transformers import ConvNextConfig, ViTConfig, set_seed

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.data import load_embedded

IMAGE = {"image_size": 28, "num_channels": 1}
CONFIGS = {
    "convnext": lambda: ConvNextConfig(
        **IMAGE, patch_size=2, num_stages=3, hidden_sizes=[32, 64, 128], depths=[1, 1, 1], layer_scale_init_value=1.0
    ),
    "vit": lambda: ViTConfig(
        **IMAGE, patch_size=7, hidden_size=96, num_hidden_layers=3, num_attention_heads=4, intermediate_size=192
    ),
}


def to_pixels(batch):
    """Grey pictures to float tensors (1, 28, 28), with the mean and spread of Fashion-MNIST's training set."""
    pixels = [(np.asarray(image, dtype=np.float32) / 255.0 - 0.286) / 0.353 for image in batch["image"]]
    return {"pixel_values": [torch.from_numpy(picture[None]) for picture in pixels], "labels": batch["label"]}


def train(method, options, splits, names):
    """Return the accuracies over the steps of one method."""
    set_seed(options.seed)
    config = CONFIGS[options.model]()
    config.id2label, config.label2id = dict(enumerate(names)), {name: i for i, name in enumerate(names)}
    build = AutoModelForLwALClassification if method == "lwal" else Stock
    arguments = LwALTrainingArguments(
        options.output_dir,
        label_method=method,
        lwal_preset=options.preset if method == "lwal" else None,
        max_steps=4 if options.smoke else options.steps,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=200,
        learning_rate=options.learning_rate,
        eval_strategy="steps",
        eval_steps=2 if options.smoke else options.steps // 5,
        save_strategy="no",
        report_to="none",
        remove_unused_columns=False,
        seed=options.seed,
        data_seed=options.seed,
    )
    trainer = LwALTrainer(
        build.from_config(config), arguments, train_dataset=splits["train"], eval_dataset=splits["test"]
    )
    trainer.train()
    return [(entry["step"], entry["eval_accuracy"]) for entry in trainer.state.log_history if "eval_accuracy" in entry]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=CONFIGS, default="convnext")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", default="out")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    splits = load_embedded("fashion_mnist")
    if options.smoke:
        splits["test"] = splits["test"].select(range(100))
    names = splits["train"].features["label"].names
    curves = {
        method: train(method, options, splits.with_transform(to_pixels), names) for method in ("one_hot", "lwal")
    }
    print(f"{'steps':>5} " + " ".join(f"{method:>8}" for method in curves))
    for points in zip(*curves.values(), strict=True):
        print(f"{points[0][0]:>5} " + " ".join(f"{100 * accuracy:>8.1f}" for _, accuracy in points))


if __name__ == "__main__":
    main()
