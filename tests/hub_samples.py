"""Client scenario of rows on the card: their files travel with pushes, and go when they are taken back."""

from __future__ import annotations

from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, Features
from datasets import Image as ImageColumn
from hub_scenarios import LABELS, Scene, tiny_model
from PIL import Image
from toy import IMAGE_SIZE
from transformers import ViTImageProcessor

from hf_lwal import LwALTrainer, LwALTrainingArguments


def samples(s: Scene) -> dict[str, Any]:
    """Pictures of rows after a push during training, and after a push that takes them back from an empty folder."""
    processor = ViTImageProcessor(size={"height": IMAGE_SIZE, "width": IMAGE_SIZE})
    names = list(LABELS.values())
    noise = np.random.default_rng(0).integers(0, 256, (10, 20, 20, 3), dtype=np.uint8)
    features = Features({"image": ImageColumn(), "label": ClassLabel(names=names)})
    columns = {"image": [Image.fromarray(picture) for picture in noise], "label": [row % 5 for row in range(10)]}
    rows = Dataset.from_dict(columns, features=features)

    def to_pixels(batch: dict[str, Any]) -> dict[str, Any]:
        return {**processor(batch["image"], return_tensors="pt"), "label": batch["label"]}

    def trainer(folder: str, **settings: Any) -> LwALTrainer:
        values = {"max_steps": 2, "save_steps": 1, "report_to": "none", "disable_tqdm": True, "use_cpu": True}
        values |= {"push_to_hub": True, "hub_model_id": "pictures", "remove_unused_columns": False, **settings}
        args = LwALTrainingArguments(str(s.folder / folder), hub_always_push=True, **values)
        return LwALTrainer(
            tiny_model("vit"), args, train_dataset=rows.with_transform(to_pixels), processing_class=processor
        )

    def in_the_repository() -> list[str]:
        return sorted(name for name in s.api.list_repo_files("alice/pictures") if "sample_" in name)

    run = trainer("pictures", hub_strategy="checkpoint", lwal_card_samples=2)
    run.train()
    run._finish_current_push()
    during = in_the_repository()
    s.api.upload_file(path_or_fileobj=b"mine", path_in_repo="sample_mine.png", repo_id="alice/pictures")
    trainer("pictures-again", hub_strategy="end", lwal_card_samples=0).push_to_hub()
    card = s.api.hf_hub_download("alice/pictures", "README.md")
    return {"during": during, "after": in_the_repository(), "card": open(card, encoding="utf-8").read()}


SCENARIOS = [samples]
