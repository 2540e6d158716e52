"""A client process without hf_lwal, which loads pushed models by their own code: ``hub_stranger.py FOLDER``."""

from __future__ import annotations

import json
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path


class _Absent(MetaPathFinder):
    """Makes hf_lwal impossible to import even where it is installed."""

    def find_spec(self, name, *_):
        if name.partition(".")[0] == "hf_lwal":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def become_a_stranger() -> None:
    sys.meta_path.insert(0, _Absent())
    try:
        import hf_lwal  # noqa: F401
    except ModuleNotFoundError:
        return
    raise SystemExit("hf_lwal can be imported, so this process proves nothing.")


TEXTS = ["key0 word1 key0", "word2 key3 word4", "key4 key4"]
SIZE = 16


def failure(attempt):
    try:
        attempt()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(folder: Path) -> None:
    become_a_stranger()
    import torch
    from transformers import (
        AutoModelForImageClassification,
        AutoModelForSequenceClassification,
        AutoTokenizer,
        pipeline,
    )

    torch.set_grad_enabled(False)
    load = AutoModelForSequenceClassification.from_pretrained
    untrusting = failure(lambda: load("alice/toy-text", trust_remote_code=False))
    without_code = failure(lambda: load("alice/no-code", trust_remote_code=True))
    model = load("alice/toy-text", trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained("alice/toy-text")
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    run = pipeline("text-classification", model="alice/toy-text", trust_remote_code=True)
    image = AutoModelForImageClassification.from_pretrained("alice/toy-image", trust_remote_code=True).eval()
    pixels = torch.linspace(-1, 1, 3 * SIZE**2).reshape(1, 3, SIZE, SIZE)
    model.save_pretrained(folder / "by-a-stranger")
    model.push_to_hub("from-a-stranger")
    again = load(folder / "by-a-stranger", trust_remote_code=True).eval()
    third = load("alice/from-a-stranger", trust_remote_code=True).eval()
    seen = {
        "modules": sorted({type(model).__module__.split(".")[0], type(image).__module__.split(".")[0]}),
        "untrusting": untrusting,
        "without code": without_code,
        "logits": model(**batch).logits.tolist(),
        "again": again(**batch).logits.tolist(),
        "pushed": third(**batch).logits.tolist(),
        "labels": [answer["label"] for answer in run(TEXTS)],
        "image": image(pixel_values=pixels).logits.tolist(),
        "pooled": {
            name: load(f"alice/{name}", trust_remote_code=True).eval()(**batch).logits.tolist()
            for name in ("toy-pooled", "toy-pooled-fold")
        },
        "files": sorted(
            str(path.relative_to(folder / "by-a-stranger"))
            for path in (folder / "by-a-stranger").rglob("*")
            if path.is_file()
        ),
        "hf_lwal": sorted(name for name in sys.modules if name.partition(".")[0] == "hf_lwal"),
    }
    (folder / "stranger.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
