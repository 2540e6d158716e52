"""The section that shows how to use the model: pipeline, model class, folded."""

from __future__ import annotations

from .facts import CardFacts
from .metadata import PIPELINES
from .text import literal

EXAMPLES = {"text": "Replace me with your own text.", "image": "picture.png", "audio": "sound.wav"}
PARTS = {"AutoTokenizer": "tokenizer", "AutoImageProcessor": "image_processor"}


def usage(facts: CardFacts) -> str:
    """How to install, and snippets that run as they stand once the name of the model is right."""
    parts = ["## How to use", "```bash\npip install hf-lwal\n```" if facts.labels else ""]
    if facts.adapter:
        parts.append(_block("### As an adapter", _adapter(facts)))
    elif facts.labels is None:
        parts.append(_block("### In a pipeline", _pipeline(facts)))
    else:
        parts += [
            _block("### In a pipeline", _pipeline(facts)) if facts.processor else "",
            _block("### With the model itself", _model(facts)),
            _block("### Folded into a stock model, which needs no hf-lwal", _folded(facts)),
        ]
    return "\n\n".join(filter(None, parts))


def _block(heading: str, lines: list[str]) -> str:
    return "\n".join([heading, "", "```python", *lines, "```"])


def _name(facts: CardFacts) -> str:
    return literal(_place(facts))


def _place(facts: CardFacts) -> str:
    return facts.model_id or facts.folder or facts.name


def _inputs(facts: CardFacts) -> list[str]:
    texts = [text for text, _, _ in facts.examples] if facts.task == "text" else []
    return [literal(text) for text in texts] or [literal(EXAMPLES[facts.task])]


def _pipeline(facts: CardFacts) -> list[str]:
    lines = [
        *(["import hf_lwal  # lets transformers know the architecture"] if facts.labels else []),
        "from transformers import pipeline",
        "",
        f"classify = pipeline({literal(PIPELINES[facts.task])}, model={_name(facts)})",
    ]
    inputs = _inputs(facts)
    lines += ["classify([", *(f"    {text}," for text in inputs), "])"] if len(inputs) > 1 else []
    lines += [f"classify({inputs[0]})"] if len(inputs) == 1 else []
    for _, label, score in facts.examples:
        lines.append(f"# {literal(label)}, {score:.2f}")
    return lines


def _load(facts: CardFacts) -> list[str]:
    lines = ["from hf_lwal import AutoModelForLwALClassification"]
    if facts.processor:
        lines.append(f"from transformers import {facts.processor}")
    lines += ["", f"model = AutoModelForLwALClassification.from_pretrained({_name(facts)})"]
    if facts.processor:
        lines.append(f"processor = {facts.processor}.from_pretrained({_name(facts)})")
    return lines


def _model(facts: CardFacts) -> list[str]:
    first, *rest = _load(facts)
    lines = [first, "from hf_lwal.hierarchy import label_distances, nearest_labels", *rest, ""]
    if facts.processor and facts.task == "text":
        lines += [
            "texts = [",
            *(f"    {text}," for text in _inputs(facts)),
            "]",
            "model.predict(texts, processor, top_k=3)  # names and probabilities",
            "model.encode(texts, processor)  # embeddings, one row per text",
        ]
    elif facts.processor:
        lines += [
            f"# {facts.task}s: a list of pictures (PIL) or of waves (NumPy)"
            if facts.task == "image"
            else "# sounds: a list of waves (NumPy)",
            f"model.predict({'images' if facts.task == 'image' else 'sounds'}, processor, top_k=3)",
        ]
    else:
        lines.append("model.eval()(**inputs).logits.softmax(dim=-1)  # inputs prepared as in training")
    names = "[model.config.id2label[i] for i in range(model.config.num_labels)]"
    lines += ["", f"names = {names}", "nearest_labels(label_distances(model.label_table.label_vectors), names)"]
    return lines


def _folded(facts: CardFacts) -> list[str]:
    folder = literal(f"{_place(facts).split('/')[-1]}-folded")
    lines = [*_load(facts), "", f"stock = model.fold()  # {facts.architecture or 'the stock class'}, same predictions"]
    lines.append(f"stock.save_pretrained({folder})")
    lines += [f"processor.save_pretrained({folder})"] if facts.processor else []
    lines.append(f"# then, without hf-lwal: pipeline({literal(PIPELINES[facts.task])}, model={folder})")
    return lines


def _adapter(facts: CardFacts) -> list[str]:
    base = literal(facts.base_model or "the base model")
    return [
        "from hf_lwal import AutoModelForLwALClassification",
        "from peft import PeftModel",
        "",
        f"base = AutoModelForLwALClassification.from_pretrained({base}, num_labels={facts.num_labels})",
        f"model = PeftModel.from_pretrained(base, {_name(facts)})",
    ]
