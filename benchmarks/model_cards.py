"""Train the models whose cards lie in model_cards/, and write those cards.

    python benchmarks/model_cards.py clinc150                      # MiniLM on the embedded CLINC150
    python benchmarks/model_cards.py banking77 --data-root DATA    # MiniLM on DATA/banking77: train and test .parquet
    python benchmarks/model_cards.py fashion_mnist                 # a small ConvNeXt from scratch

Each trains the model three ways with the same budget (LP-FT: one-hot labels from a head that is a logistic regression
on the frozen features; one-hot labels; adaptive labels), a few minutes each on two CPU cores, and writes README.md and
pictures, these with 256 colours, to model_cards/NAME/. The model itself goes to --model-dir; --card-only writes the
card of one that lies there anew.
"""

from __future__ import annotations

import argparse
import runpy
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

PROJECT = Path(__file__).parents[1]
MODELS = PROJECT / "model_cards"
CARD_FILES = ("README.md", "card_facts.json", "dendrogram.png", "label_distances.png", "curves.png")
SAMPLES = 3
"""Rows on each card; the licences of the data allow it."""
MINILM = "sentence-transformers/all-MiniLM-L6-v2"


@dataclass(frozen=True)
class Recipe:
    """A model to train: its data set and settings, and what its card says of them."""

    dataset: str
    title: str
    learning_rate: float
    steps: int
    base_model: str | None
    card: dict[str, Any]


RECIPES = {
    "clinc150": Recipe(
        "clinc150",
        "MiniLM for the intents of CLINC150",
        learning_rate=1e-4,
        steps=240,
        base_model=MINILM,
        card={
            "dataset_tags": "clinc/clinc_oos",
            "dataset": "CLINC150",
            "license": "apache-2.0",
            "language": "en",
            "examples": ["book a table for two at an italian place tonight", "somebody stole my credit card"],
        },
    ),
    "banking77": Recipe(
        "banking77",
        "MiniLM for the intents of Banking77",
        learning_rate=1e-4,
        steps=240,
        base_model=MINILM,
        card={
            "dataset_tags": "PolyAI/banking77",
            "dataset": "Banking77",
            "license": "apache-2.0",
            "language": "en",
            "examples": ["my card still has not arrived", "why was i charged a fee for a transfer"],
        },
    ),
    "fashion_mnist": Recipe(
        "fashion_mnist",
        "ConvNeXt from scratch for Fashion-MNIST",
        learning_rate=1e-3,
        steps=300,
        base_model=None,
        card={
            "dataset_tags": "zalando-datasets/fashion_mnist",
            "dataset": "Fashion-MNIST, a sample of 2,000 pictures",
            "license": "apache-2.0",
        },
    ),
}
ABOUT = {
    "clinc150": "The data are CC BY 3.0: Larson et al., *An Evaluation Dataset for Intent Classification and "
    "Out-of-Scope Prediction*, EMNLP-IJCNLP 2019; here without the out-of-scope sentences.",
    "banking77": "The data are CC BY 4.0: Casanueva et al., *Efficient Intent Detection with Dual Sentence Encoders*, "
    "NLP for ConvAI 2020.",
    "fashion_mnist": "The data are MIT: Xiao, Rasul and Vollgraf, *Fashion-MNIST: a Novel Image Dataset for "
    "Benchmarking Machine Learning Algorithms*, 2017. The model is the one of "
    "`examples/image_classification_from_scratch.py`, with three channels, so that pipelines can feed it.",
}
"""What a person wrote about the data: the text of the slot "training"."""


def main() -> None:
    """Train and write one card."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=RECIPES)
    parser.add_argument("--data-root", type=Path, help="folder with the data sets that the package does not carry")
    parser.add_argument("--output", type=Path, default=MODELS, help="where the folder NAME is made")
    parser.add_argument("--model-dir", type=Path, default=Path("out"), help="where the models are saved")
    parser.add_argument("--steps", type=int, help="optimizer steps of each training")
    parser.add_argument("--eval-samples", type=int, default=1500, help="rows of the test split to measure on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--card-only", action="store_true", help="train nothing: the model lies in --model-dir already"
    )
    options = parser.parse_args()
    target, folder = options.output / options.name, options.model_dir / options.name
    target.mkdir(parents=True, exist_ok=True)
    if (target / "README.md").exists():  # so that what people wrote into it stays
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(target / "README.md", folder / "README.md")
    recipe = RECIPES[options.name]
    if options.card_only:
        write_again(options, recipe, folder)
    else:
        train(options, recipe, folder)
    for path in target.glob("sample_*"):
        path.unlink()
    for path in [*(folder / name for name in CARD_FILES), *folder.glob("sample_*")]:
        if path.exists():
            shutil.copy(path, target / path.name)
            if path.suffix == ".png" and not path.name.startswith("sample_"):
                shrink(target / path.name)
    print(f"Written: {target}")


def shrink(picture: Path) -> None:
    """Save a picture with 256 colours, which charts are not seen to lack, in a third of the bytes."""
    from PIL import Image

    with Image.open(picture) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(picture, optimize=True)


def data_of(options: argparse.Namespace, recipe: Recipe) -> str:
    """Name or folder of the data set."""
    return str(options.data_root / recipe.dataset) if options.data_root else recipe.dataset


def write_again(options: argparse.Namespace, recipe: Recipe, folder: Path) -> None:
    """Write the card of a model that was trained before, with the facts that lie beside it, and rows of its data."""
    from hf_lwal.cli.main import main as command
    from hf_lwal.data.sources import encode_labels, evaluation_split, load_splits, stratified_indices

    splits = encode_labels(load_splits(data_of(options, recipe)), "label")
    measured = evaluation_split(splits)
    measured = measured.select(stratified_indices(measured["label"], options.eval_samples, options.seed))
    with TemporaryDirectory() as rows:
        splits["train"].to_parquet(f"{rows}/train.parquet")
        measured.to_parquet(f"{rows}/test.parquet")
        words = ["card", str(folder), "--name", recipe.title, "--data", rows, "--samples", str(SAMPLES)]
        if command(words) != 0:
            raise SystemExit(f"The card of {folder} was not written.")


def train(options: argparse.Namespace, recipe: Recipe, folder: Path) -> None:
    """Train all ways, and save the LwAL model with its card."""
    from hf_lwal.bench.comparison import METHODS, build_trainer, prepare_data, render_table
    from hf_lwal.bench.comparison import train as train_one

    steps = options.steps or recipe.steps
    model = str(build_convnext(options.model_dir / "convnext")) if recipe.base_model is None else None
    data = prepare_data(
        data_of(options, recipe),
        model,
        text_column=None,
        label_column="label",
        eval_samples=options.eval_samples,
        max_length=48,
        seed=options.seed,
    )
    results = {}
    for method in METHODS:
        print(f"{options.name}: {method}, {steps} steps", flush=True)
        trainer = build_trainer(
            data,
            method,
            output_dir=str(folder),
            steps=steps,
            batch_size=32,
            learning_rate=recipe.learning_rate,
            seed=options.seed,
        )
        results[method] = train_one(trainer)
    print(render_table(results))
    write(trainer, {name: result.curve for name, result in results.items()}, folder, recipe, options)


def write(trainer: Any, curves: dict[str, Any], folder: Path, recipe: Recipe, options: argparse.Namespace) -> None:
    """Save the model, its curves and its card."""
    from hf_lwal.plots import plot_learning_curves

    trainer.save_model()
    plot_learning_curves(curves, folder / "curves.png", title=recipe.title)
    more = " --data-root DATA" if options.data_root else ""
    more += f" --steps {options.steps}" if options.steps else ""
    trainer.create_model_card(
        model_name=recipe.title,
        finetuned_from=recipe.base_model,
        controls={
            name: [(step, accuracy / 100.0) for step, accuracy in curve]
            for name, curve in curves.items()
            if name != "LwAL"
        },
        samples=SAMPLES,
        command=f"python benchmarks/model_cards.py {options.name}{more}",
        **recipe.card,
    )
    about_the_data(folder / "README.md", options.name)


def about_the_data(path: Path, name: str) -> None:
    """Write the slot on the data, unless people have written into it."""
    from hf_lwal.model_card.slots import slot

    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(slot("training"), slot("training", ABOUT[name])), encoding="utf-8")


def build_convnext(folder: Path) -> Path:
    """Save the ConvNeXt of the example with random weights, and an image processor for 28x28 pictures."""
    from transformers import AutoModelForImageClassification, ViTImageProcessor, set_seed

    example = PROJECT / "examples" / "image_classification_from_scratch.py"
    config = runpy.run_path(str(example))["CONFIGS"]["convnext"]()
    config.num_channels = 3
    set_seed(0)
    AutoModelForImageClassification.from_config(config).save_pretrained(folder)
    # Mean and spread of Fashion-MNIST's training set.
    processor = ViTImageProcessor(size={"height": 28, "width": 28}, image_mean=[0.286] * 3, image_std=[0.353] * 3)
    processor.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main()
