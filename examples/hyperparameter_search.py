"""Search the settings of adaptive labels, and of the one-hot control, with Optuna.

    python examples/hyperparameter_search.py --n_trials 50 --output_dir out         # CLINC150
    python examples/hyperparameter_search.py --dataset my-folder --max_steps 500 --output_dir out
    hf-lwal train out/best.yaml --output-dir best             # trains with the best settings that were found
    python examples/hyperparameter_search.py --smoke          # 4 trials of 4 steps of a tiny model, about 10 seconds

Needs the extras "search" and "plots". The data set has splits "train" and "validation" (or "test"), and columns
"text" and "label"; clinc150 comes with hf-lwal. A trial ends early where its accuracy is below the median of
those before it. Writes trials.csv, history.png and best.yaml.

Time: about a minute per trial on one core. Departs from the paper: the knobs are those of this library's default
preset, and the control starts from class means, too.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import optuna
import yaml
from optuna.storages import InMemoryStorage
from transformers import AutoTokenizer, HfArgumentParser

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.data.sources import encode_labels, load_splits, stratified_indices
from hf_lwal.plots.figures import new_figure, save_figure

DEFAULTS = {
    **{"max_steps": 100, "eval_strategy": "steps", "eval_steps": 0.25, "save_strategy": "no"},
    **{"per_device_train_batch_size": 32, "per_device_eval_batch_size": 64},
}
KEPT = ("max_steps", "per_device_train_batch_size", "weight_decay", "warmup_steps", "seed")
"""What best.yaml takes over, besides the settings that were found."""


@dataclass
class Arguments:
    dataset: str = field(default="clinc150", metadata={"help": "clinc150, a folder, or a Hub name"})
    model_name_or_path: str = field(
        default="sentence-transformers/all-MiniLM-L6-v2", metadata={"help": "Hub name or folder"}
    )
    n_trials: int = field(default=20, metadata={"help": "trainings"})
    eval_rows: int = field(default=750, metadata={"help": "rows to measure accuracy on, as many of every label"})
    smoke: bool = field(default=False, metadata={"help": "tiny model and data, 4 steps, no network"})


def space(trial):
    """Settings of a trial; what it leaves out is as in the command line."""
    settings = {
        "learning_rate": trial.suggest_float("learning_rate", 2e-5, 1e-3, log=True),
        "label_method": trial.suggest_categorical("label_method", ["lwal", "one_hot"]),
        "lwal_init": "class_means",
    }
    if settings["label_method"] == "lwal":
        settings |= {
            "lwal_memory": trial.suggest_int("lwal_memory", 5, 500, log=True),
            "lwal_refresh_every": trial.suggest_categorical("lwal_refresh_every", [1, 2, 5, 20]),
            "lwal_scale": trial.suggest_categorical("lwal_scale", ["auto", "8", "32", "128"]),
            "lwal_repel_weight": trial.suggest_categorical("lwal_repel_weight", [0.0, 0.1, 1.0]),
        }
    return settings


def draw(trials, path):
    """The accuracy of every trial, and the best so far."""
    figure, axes = new_figure(7.0, 4.0)
    for (method, state), rows in trials.groupby(["params_label_method", "state"]):
        marker = "o" if state == "COMPLETE" else "x"
        axes.plot(rows["number"], 100 * rows["value"], marker, label=f"{method}, {state.lower()}")
    best = trials["value"].where(trials["state"] == "COMPLETE").cummax()
    axes.step(trials["number"], 100 * best, where="post", color="black", linewidth=1.0, label="best so far")
    axes.set(xlabel="trial", ylabel="accuracy (%)")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()
    return save_figure(figure, path)


def main():
    if "--smoke" in sys.argv:
        import smoke

        sys.argv[1:1] = [*smoke.arguments("texts"), "--n_trials", "4"]
    parser = HfArgumentParser((Arguments, LwALTrainingArguments))
    parser.set_defaults(**DEFAULTS)
    options, args = parser.parse_args_into_dataclasses()
    splits = encode_labels(load_splits(options.dataset), "label")
    tokenizer = AutoTokenizer.from_pretrained(options.model_name_or_path)
    splits = splits.map(lambda batch: tokenizer(batch["text"], truncation=True, max_length=128), batched=True)
    rows = splits["validation" if "validation" in splits else "test"]
    rows = rows.select(stratified_indices(rows["label"][:], options.eval_rows, args.seed))
    names = dict(enumerate(splits["train"].features["label"].names))

    def fresh_model():
        return AutoModelForLwALClassification.from_pretrained(options.model_name_or_path, id2label=names, task="text")

    trainer = LwALTrainer(
        model_init=fresh_model, args=args, train_dataset=splits["train"], eval_dataset=rows, processing_class=tokenizer
    )
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    storage = InMemoryStorage()
    best = trainer.hyperparameter_search(
        space,
        compute_objective=lambda metrics: metrics["eval_accuracy"],
        n_trials=options.n_trials,
        direction="maximize",
        backend="optuna",
        storage=storage,
        study_name="adaptive labels",
        sampler=optuna.samplers.TPESampler(seed=args.seed),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
    )
    trials = optuna.load_study(study_name="adaptive labels", storage=storage).trials_dataframe()
    shown = ["number", "value", "state", *(name for name in trials if name.startswith("params_"))]
    trials[shown].to_csv(folder / "trials.csv", index=False)
    print(trials[shown].sort_values("value", ascending=False).to_string(index=False))
    draw(trials, folder / "history.png")
    settings = {"data": options.dataset, "model": options.model_name_or_path, **{n: getattr(args, n) for n in KEPT}}
    settings |= {"lwal_init": "class_means", **best.hyperparameters}
    (folder / "best.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    print(f"best: trial {best.run_id}, accuracy {100 * best.objective:.1f} %; settings in {folder / 'best.yaml'}")


if __name__ == "__main__":
    main()
