"""Trains in one of two processes, of which one is killed in the middle of a step or of a save."""

import os
import signal
import sys

from tiny_models import tiny_config
from toy import separable_text

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments


class Dying(LwALTrainer):
    """Kills its process without a word."""

    where, who = "", ""

    def _die(self, place: str) -> None:
        if (place, os.environ["RANK"]) == (self.where, self.who) and self.state.global_step == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    def training_step(self, *args, **kwargs):
        self._die("step")
        return super().training_step(*args, **kwargs)

    def _save_optimizer_and_scheduler(self, *args, **kwargs):
        self._die("save")
        super()._save_optimizer_and_scheduler(*args, **kwargs)


if __name__ == "__main__":
    folder, Dying.where, Dying.who = sys.argv[1:]
    options = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "steps", "save_steps": 1}
    rows = separable_text(5, 80)
    model = AutoModelForLwALClassification.from_config(tiny_config("bert", num_labels=5))
    Dying(model, LwALTrainingArguments(folder, max_steps=4, **options), train_dataset=rows).train()
