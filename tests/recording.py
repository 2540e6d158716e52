"""Trainings and saved models to compare those of a later release with: ``python tests/recording.py FOLDER``.

Uses nothing of the package but its public names, so that the same file runs with releases before and after.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_models import tiny_config
from torch import Tensor
from toy import word_tokenizer
from trajectory import arguments, build, logits_of, rows_for, train
from transformers import PreTrainedModel, set_seed

from hf_lwal import AutoModelForLwALClassification

RECORDED = Path(__file__).with_name("recorded")
# With its usual epsilon AdamW makes steps of the size of the learning rate from gradients that are rounding alone.
ADAMW = {"optim": "adamw_torch", "learning_rate": 1e-3, "adam_epsilon": 1e-3}
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "default": ("bert", "default", {}),
    "default, AdamW": ("bert", "default", ADAMW),
    "default, accumulation": ("bert", "default", {"gradient_accumulation_steps": 2}),
    "default, images": ("resnet", "default", {}),
    "default, every third step": ("bert", "default", {"lwal_refresh_every": 3, "lwal_warmup_steps": 2}),
    "default, jumping means": ("bert", "default", {"lwal_offset": False, "lwal_repel_weight": 0.5}),
    "default, embeddings": ("bert", "default", {"lwal_space": "embeddings"}),
    "default, fixed means": ("bert", "default", {"lwal_refresh_every": 0}),
    "paper": ("bert", "paper", {}),
    "paper, every third step": ("bert", "paper", {"lwal_refresh_every": 3, "lwal_warmup_steps": 2}),
    "paper, repel 10": ("bert", "paper, repel 10", {}),
    "paper, accumulation": ("bert", "paper", {"gradient_accumulation_steps": 2}),
    "paper, exact accumulation": ("bert", "paper, exact accumulation", {"gradient_accumulation_steps": 2}),
    "paper, images": ("convnext", "paper", {}),
    "one_hot": ("bert", "one_hot", {}),
    "one_hot from class means": ("bert", "one_hot from class means", {}),
}
"""Name → model, method and further training arguments."""
LOOPS: dict[str, dict[str, Any]] = {"default": {}, "paper": {"preset": "paper"}}
"""Name → settings of a model that a plain loop trains."""
CHECKPOINTS = {"text": ("bert", "default"), "paper": ("bert", "paper"), "images": ("resnet", "default")}
LATER = ("row_scatter", "distance_bias", "rejection_edges")
"""Buffers that came after the records."""
STEPS = 8
SAVED_AT = 4
"""Step of the checkpoint that a training goes on from."""


def digest(tensor: Tensor) -> str:
    """The start of a SHA-256 over all bits."""
    return hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


def summary(tensors: dict[str, Tensor], losses: list[float]) -> dict[str, Any]:
    """Losses to the last digit, and one digest for all other tensors."""
    parts = [part.double().flatten() for name, part in sorted(tensors.items()) if not name.endswith(LATER)]
    return {
        "losses": [loss.hex() for loss in losses],
        "tensors": digest(torch.cat(parts)),
        "norm": float(torch.cat(parts).norm()),
    }


def trained(name: str, folder: Path) -> tuple[Any, dict[str, Any]]:
    """Trainer and summary of one of `RUNS`."""
    model, method, options = RUNS[name]
    args = arguments(folder, method, max_steps=STEPS, per_device_train_batch_size=16, **options)
    set_seed(0)
    trainer, trajectory = train(build(model, method), args, rows_for(model, 96), rows_for(model, 40, seed=1))
    losses = trajectory.tensors.pop("loss").tolist()
    return trainer, summary(trajectory.tensors, losses)


def resumed(checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Summary of a training that goes on from a checkpoint of an earlier one."""
    args = arguments(folder, max_steps=STEPS, per_device_train_batch_size=16, **ADAMW)
    set_seed(0)
    rows, test = rows_for("bert", 96), rows_for("bert", 40, seed=1)
    _, trajectory = train(build("bert"), args, rows, test, str(checkpoint))
    losses = trajectory.tensors.pop("loss").tolist()
    return summary(trajectory.tensors, losses)


def looped(name: str) -> dict[str, Any]:
    """Summary of a plain training loop, which starts without a pass over data."""
    set_seed(0)
    model = AutoModelForLwALClassification.from_config(tiny_config("bert", num_labels=5, initializer_range=0.2))
    if name == "paper":
        from hf_lwal import LwALTrainingArguments

        with tempfile.TemporaryDirectory() as folder:
            settings = LwALTrainingArguments(
                folder, lwal_preset="paper", use_cpu=True, report_to="none"
            ).resolve_lwal()
        from hf_lwal.settings import apply_settings

        apply_settings(model, settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rows, losses = rows_for("bert", 96).with_format("torch"), []
    model.train()
    for step in range(STEPS):
        batch = rows[(step * 12) % 96 : (step * 12) % 96 + 12]
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    logits = logits_of(model, rows_for("bert", 40, seed=1))
    return summary({"logits": logits, **{f"weight {key}": value for key, value in model.state_dict().items()}}, losses)


def saved(name: str, folder: Path) -> None:
    """A checkpoint with its card, label table and the logits of test rows."""
    kind, method = CHECKPOINTS[name]
    set_seed(0)
    args = arguments(
        folder, method, max_steps=STEPS, per_device_train_batch_size=16, eval_strategy="steps", eval_steps=4
    )
    tokenizer = word_tokenizer() if kind == "bert" else None
    model: PreTrainedModel = build(kind, method)
    trainer, _ = train(model, args, rows_for(kind, 96), rows_for(kind, 40, seed=1))
    trainer.processing_class = tokenizer
    trainer.evaluate()
    trainer.save_model(str(folder))
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    trainer.create_model_card(model_name=name)
    card = folder / "README.md"
    first, _, rest = card.read_text(encoding="utf-8").partition("<!-- user text begins")
    marker, _, rest = rest.partition("-->")
    card.write_text(f"{first}<!-- user text begins{marker}-->\n\nKept by hand.\n{rest}", encoding="utf-8")
    logits = logits_of(AutoModelForLwALClassification.from_pretrained(folder), rows_for(kind, 40, seed=1))
    save_file({"logits": logits}, folder / "expected.safetensors")


def platform() -> dict[str, str]:
    """What decides the last digits of a run on a CPU."""
    told = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    first = dict(line.split(":", 1) for line in told.partition("\n\n")[0].splitlines())
    told_of = {name.strip(): value.strip() for name, value in first.items()}
    parts = [told_of.get(name, "?") for name in ("model name", "cpu family", "model", "stepping")]
    return {"torch": torch.__version__, "cpu": " ".join([*parts, torch.backends.cpu.get_cpu_capability()])}


def record(folder: Path) -> None:
    """Write everything that `test_recorded.py` reads."""
    runs = {}
    for name in RUNS:
        with tempfile.TemporaryDirectory() as place:
            runs[name] = trained(name, Path(place))[1]
    loops = {name: looped(name) for name in LOOPS}
    with tempfile.TemporaryDirectory() as place:
        saves = {"save_strategy": "steps", "save_steps": SAVED_AT}
        args = arguments(Path(place), max_steps=SAVED_AT, per_device_train_batch_size=16, **ADAMW, **saves)
        set_seed(0)
        train(build("bert"), args, rows_for("bert", 96), rows_for("bert", 40, seed=1))
        shutil.copytree(f"{place}/checkpoint-{SAVED_AT}", folder / "checkpoint", dirs_exist_ok=True)
        went_on = resumed(folder / "checkpoint", Path(place, "on"))
    text = json.dumps({"platform": platform(), "runs": runs, "loops": loops, "resumed": went_on}, indent=1)
    (folder / "trajectories.json").write_text(text + "\n", encoding="utf-8")
    for name in CHECKPOINTS:
        saved(name, folder / name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    record(target)
