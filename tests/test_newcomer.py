"""What someone who adds a setting has to touch: two files, of which the rest follows."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from warm_python import warm_python

import hf_lwal

PACKAGE = Path(hf_lwal.__file__).parent
CHANGES = {
    "modeling/algorithm.py": {
        "    memory: int = 50\n": "    memory: int = 50\n    share_of_rows: float = 1.0\n",
        "sums = sums.finite()": "sums = StepSums(settings.share_of_rows * sums.sums, sums.classes).finite()",
    },
    "settings/training_args.py": {
        "    lwal_memory: int | None": "    lwal_share_of_rows: float | None = "
        "field(default=None, metadata={'help': 'how much'})\n"
        "    lwal_memory: int | None",
    },
}
"""File → what is changed in it, to add a setting that weighs down what a step has seen."""
TRAIN = """
import sys
from pathlib import Path
from hf_lwal import LwALTrainer
from trajectory import arguments, build, rows_for
folder = Path(sys.argv[1])
args = arguments(folder, max_steps=3, per_device_train_batch_size=16, lwal_share_of_rows=0.0)
trainer = LwALTrainer(build("bert"), args, train_dataset=rows_for("bert", 96))
trainer.train()
trainer.save_model(str(folder))
print(*trainer.model.label_table.counts.tolist(), trainer.state.log_history[0]["start_samples"])
"""


def test_a_new_setting_of_the_label_table_is_two_files(tmp_path):
    """It acts, is saved with the model, is a flag of the command, and says where it means nothing."""
    copy = shutil.copytree(PACKAGE, tmp_path / "hf_lwal", ignore=shutil.ignore_patterns("*.parquet", "__pycache__"))
    for file, changes in CHANGES.items():
        text = (copy / file).read_text(encoding="utf-8")
        for before, after in changes.items():
            assert text.count(before) == 1
            text = text.replace(before, after)
        (copy / file).write_text(text, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parent)])
    run = {"capture_output": True, "text": True, "check": True, "env": {**os.environ, "PYTHONPATH": path}}
    done = subprocess.run([warm_python(), "-c", TRAIN, str(tmp_path / "out")], **run)
    *counts, start = map(int, done.stdout.splitlines()[-1].split())
    assert sum(counts) == start, "no row of the training counted"
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert config["share_of_rows"] == 0.0
    shown = subprocess.run([sys.executable, "-m", "hf_lwal", "train", "--help"], **run).stdout
    assert "--lwal-share-of-rows" in shown or "--lwal_share_of_rows" in shown
