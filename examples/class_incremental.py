"""Teach a text classifier new labels, group after group, without keeping a sample of those before.

    python examples/class_incremental.py --output_dir out                      # CLINC150, one domain after the other
    python examples/class_incremental.py --dataset my-folder --group_column topic --output_dir out
    python examples/class_incremental.py --smoke        # a tiny model, about 10 seconds

The data set has splits "train" and "test", columns "text" and "label", and a column that says which group a row's
label comes with; clinc150 comes with hf-lwal. After each group all test rows of the labels so far are classified among
these.

Time: one forward pass over the rows of each group, about 5 minutes for CLINC150 on one core. Not in the paper, and no
gradient: this is streaming linear discriminant analysis (Hayes & Kanan, 2020). The label table keeps the class means,
this script the covariance within classes, and the head becomes its inverse root, in whose space the nearest label
vector is the likeliest class. docs/class_incremental.md says what fine-tuning on each group gives instead.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoTokenizer, HfArgumentParser, set_seed

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.data.sources import encode_labels, load_splits
from hf_lwal.modeling.class_moments import moments
from hf_lwal.modeling.head_start import write_linear
from hf_lwal.modeling.inference import start_values


@dataclass
class Arguments:
    output_dir: str = field(default="class-incremental", metadata={"help": "where the model goes"})
    dataset: str = field(default="clinc150", metadata={"help": "clinc150, a folder, or a Hub name"})
    group_column: str = field(default="domain", metadata={"help": "column with the group that a row comes with"})
    model_name_or_path: str = field(
        default="sentence-transformers/all-MiniLM-L6-v2", metadata={"help": "Hub name or folder"}
    )
    shrinkage: float = field(
        default=0.1, metadata={"help": "share, 0 to 1, of the covariance that is taken to be the same all around"}
    )
    seed: int = field(default=0, metadata={"help": "of the order of the groups"})
    smoke: bool = field(default=False, metadata={"help": "tiny model and data, no network"})


class Learner:
    """A model that takes groups of labels one after the other.

    Attributes:
        model: with a label vector for each label so far.
        covariance: (H, H) float64 of features within classes.
        rows: how many it is the mean of.
    """

    def __init__(self, path, tokenizer, shrinkage):
        self.path, self.tokenizer, self.shrinkage = path, tokenizer, shrinkage
        self.model, self.rows = None, 0

    def learn(self, texts, labels):
        """Add a group.

        Args:
            texts: its rows.
            labels: the name of the label of each.
        """
        names, ids = np.unique(labels, return_inverse=True)
        if self.model is None:
            width = AutoConfig.from_pretrained(self.path).hidden_size
            self.model = AutoModelForLwALClassification.from_pretrained(
                self.path, id2label=dict(enumerate(names.tolist())), task="text", embedding_dim=width
            )
            self.covariance = torch.zeros(width, width, dtype=torch.float64)
        features, ids = start_values(self.model, texts, self.tokenizer, 64), torch.from_numpy(ids)
        found = moments(features, ids, len(names), torch.arange(len(ids)), covariance=True)
        self.covariance += len(ids) / (self.rows + len(ids)) * (found.covariance - self.covariance)
        self._whiten()
        table, head = self.model.label_table, self.model.head
        if self.rows == 0:
            table.start(features, ids, head)
            table.set_scale(table.calibrate(features, ids, head))
        else:
            for number, name in enumerate(names.tolist()):
                self.model.add_label(name, features=features[ids == number])
            self.model.materialize()  # the label vectors of all labels, seen through the new head
        self.rows += len(ids)

    def _whiten(self):
        """Let the head be the inverse root of the covariance within classes."""
        width = len(self.covariance)
        round_one = self.covariance.trace() / width * torch.eye(width, dtype=torch.float64)
        sizes, axes = torch.linalg.eigh(torch.lerp(self.covariance, round_one, self.shrinkage))
        write_linear(self.model.head_module, axes @ (axes.T / sizes.sqrt()[:, None]), torch.zeros(width))

    def accuracy(self, texts, labels):
        """Share of the texts whose label the model finds."""
        answers = self.model.predict(texts, self.tokenizer, batch_size=64)
        return np.mean([answer[0]["label"] == label for answer, label in zip(answers, labels, strict=True)])


def groups_of(rows, column):
    """Group to the texts and label names of its rows."""
    names = np.asarray(rows.features["label"].int2str(rows["label"][:]))
    texts, of = np.asarray(rows["text"][:], dtype=object), np.asarray(rows[column][:])
    return {group: (texts[of == group].tolist(), names[of == group].tolist()) for group in np.unique(of).tolist()}


def main():
    if "--smoke" in sys.argv:
        import smoke

        sys.argv[1:1] = smoke.places("texts")
    (options,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    set_seed(options.seed)
    splits = encode_labels(load_splits(options.dataset), "label")
    train, test = (groups_of(splits[name], options.group_column) for name in ("train", "test"))
    tokenizer = AutoTokenizer.from_pretrained(options.model_name_or_path)
    learner = Learner(options.model_name_or_path, tokenizer, options.shrinkage)
    names = getattr(splits["train"].features[options.group_column], "names", None)
    at_first, seen = {}, []
    print(f"{'group':24s} labels  accuracy so far, %")
    for group in np.random.permutation(list(train)).tolist():
        learner.learn(*train[group])
        seen.append(group)
        texts, labels = ([value for one in seen for value in test[one][place]] for place in (0, 1))
        at_first[group] = learner.accuracy(*test[group])
        so_far = learner.accuracy(texts, labels)
        title = names[group] if names else group
        print(f"{title!s:24s} {learner.model.config.num_labels:6d} {100 * so_far:19.1f}", flush=True)
    lost = np.mean([at_first[group] - learner.accuracy(*test[group]) for group in seen[:-1]])
    print(f"lost since a group was learned: {100 * lost:.1f} % of its rows")
    learner.model.save_pretrained(Path(options.output_dir))
    tokenizer.save_pretrained(Path(options.output_dir))


if __name__ == "__main__":
    main()
