"""Draw the hierarchy of the labels that a classifier has learned, and compare it with a known one.

    python examples/label_hierarchy.py --output_dir out             # CLINC150, whose intents belong to ten domains
    python examples/label_hierarchy.py --model my-model --wordnet nltk --senses cifar100 --output_dir out
    python examples/label_hierarchy.py --smoke        # 4 steps of a tiny model, about 10 seconds

Needs the extra "plots", and "wordnet" for distances in WordNet. The data set has a split "train" and columns "text",
"label" and, as another ClassLabel, the groups of the labels; clinc150 comes with hf-lwal. `--model` is a model with a
label table, for texts or images, which is not trained again. Writes dendrogram.png, distances.png and map.png.

Time: about 4 minutes on one core for the two trainings. Departs from the paper: this library's default preset,
fine-tuned texts, groups instead of WordNet where labels are no nouns, and as the control the class means of one-hot
training that starts from class means.
"""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer, HfArgumentParser, set_seed

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.data.labels import rows_per_class
from hf_lwal.data.sources import encode_labels, label_groups, load_splits
from hf_lwal.hierarchy import cluster_names, group_distances, label_distances, reference_clusters
from hf_lwal.hierarchy.label_vectors import label_vectors
from hf_lwal.hierarchy.wordnet import senses_of, wordnet_distances
from hf_lwal.metrics import largest_correlation, structure_correlation
from hf_lwal.plots import plot_dendrogram, plot_label_distances, plot_label_map

DEFAULTS = {
    **{"max_steps": 150, "learning_rate": 1e-4, "save_strategy": "no"},
    **{"per_device_train_batch_size": 32, "per_device_eval_batch_size": 64},
}
METHODS = {"lwal": {}, "control": {"label_method": "one_hot", "lwal_init": "class_means"}}
ROWS_OF_A_MEAN = 20


@dataclass
class Arguments:
    dataset: str = field(default="clinc150", metadata={"help": "clinc150, a file or folder, or a Hub name"})
    model_name_or_path: str = field(
        default="sentence-transformers/all-MiniLM-L6-v2", metadata={"help": "Hub name or folder, to be trained"}
    )
    model: str | None = field(default=None, metadata={"help": "Hub name or folder of a trained model"})
    wordnet: str | None = field(default=None, metadata={"help": "nltk, or a folder or tar archive with WordNet"})
    senses: str | None = field(default=None, metadata={"help": "WordNet senses; see `hf-lwal hierarchy --help`"})
    smoke: bool = field(default=False, metadata={"help": "tiny model and data, 4 steps, no network"})


def trained_vectors(options, args, train):
    """Label vectors of both methods, (C, D) each: the label table's, and class means of the control's features."""
    tokenizer = AutoTokenizer.from_pretrained(options.model_name_or_path)
    train = train.map(lambda batch: tokenizer(batch["text"], truncation=True, max_length=128), batched=True)
    some = train.select(rows_per_class(np.asarray(train["label"][:]), ROWS_OF_A_MEAN, args.seed))
    names = dict(enumerate(train.features["label"].names))
    found = {}
    for method, settings in METHODS.items():
        set_seed(args.seed)
        model = AutoModelForLwALClassification.from_pretrained(options.model_name_or_path, id2label=names, task="text")
        arguments = replace(args, **settings)
        trainer = LwALTrainer(model, arguments, train_dataset=train, processing_class=tokenizer)
        trainer.train()
        found[method] = label_vectors(trainer.core_model, trainer.get_eval_dataloader(some))
        trainer.save_model(str(Path(args.output_dir) / method))
    return found


def reference_of(options, names, train):
    """Distances (C, C) between the labels in the known hierarchy, and the groups that colour them."""
    if options.wordnet is not None:
        data = None if options.wordnet == "nltk" else options.wordnet
        distances, _ = wordnet_distances(names, data, senses_of(options.senses))
        return distances, cluster_names(reference_clusters(distances), names)
    groups = label_groups(train)
    if groups is None:
        raise SystemExit("The data set has no ClassLabel that groups the labels: compare with --wordnet nltk.")
    of_label = dict(zip(train.features["label"].names, groups, strict=True))
    groups = [of_label.get(name) for name in names]
    return group_distances(groups), groups


def main():
    if "--smoke" in sys.argv:
        import smoke

        sys.argv[1:1] = smoke.arguments("texts")
    parser = HfArgumentParser((Arguments, LwALTrainingArguments))
    parser.set_defaults(**DEFAULTS)
    options, args = parser.parse_args_into_dataclasses()
    train = encode_labels(load_splits(options.dataset), "label")["train"]
    if options.model is None:
        names, vectors = train.features["label"].names, trained_vectors(options, args, train)
    else:
        model = AutoModelForLwALClassification.from_pretrained(options.model)
        names, vectors = list(model.config.label_names.values()), {options.model: label_vectors(model)}
    reference, groups = reference_of(options, names, train)
    print(f"structure correlation, at most {largest_correlation(reference):.3f}:")
    for method, of_labels in vectors.items():
        print(f"{method:20s} {structure_correlation(label_distances(of_labels), reference):.3f}")
    learned = next(iter(vectors.values()))
    plot_dendrogram(learned, names, Path(args.output_dir) / "dendrogram.png", groups)
    plot_label_distances(learned, names, Path(args.output_dir) / "distances.png")
    plot_label_map(learned, names, Path(args.output_dir) / "map.png", groups)


if __name__ == "__main__":
    main()
