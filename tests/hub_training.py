"""Client scenarios of `LwALTrainer` and the Hub: every strategy, and what a failed push does to a training."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from hub_scenarios import Scene, digest, load, tiny_model
from toy import separable_text
from transformers import TrainerCallback, TrainingArguments

from hf_lwal import LwALForSequenceClassification, LwALTrainer, LwALTrainingArguments

BEST = {
    **{"load_best_model_at_end": True, "metric_for_best_model": "mark", "greater_is_better": True},
    **{"eval_strategy": "steps", "eval_steps": 1},
}
STATE = "last-checkpoint/trainer_state.json"


def trainer(s: Scene, name: str, model: Any = None, **settings: Any) -> LwALTrainer:
    values = {
        **{
            "max_steps": 4,
            "save_steps": 2,
            "per_device_train_batch_size": 4,
            "report_to": "none",
            "disable_tqdm": True,
        },
        **{"push_to_hub": True, "hub_always_push": True, "use_cpu": True, "learning_rate": 1e-3, "seed": 1},
        "lr_scheduler_type": "constant",
        **settings,
    }
    args = LwALTrainingArguments(str(s.folder / name), **values)
    rows = separable_text(5, 20)
    (s.folder / name).mkdir(exist_ok=True)
    (s.folder / name / "heat_map.png").write_bytes(b"\x89PNG picture")
    return LwALTrainer(
        model or tiny_model(), args, train_dataset=rows, eval_dataset=rows, processing_class=s.tokenizer
    )


def falling_marks(run: LwALTrainer) -> None:
    """The first evaluation is the best one."""
    marks = iter((4, 3, 2, 1))
    run.compute_metrics = lambda _: {"mark": next(marks)}


def strategies(s: Scene) -> dict[str, Any]:
    seen = {}
    for strategy in ("end", "every_save", "checkpoint", "all_checkpoints"):
        run = trainer(s, f"run-{strategy}", hub_strategy=strategy)
        run.train()
        run.push_to_hub()
        seen[strategy] = digest(load(f"alice/run-{strategy}")) == digest(run.model)
    return seen


def resume(s: Scene) -> dict[str, Any]:
    """The pulled last-checkpoint continues, and ends where the whole run ended."""
    whole = load("alice/run-checkpoint")
    folder = Path(s.api.snapshot_download("alice/run-checkpoint", local_dir=s.folder / "pulled"))
    again = trainer(s, "resumed", push_to_hub=False, max_steps=6)
    again.train(str(folder / "last-checkpoint"))
    straight = trainer(s, "straight", push_to_hub=False, max_steps=6)
    straight.train()
    return {
        "step": again.state.global_step,
        "same": digest(again.model) == digest(straight.model),
        "moved": digest(again.model) != digest(whole),
    }


def called_by_hand(s: Scene) -> dict[str, Any]:
    """push_to_hub() of a trainer that was not told to push, without the code, to a private repository."""
    run = trainer(s, "by-hand", push_to_hub=False, max_steps=1)
    run.train()
    run.model.config.push_code = False
    run.push_to_hub(private=True)
    return {"same": digest(load("alice/by-hand")) == digest(run.model)}


class Messages(logging.Handler):
    """Collects warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def failed_push(s: Scene) -> dict[str, Any]:
    """The first push fails: training says so and goes on, and the next push is whole."""
    messages = Messages()
    logging.getLogger("hf_lwal").addHandler(messages)
    run = trainer(s, "failing", hub_strategy="every_save")
    s.fault({"method": "POST", "path": "failing/commit/", "status": 500})
    run.train()
    s.fault()
    run.push_to_hub()
    logging.getLogger("hf_lwal").removeHandler(messages)
    loaded = LwALForSequenceClassification.from_pretrained(s.folder / "failing")
    warnings = [text for text in messages.texts if "push" in text]
    return {"warnings": warnings, "step": run.state.global_step, "local": digest(loaded) == digest(run.model)}


def slow_push(s: Scene) -> dict[str, Any]:
    """Uploads that take longer than a save interval, while old checkpoints are deleted."""
    slow = {"method": "POST", "path": "slow.*/(preupload|commit)/", "status": 1, "delay": 0.3, "times": 8}
    short = {"hub_strategy": "checkpoint", "save_total_limit": 1, "hub_always_push": False, "save_steps": 1}
    found = {}
    for name, settings in {"slow": {}, "slow-best": BEST}.items():
        run = trainer(s, name, **short, max_steps=2, **settings)
        falling_marks(run)
        s.fault(slow)
        messages = Messages()
        logging.getLogger("hf_lwal").addHandler(messages)
        run.train()
        s.fault()
        logging.getLogger("hf_lwal").removeHandler(messages)
        found[name] = {
            "warnings": [text for text in messages.texts if "push" in text],
            "left": sorted(path.name for path in (s.folder / name).glob("checkpoint-*")),
            "pushed": json.loads(Path(s.api.hf_hub_download(f"alice/{name}", STATE)).read_text())["global_step"],
        }
    return found


class FoldersAtPush(TrainerCallback):
    """Notes which checkpoints there are when a push begins, which lists the whole output folder."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def on_push_begin(self, args: TrainingArguments, *_: Any, **__: Any) -> None:
        self.seen.append(sorted(path.name for path in Path(args.output_dir).glob("checkpoint-*")))


def rotated(s: Scene) -> dict[str, Any]:
    """Old checkpoints are deleted before a push begins, with the best one kept."""
    seen = {}
    for name, settings in {"every_save": {}, "checkpoint": {}, "best": {"hub_strategy": "every_save", **BEST}}.items():
        strategy = {"hub_strategy": name, **settings}
        run = trainer(s, f"rotated-{name}", save_total_limit=1, save_steps=1, **strategy)
        falling_marks(run)
        folders = FoldersAtPush()
        run.add_callback(folders)
        run.train()
        seen[name] = folders.seen
    return seen


def adapter(s: Scene) -> dict[str, Any]:
    """An adapter carries the label table and the head that it was trained with, during training too."""
    import peft

    tiny_model().push_to_hub("adapter-base")
    base = load("alice/adapter-base")
    lora = peft.LoraConfig(target_modules=["query"], modules_to_save=base.peft_modules_to_save())
    run = trainer(s, "adapter", peft.get_peft_model(base, lora), hub_strategy="every_save", save_steps=4)
    run.train()
    run._finish_current_push()
    pulled = peft.PeftModel.from_pretrained(load("alice/adapter-base"), "alice/adapter")
    return {
        "same": digest(pulled) == digest(run.model),
        "trained": digest(pulled) != digest(peft.get_peft_model(load("alice/adapter-base"), lora)),
    }


class EditsTheCard(TrainerCallback):
    """Someone edits the card on the Hub after the push of step 2."""

    def __init__(self, s: Scene, run: LwALTrainer, repo: str) -> None:
        self.s, self.run, self.repo = s, run, repo

    def on_step_begin(self, args: TrainingArguments, state: Any, *_: Any, **__: Any) -> None:
        if state.global_step == 2:
            self.run._finish_current_push()
            edit_card(self.s, self.repo, "Edited while it trains.")


def edit_card(s: Scene, repo: str, words: str, revision: str = "main") -> None:
    place = {"repo_id": repo, "revision": revision}
    path = s.api.hf_hub_download(**place, filename="README.md", force_download=True)
    text = Path(path).read_text(encoding="utf-8")
    text = text.replace("user text begins: notes -->", f"user text begins: notes -->\n{words}", 1)
    text = text.replace("---\n", "---\nlicense: mit\n" if "license:" not in text else "---\n", 1)
    text = text.replace("## Limits", "## Limits\n\nOutside the lines.", 1)
    s.api.upload_file(path_or_fileobj=text.encode(), path_in_repo="README.md", **place)


def edited_card(s: Scene) -> dict[str, Any]:
    """Edits between two pushes of one training, before a push from the same folder, and on another branch."""
    run = trainer(s, "edited", hub_strategy="every_save")
    run.add_callback(EditsTheCard(s, run, "alice/edited"))
    run.train()
    run.push_to_hub()
    edit_card(s, "alice/edited", "Edited after training.")
    s.api.create_branch("alice/edited", branch="other")
    edit_card(s, "alice/edited", "Edited on a branch.", "other")
    run.push_to_hub()
    again = trainer(s, "edited", max_steps=1, hub_strategy="end")
    again.push_to_hub(revision="other")
    cards = {
        name: Path(s.api.hf_hub_download("alice/edited", "README.md", revision=name, force_download=True)).read_text()
        for name in ("main", "other")
    }
    return {**cards, "files": s.api.list_repo_files("alice/edited")}


SCENARIOS = [edited_card, strategies, resume, called_by_hand, failed_push, slow_push, rotated, adapter]
