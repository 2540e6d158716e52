"""Kill a training with SIGKILL at random moments; what resumes must end as if nothing had happened, bit for bit.

    python benchmarks/kill_and_resume.py               # 20 kills, one to two minutes on two cores
    python benchmarks/kill_and_resume.py --kills 3 --seed 1

A tiny BERT with dropout trains with the default preset on toy text, under gradient accumulation over a ragged epoch,
refreshes its label vectors every second step and saves a checkpoint at every step, so that many kills hit a checkpoint
while it is being written. It runs in a process of its own, which is killed and started again until it is through; then
the next training begins. After each kill a copy of what the process left is resumed from its newest complete
checkpoint and trained to the end. Weights, label table, counts, state of the optimizer, of the schedule and of the
random generators, and the logs of all steps are compared with a training that nobody disturbed.

One line per kill; exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from safetensors.torch import load_file
from tqdm import tqdm
from transformers import PrinterCallback, TrainerCallback, set_seed
from transformers.utils.logging import disable_progress_bar

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the tiny models and toy data of the tests

from tiny_models import tiny_config
from toy import separable_text

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.training.checkpoints import last_complete_checkpoint

LABELS = 5
ROWS, BATCH, ACCUMULATION = 44, 4, 3  # 11 batches, 4 steps per epoch, the last of 2 batches
PROGRESS = "progress.jsonl"
OF_THE_PROCESS = ("_seconds", "_runtime", "_per_second", "train_loss")
"""Ends of names of logged numbers that measure the process itself, or average over its steps only."""


class ProgressLog(TrainerCallback):
    """Appends one JSON line per finished step and per finished checkpoint, for whoever watches the process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step is done, its checkpoint is not."""
        self._write({"step": state.global_step})

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The checkpoint of the step is written."""
        self._write({"saved": state.global_step})

    def _write(self, entry: dict[str, int]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def build_trainer(folder: Path, steps: int, eval_dataset: Any = None, **options: Any) -> LwALTrainer:
    """The training that gets killed; ``options`` override its arguments."""
    config = tiny_config("bert", num_labels=LABELS, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    set_seed(0)
    defaults = {
        "max_steps": steps,
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": ACCUMULATION,
        "lwal_refresh_every": 2,
        "lwal_init_samples": 4,
        "learning_rate": 2e-3,
        "save_strategy": "steps",
        "save_steps": 1,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    args = LwALTrainingArguments(str(folder), **{**defaults, **options})
    model = AutoModelForLwALClassification.from_config(config)
    trainer = LwALTrainer(model, args, train_dataset=separable_text(LABELS, ROWS), eval_dataset=eval_dataset)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(ProgressLog(folder / PROGRESS))
    return trainer


def train(folder: Path, steps: int) -> LwALTrainer:
    """Train to the end, from the newest complete checkpoint in ``folder`` if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    trainer = build_trainer(folder, steps)
    trainer.train(resume_from_checkpoint=last_complete_checkpoint(folder))
    return trainer


def train_to_be_killed(folder: Path, steps: int) -> None:
    """What the process that gets killed runs."""
    be_quiet_on_one_thread()
    tqdm.set_lock(threading.RLock())  # its own is a semaphore, which would outlive the process
    train(folder, steps)


def be_quiet_on_one_thread() -> None:
    """No progress bars among the lines of this command, and the same sums in all processes."""
    torch.set_num_threads(1)
    disable_progress_bar()
    logging.getLogger("hf_lwal").setLevel(logging.ERROR)  # the skipped checkpoints are in our own lines


def final_state(trainer: LwALTrainer) -> dict[str, Any]:
    """All that a training leaves, by name: its model in memory, and its last checkpoint."""
    last = Path(trainer.args.output_dir) / f"checkpoint-{trainer.state.global_step}"
    state: dict[str, Any] = {f"model: {name}": value for name, value in trainer.model.state_dict().items()}
    state |= {f"saved model: {name}": value for name, value in load_file(last / "model.safetensors").items()}
    for file in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        state |= _flat(file, torch.load(last / file, weights_only=False))
    for entry in trainer.state.log_history:
        state |= {f"log {entry['step']}: {k}": v for k, v in entry.items() if not k.endswith(OF_THE_PROCESS)}
    return state


def _flat(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {key: leaf for part, inner in value.items() for key, leaf in _flat(f"{name}: {part}", inner).items()}
    if isinstance(value, (list, tuple)):
        return _flat(name, dict(enumerate(value)))
    return {name: value}


def differences(state: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Names of what is not bit for bit the same, or is there on one side only."""
    names = [name for name in expected if name not in state or not _same(state[name], expected[name])]
    return names + [name for name in state if name not in expected]


def _same(one: Any, other: Any) -> bool:
    one, other = torch.as_tensor(one) if hasattr(one, "shape") else one, other
    if isinstance(one, torch.Tensor):
        other = torch.as_tensor(other)
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)


def kill(folder: Path, steps: int, delay: float) -> bool:
    """Run the training in a process of its own and kill it ``delay`` seconds after its first step.

    Returns:
        Whether it was killed; False when it was through before.
    """
    progress, context = folder / PROGRESS, multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hf_lwal.training.trainer"])  # or each start would import for seconds
    before = progress.stat().st_size if progress.exists() else 0
    process = context.Process(target=train_to_be_killed, args=(folder, steps))
    process.start()
    while process.is_alive() and not (progress.exists() and progress.stat().st_size > before):
        time.sleep(0.002)
    process.join(delay)
    process.kill()
    process.join()
    if process.exitcode not in (0, -9):
        raise RuntimeError(f"The training ended with exit code {process.exitcode} instead of being killed.")
    return process.exitcode != 0


def where(folder: Path) -> str:
    """Where the training stood when it was killed, from its progress log and its last checkpoint."""
    lines = (folder / PROGRESS).read_text(encoding="utf-8").splitlines()
    done = [json.loads(line) for line in lines if line.endswith("}")]
    step = max(entry.get("step", 0) for entry in done)
    newest = max(int(path.name.split("-")[1]) for path in [*folder.glob("checkpoint-*"), Path("checkpoint-0")])
    complete = int((last_complete_checkpoint(folder) or "checkpoint-0").rpartition("-")[2])
    writing = f", while checkpoint-{newest} was being written" if newest > complete else ""
    return f"after step {step}{writing}; resumed from " + (f"checkpoint-{complete}" if complete else "the start")


def kills(folder: Path, number: int, seed: int, steps: int) -> int:
    """Kill ``number`` times and print what came of it.

    Returns:
        How many trainings ended as the undisturbed one.
    """
    moments, survived, run = random.Random(seed), 0, folder / "killed-1"
    started = time.perf_counter()
    expected = final_state(train(folder / "undisturbed", steps))
    seconds = time.perf_counter() - started
    done = 0
    while done < number:
        if not kill(run, steps, moments.uniform(0.0, 0.8 * seconds)):
            run = folder / f"killed-{int(run.name.rpartition('-')[2]) + 1}"
            continue
        done += 1
        copied = Path(shutil.copytree(run, folder / "resumed"))
        found = where(copied)
        differing = differences(final_state(train(copied, steps)), expected)
        shutil.rmtree(copied)
        survived += not differing
        verdict = "bit for bit the same" if not differing else f"differs in {', '.join(differing[:5])}, …"
        print(f"kill {done} of {number}: {found}; {verdict}", flush=True)
    return survived


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="how often to kill (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="draws the moments (default %(default)s)")
    parser.add_argument("--steps", type=int, default=24, help="optimizer steps of a training (default %(default)s)")
    options = parser.parse_args()
    be_quiet_on_one_thread()
    with tempfile.TemporaryDirectory() as folder:
        survived = kills(Path(folder), options.kills, options.seed, options.steps)
    print(f"{survived}/{options.kills} survived")
    sys.exit(survived != options.kills)


if __name__ == "__main__":
    main()
