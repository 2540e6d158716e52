"""The sections of a card, each a pure function of the facts; one that has nothing to say is empty."""

from __future__ import annotations

from collections.abc import Callable

from .citations import LWAL
from .facts import CardFacts
from .metadata import TASK_NAMES, hub_id
from .text import bullets, code, details, duration, fenced, heading_text, plain, table

DOCUMENTATION = "https://arxiv.org/abs/2209.04528"
IDEA = (
    "In Learning with Adaptive Labels (LwAL), every class has a *label vector* that follows the embeddings of that "
    "class while the network trains, instead of a one-hot vector that is the same distance from every other. The "
    "model answers with the label whose vector is nearest, and the distances between label vectors tell how the "
    "classes relate."
)
MANY_LABELS = 40
"""Pictures of more labels are longer than a screen: they unfold, and a click shows them in full size."""

INPUTS = {"text": "text", "image": "image", "audio": "audio"}


def link(name: str | None, folder: str = "") -> str:
    """A link to a repository on the Hub, or the name alone."""
    if not name:
        return ""
    return f"[{code(name)}](https://huggingface.co/{folder}{name})" if hub_id(name) else code(name)


def percent(value: float) -> str:
    """A share in percent, as text."""
    return f"{100.0 * value:.1f} %"


def title(facts: CardFacts) -> str:
    """Heading, and what kind of model it is."""
    kind = f"{INPUTS[facts.task]} classifier with {facts.num_labels} labels"
    article = "An" if kind[0] in "aei" else "A"
    source = f", fine-tuned from {link(facts.base_model)}" if facts.base_model else ""
    data = f" on {dataset(facts)}" if dataset(facts) else ""
    trained = "" if source or not data else ", trained"
    adapter = " It is an adapter, which needs its base model." if facts.adapter else ""
    return f"# {heading_text(facts.name)}\n\n{article} {kind}{source}{trained}{data}.{_reached(facts)}{adapter}"


def _reached(facts: CardFacts) -> str:
    """The accuracy, on which rows it was measured, and whether they had a say in which weights were kept."""
    if "accuracy" in facts.test:
        return f" It reaches {percent(facts.test['accuracy'])} accuracy on test rows, by which nothing was chosen."
    if "accuracy" not in facts.measured:
        return ""
    evaluation = facts.evaluation
    rows = f"{evaluation.rows:,} evaluation rows" if evaluation and evaluation.rows else "evaluation rows"
    split = f" of the split {code(evaluation.split)}" if evaluation and evaluation.split else ""
    chosen = "; the same rows chose these weights among those of the training" if facts.keeps_best else ""
    return f" It reaches {percent(facts.measured['accuracy'])} accuracy on {rows}{split}{chosen}."


def dataset(facts: CardFacts) -> str:
    """The data set as a link or a name; empty when it is not known."""
    if hub_id(facts.dataset_id):
        shown = facts.dataset_name or facts.dataset_id or ""
        return f"[{code(shown)}](https://huggingface.co/datasets/{facts.dataset_id})"
    return code(facts.dataset_name) if facts.dataset_name else ""


def idea(facts: CardFacts) -> str:
    """What adaptive labels are, in two sentences; for a stock model, how it was trained."""
    if facts.labels is not None:
        return IDEA
    source = f" ({plain(facts.method_citation)})" if facts.method_citation else ""
    return f"It is a stock transformers model, trained with the label method {code(facts.method)}{source}."


def description(facts: CardFacts) -> str:
    """What the model is made of."""
    labels, size = facts.labels, facts.parameters
    vectors = ""
    if labels is not None:
        vectors = (
            f"{labels.total} label vectors of dimension {labels.embedding_dim}; "
            f"probabilities are softmax(−{labels.scale:.3g} · distance)"
        )
    parameters = "" if not size else f", {size:,} parameters" if size < 10**6 else f", {size / 1e6:.1f} M parameters"
    revision = f" at revision {code(facts.base_revision[:12])}" if facts.base_revision and facts.base_model else ""
    commit = f" at revision {code(facts.dataset_revision[:12])}" if facts.dataset_revision and dataset(facts) else ""
    lines = [
        ("Task", TASK_NAMES[facts.task].lower()),
        ("Base model", link(facts.base_model) + revision),
        ("Encoder", f"{code(facts.architecture)}{parameters}" if facts.architecture else ""),
        ("Longest input", f"{facts.max_length} tokens" if facts.max_length else ""),
        ("Label table", vectors),
        ("Trained on", dataset(facts) + commit),
        ("Language", ", ".join(map(code, facts.language))),
        ("Licence", code(facts.license) if facts.license else ""),
        ("Paper", f"[Yu & Verma, 2022]({DOCUMENTATION})" if labels is not None else ""),
    ]
    modules = details("All modules", fenced(facts.modules)) if facts.modules else ""
    return f"## What it is\n\n{bullets(lines)}\n\n{modules}".rstrip()


def label_table(facts: CardFacts) -> str:
    """An excerpt of the label table, the closest pairs, and the pictures."""
    labels = facts.labels
    if labels is None:
        return ""
    parts = ["## The labels"]
    if labels.mean_distance is not None:
        parts.append(
            f"Two labels are {labels.mean_distance:.2f} apart on average. "
            "The nearer two labels are, the more alike the model finds their classes."
        )
    if labels.closest:
        pairs = ", ".join(f"{code(one)} and {code(other)} ({far:.2f})" for one, other, far in labels.closest)
        parts.append(f"Closest together: {pairs}.")
    if labels.rows:
        parts.append(_excerpt(facts))
    pictures = {
        "dendrogram.png": "Hierarchy of the labels by average linkage: branches that meet further left are more alike",
        "label_distances.png": "Distances between the labels, in the order of the hierarchy: blocks are groups",
    }
    shown = {text: f"[![{text}]({name})]({name})" for name, text in pictures.items() if name in facts.pictures}
    many = labels.total > MANY_LABELS
    parts += [details(text, picture) if many else picture for text, picture in shown.items()]
    return "\n\n".join(parts)


def _excerpt(facts: CardFacts) -> str:
    labels = facts.labels
    assert labels is not None
    rows = [
        [code(name), f"{count:,}", ", ".join(f"{code(other)} {far:.2f}" for other, far in nearest)]
        for name, count, nearest in labels.rows
    ]
    text = table(
        ["label", "rows of it seen in training, repeats counted", "nearest labels, with distance"], rows, right=[1]
    )
    if len(rows) == labels.total:
        return text
    return f"{len(rows)} of {labels.total} labels; `label_table.json` lists all.\n\n{text}"


def limits(facts: CardFacts) -> str:
    """What a reader should not expect of the model."""
    lines = [
        f"It answers with one of its {facts.num_labels} labels whatever the input is, also when none of them fits.",
        "Its probabilities compare labels with each other; they do not say how often it is right.",
    ]
    if facts.labels is not None and facts.labels.unseen:
        shown = ", ".join(map(code, facts.labels.unseen[:10]))
        more = len(facts.labels.unseen) - 10
        rest = f" and {more} more" if more > 0 else ""
        lines.append(f"No training row had the label {shown}{rest}: it cannot be predicted.")
    return "## Limits\n\n" + "\n".join(f"- {line}" for line in lines)


def versions(facts: CardFacts) -> str:
    """Versions of the packages that the model was trained with."""
    lines = "\n".join(f"- {heading_text(name)} {heading_text(version)}" for name, version in facts.versions.items())
    return f"### Framework versions\n\n{lines}" if lines else ""


def emissions(facts: CardFacts) -> str:
    """What training cost the climate, where it was measured."""
    measured = facts.emissions or {}
    numbers = {name: value for name, value in measured.items() if isinstance(value, (int, float))}
    if not numbers:
        return ""
    return "### Environmental impact\n\n" + bullets(
        [
            ("Carbon", f"{numbers.get('emissions', 0.0) / 1000:.3g} kg CO₂ equivalent, measured by codecarbon"),
            ("Energy", f"{numbers['energy_consumed']:.3g} kWh" if "energy_consumed" in numbers else ""),
            ("Hardware", code(str(measured["hardware_used"])) if measured.get("hardware_used") else ""),
        ]
    )


def citation(facts: CardFacts) -> str:
    """How to cite the method."""
    if facts.labels is None and facts.method != "lwal":
        return f"## Citation\n\n{plain(facts.method_citation)}" if facts.method_citation else ""
    return f"## Citation\n\n```bibtex\n{LWAL}\n```"


def time_and_place(facts: CardFacts) -> str:
    """How long training took, and on what."""
    start = ""
    if facts.start_rows:
        took = f" in {duration(facts.start_seconds)}" if facts.start_seconds is not None else ""
        start = f"class means of {facts.start_rows:,} rows before the first step{took}"
    lines = [
        ("Start", start),
        ("Time", duration(facts.train_seconds) if facts.train_seconds else ""),
        ("Evaluations", duration(facts.evaluation_seconds) if facts.evaluation_seconds else ""),
        ("Hardware", code(facts.hardware) if facts.hardware else ""),
    ]
    return bullets(lines)


def training(facts: CardFacts) -> str:
    """Heading of the sections on training."""
    known = (facts.train, facts.command, facts.settings, facts.versions, facts.train_seconds)
    return "## Training" if any(known) else ""


def reproduce(facts: CardFacts) -> str:
    """The command that trains the model again."""
    command = facts.command
    return f"Trained by:\n\n{fenced(command, 'bash')}" if command else ""


def hyperparameters(facts: CardFacts) -> str:
    """Settings that differ from their defaults, and all others to unfold."""
    if not facts.settings:
        return ""
    changed = [
        f"- {code(name)}: {code(str(facts.settings[name]))}" for name in facts.changed if name in facts.settings
    ]
    all_of_them = [f"- {code(name)}: {code(str(value))}" for name, value in facts.settings.items()]
    shown = "\n".join(changed) or "None."
    parts = ["### Settings that differ from the defaults", shown]
    parts.append(details("All settings that shape the weights", "\n".join(all_of_them)))
    if facts.labels is not None and facts.labels.settings:
        table_of = [f"- {code(name)}: {code(str(value))}" for name, value in facts.labels.settings.items()]
        parts.append(details("What the label table is made of", "\n".join(table_of)))
    return "\n\n".join(parts)


Section = Callable[[CardFacts], str]
