"""The section that shows how to use the model: pipeline, model class, folded."""

from __future__ import annotations

from .facts import CardFacts
from .metadata import PIPELINES
from .text import literal, visible

EXAMPLES = {"text": "Replace me with your own text.", "image": "picture.png", "audio": "sound.wav"}
"""What stands in the snippets where neither examples nor sample rows may be shown."""
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
    """Texts or names of files to ask the model, with answers first; empty where there are none to show."""
    samples = [sample.input for sample in facts.samples if sample.input]
    return [asked for asked, _, _ in facts.examples] or samples[:1]


def _texts(facts: CardFacts) -> list[str]:
    return [literal(text) for text in _inputs(facts) or [EXAMPLES["text"]]]


def _pipeline(facts: CardFacts) -> list[str]:
    lines = [
        *(["import hf_lwal  # lets transformers know the architecture"] if facts.labels else []),
        "from transformers import pipeline",
        "",
        f"classify = pipeline({literal(PIPELINES[facts.task])}, model={_name(facts)})",
    ]
    if facts.task != "text":
        imports, read = media_lines(facts)
        asked = {"image": "image", "audio": '{"raw": sound, "sampling_rate": rate}'}[facts.task]
        return [*imports, *lines, *read, f"classify({asked})", *_answers(facts, 1)]
    inputs = _texts(facts)
    lines += ["classify([", *(f"    {text}," for text in inputs), "])"] if len(inputs) > 1 else []
    lines += [f"classify({inputs[0]})"] if len(inputs) == 1 else []
    return [*lines, *_answers(facts, len(inputs))]


def _answers(facts: CardFacts, shown: int) -> list[str]:
    return [f"# {literal(label)}, {score:.2f}" for _, label, score in facts.examples[:shown]]


def media_lines(facts: CardFacts) -> tuple[list[str], list[str]]:
    """Imports, and the lines that read a picture into ``image``, or a sound into ``sound`` and ``rate``.

    The file is a sample of the card; without samples it is one of the reader's own.
    """
    names = _inputs(facts)
    imports, path = [], literal(EXAMPLES[facts.task])
    if names and facts.model_id:
        imports = ["from huggingface_hub import hf_hub_download"]
        path = f"hf_hub_download({_name(facts)}, {literal(names[0])})"
    elif names:
        path = literal(f"{_place(facts)}/{names[0]}")
    yours = "" if names else "a file of yours"
    if facts.task == "image":
        return [*imports, "from PIL import Image"], [f"image = Image.open({path})" + f"  # {yours}" * bool(yours)]
    kind = ", ".join(filter(None, [yours, "16 bit, one channel"]))
    read = [
        f"with wave.open({path}) as file:  # {kind}",
        '    sound = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").astype("float32") / 32768',
        "    rate = file.getframerate()",
    ]
    return ["import wave", "", "import numpy as np", *imports], read


def _load(facts: CardFacts) -> list[str]:
    lines = ["from hf_lwal import AutoModelForLwALClassification"]
    processor = facts.processor
    if processor:
        lines.append(f"from transformers import {processor}")
    lines += ["", f"model = AutoModelForLwALClassification.from_pretrained({_name(facts)})"]
    if processor:
        lines.append(f"processor = {processor}.from_pretrained({_name(facts)})")
    return lines


def _model(facts: CardFacts) -> list[str]:
    first, *rest = _load(facts)
    imports, read = media_lines(facts) if facts.processor and facts.task != "text" else ([], [])
    lines = [*imports, first, "from hf_lwal.hierarchy import label_distances, nearest_labels", *rest, ""]
    if facts.processor and facts.task == "text":
        lines += [
            "texts = [",
            *(f"    {text}," for text in _texts(facts)),
            "]",
            "model.predict(texts, processor, top_k=3)  # names and probabilities",
            "model.encode(texts, processor)  # embeddings, one row per text",
        ]
    elif facts.processor:
        name = "image" if facts.task == "image" else "sound"
        lines += [
            *read,
            f"model.predict([{name}], processor, top_k=3)  # names and probabilities",
            f"model.encode([{name}], processor)  # embeddings, one row per {name}",
        ]
    else:
        lines.append("model.eval()(**inputs).logits.softmax(dim=-1)  # inputs prepared as in training")
    names = "[model.config.id2label[i] for i in range(model.config.num_labels)]"
    lines += ["", f"names = {names}", "nearest_labels(label_distances(model.label_table.label_vectors), names)"]
    return lines


def _folded(facts: CardFacts) -> list[str]:
    folder = literal(f"{_place(facts).split('/')[-1]}-folded")
    lines = [
        *_load(facts),
        "",
        f"stock = model.fold()  # {visible(facts.architecture or 'the stock class')}, same predictions",
    ]
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
