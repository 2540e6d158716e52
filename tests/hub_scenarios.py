"""Client scenarios of the Hub: each runs in a process of its own kind and returns what it saw, as JSON can hold it."""

from __future__ import annotations

import hashlib
import json
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import tiny_models
import torch
from huggingface_hub import HfApi
from toy import IMAGE_SIZE, word_tokenizer
from transformers import AutoModel, AutoModelForSequenceClassification, pipeline

from hf_lwal import AutoModelForLwALClassification, LwALForSequenceClassification

LABELS = {0: "refund", 1: "**bold**", 2: "../up", 3: "<b>x</b>", 4: "card lost"}
TEXTS = ["key0 word1 key0", "word2 key3 word4", "key4 key4"]


@dataclass
class Scene:
    """What scenarios share: a model with a started label table, its tokenizer, and folders."""

    url: str
    folder: Path
    model: Any
    tokenizer: Any
    api: HfApi

    def fault(self, *faults: dict[str, Any], **settings: Any) -> None:
        """Replace the server's faults."""
        body = json.dumps({"faults": faults, **settings}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/-/faults", body)) as reply:
            reply.read()

    def cache(self, name: str) -> str:
        return str(self.folder / "caches" / name)


def tiny_model(name: str = "bert", seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = tiny_models.tiny_config(name, id2label=LABELS, label2id={v: k for k, v in LABELS.items()})
    return started(AutoModelForLwALClassification.from_config(config).eval())


def started(model: Any) -> Any:
    """The model with label vectors of random features."""
    table = model.label_table
    labels = torch.arange(3 * len(LABELS)) % len(LABELS)
    table.start(torch.randn(len(labels), table.class_features.shape[1]), labels, model.head)
    return model


def scene(url: str, folder: Path) -> Scene:
    return Scene(url, folder, tiny_model(), word_tokenizer(), HfApi())


def digest(model: Any) -> str:
    """Names and bytes of the whole state dict."""
    state = model.state_dict()
    return hashlib.sha256(
        b"".join(k.encode() + v.cpu().numpy().tobytes() for k, v in sorted(state.items()))
    ).hexdigest()


@torch.no_grad()
def logits(model: Any, tokenizer: Any) -> list[list[float]]:
    """Logits of a model as it was loaded: those of a model in memory may differ in the last bit."""
    return model.eval()(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits.tolist()


@torch.no_grad()
def image_logits(model: Any) -> list[list[float]]:
    pixels = torch.linspace(-1, 1, 3 * IMAGE_SIZE**2).reshape(1, 3, IMAGE_SIZE, IMAGE_SIZE)
    return model.eval()(pixel_values=pixels).logits.tolist()


def failure(attempt: Callable[[], Any]) -> str:
    """Type and text of the exception, or an empty string."""
    try:
        attempt()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def load(name: str, **kwargs: Any) -> Any:
    return AutoModelForSequenceClassification.from_pretrained(name, **kwargs)


# -- push and pull ----------------------------------------------------------------------------------------------------


def push_and_pull(s: Scene) -> dict[str, Any]:
    s.model.push_to_hub("toy-text")
    s.tokenizer.push_to_hub("toy-text")
    s.model.save_pretrained(s.folder / "local")
    local = LwALForSequenceClassification.from_pretrained(s.folder / "local")
    pulled = load("alice/toy-text", cache_dir=s.cache("fresh"), token=False)
    ours = AutoModelForLwALClassification.from_pretrained("alice/toy-text")
    return {
        "class": f"{type(pulled).__module__}.{type(pulled).__name__}",
        "trusting": type(load("alice/toy-text", trust_remote_code=True)).__module__,
        "digests": [digest(model) for model in (s.model, local, pulled, ours)],
        "local": logits(local, s.tokenizer),
        "pulled": logits(pulled, s.tokenizer),
        "labels": [pulled.config.id2label[index] for index in range(5)],
    }


def pipelines(s: Scene) -> dict[str, Any]:
    named = pipeline("text-classification", model="alice/toy-text", top_k=None)
    found = pipeline(model="alice/toy-text")
    expected = s.model.predict(TEXTS, s.tokenizer, top_k=5)
    return {"named": named(TEXTS), "task": found.task, "expected": expected}


def images(s: Scene) -> dict[str, Any]:
    model = tiny_model("vit")
    model.push_to_hub("toy-image")
    model.save_pretrained(s.folder / "local-image")
    local = type(model).from_pretrained(s.folder / "local-image")
    return {"local": image_logits(local)}


def revisions(s: Scene) -> dict[str, Any]:
    """Old commit, tag, branch and pull request keep apart what was pushed to each."""
    first = s.model.push_to_hub("versions").oid
    s.api.create_tag("alice/versions", tag="v1")
    models = [tiny_model(seed=seed) for seed in (1, 2, 3)]
    second = models[0].push_to_hub("versions", commit_message="better").oid
    models[1].push_to_hub("versions", revision="experiment")
    request = models[2].push_to_hub("versions", create_pr=True)
    refs = s.api.list_repo_refs("alice/versions", include_pull_requests=True)
    names = [first, "v1", second, "main", "experiment", request.pr_revision]
    loaded = {name: digest(load("alice/versions", revision=name)) for name in names}
    return {
        "wanted": [digest(m) for m in (s.model, s.model, models[0], models[0], models[1], models[2])],
        "loaded": [loaded[name] for name in names],
        "ours": digest(AutoModelForLwALClassification.from_pretrained("alice/versions", revision="v1")),
        "again": models[0].push_to_hub("versions").oid == second,
        "commits": [commit.title for commit in s.api.list_repo_commits("alice/versions", revision="experiment")],
        "refs": [entry.ref for kind in (refs.branches, refs.tags, refs.pull_requests) for entry in kind],
        "wrong": failure(lambda: load("alice/versions", revision="nowhere")),
    }


def companions(s: Scene) -> dict[str, Any]:
    """save_pretrained(push_to_hub=True) uploads before it returns to the class that writes the label table."""
    s.model.save_pretrained(s.folder / "companions", push_to_hub=True, repo_id="companions")
    plain = tiny_model()
    plain.config.push_code = False
    plain.push_to_hub("no-code")
    again = load("alice/companions")
    again.save_pretrained(s.folder / "resaved", include_code=False)
    plain.config.push_code = True
    plain.push_to_hub("code-taken-back")
    own = {"path_or_fileobj": b"mine = 1", "path_in_repo": "start.py"}
    s.api.upload_file(repo_id="alice/code-taken-back", **own)
    plain.config.push_code = False
    plain.push_to_hub("code-taken-back")
    return {
        "auto_map_after_resaving": json.loads((s.folder / "resaved" / "config.json").read_text()).get("auto_map"),
        "resaved": sorted(path.name for path in (s.folder / "resaved").iterdir()),
        "no_code_stays": load("alice/no-code").config.push_code,
    }


def cards(s: Scene) -> dict[str, Any]:
    """What people write into the card on the Hub survives the next push."""
    s.model.push_to_hub("cards", tags=["banking"])
    card = huggingface_hub.ModelCard.load("alice/cards")
    card.data.license, card.data.pipeline_tag = "mit", "zero-shot-classification"
    card.text += "\n## My own words\n"
    card.push_to_hub("alice/cards")
    s.model.push_to_hub("cards")
    broken = "---\nmodel-index:\n- results: []\n---\n"
    return {
        "broken": failure(
            lambda: s.api.upload_file(path_or_fileobj=broken.encode(), path_in_repo="README.md", repo_id="alice/cards")
        )
    }


def large_files(s: Scene) -> dict[str, Any]:
    """In parts, and through a redirect to another host that must not see the token."""
    s.fault(chunk_size=20_000)
    s.model.push_to_hub("parts")
    s.fault(chunk_size=1 << 40)
    return {"digest": digest(load("alice/parts")), "wanted": digest(s.model)}


def files(s: Scene) -> dict[str, Any]:
    """Odd names, a copy, a deletion, a snapshot."""
    repo = "alice/files"
    s.model.push_to_hub("files")
    name = "sub dir/x#1%.txt"
    s.api.upload_file(path_or_fileobj=b"odd", path_in_repo=name, repo_id=repo)
    got = Path(s.api.hf_hub_download(repo, name, cache_dir=s.cache("odd"))).read_bytes()
    copy = huggingface_hub.CommitOperationCopy("model.safetensors", "copy.safetensors")
    s.api.create_commit(repo, [copy], commit_message="copy")
    s.api.delete_file("sub dir/x#1%.txt", repo)
    folder = Path(s.api.snapshot_download(repo, local_dir=s.folder / "snapshot"))
    return {
        "odd": got.decode(),
        "files": s.api.list_repo_files(repo),
        "snapshot": digest(LwALForSequenceClassification.from_pretrained(folder)),
        "twice": failure(lambda: s.api.delete_file(name, repo)),
        "missing": failure(lambda: s.api.hf_hub_download(repo, "nothing.txt")),
    }


def sentence_encoder(s: Scene) -> dict[str, Any]:
    """A sentence encoder by its id, without a word on pooling; what is made of it, and its fold, pushed and pulled."""
    folder = s.folder / "encoder"
    (folder / "1_Pooling").mkdir(parents=True)
    torch.manual_seed(1)
    AutoModel.from_config(tiny_models.tiny_config("bert")).save_pretrained(folder)
    parts = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in parts]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    s.api.create_repo("alice/encoder")
    s.api.upload_folder(repo_id="alice/encoder", folder_path=folder)
    model = started(AutoModelForLwALClassification.from_pretrained("alice/encoder", id2label=LABELS)).eval()
    model.push_to_hub("toy-pooled")
    model.fold().push_to_hub("toy-pooled-fold")
    pulled = load("alice/toy-pooled", cache_dir=s.cache("pooled"))
    ours = AutoModelForLwALClassification.from_pretrained("alice/toy-pooled")
    return {
        "pooling": [[m.config.pooling, m.encoder.config.normalize] for m in (model, pulled, ours)],
        "digests": [digest(m) for m in (model, pulled, ours)],
        "logits": logits(model, s.tokenizer),
        "folded": logits(load("alice/toy-pooled-fold"), s.tokenizer),
    }


# -- who may do what --------------------------------------------------------------------------------------------------


def access(s: Scene) -> dict[str, Any]:
    s.model.push_to_hub("secret", private=True)
    s.model.push_to_hub("gated")
    s.api.update_repo_settings("alice/gated", gated="auto")
    pulls = {"none": False, "bob": "bob-write", "invalid": "wrong"}
    return {
        "owner": digest(load("alice/secret", token="alice-write")) == digest(s.model),
        "secret": {
            who: failure(lambda t=token, w=who: load("alice/secret", token=t, cache_dir=s.cache(w)))
            for who, token in pulls.items()
        },
        "gated": {
            who: failure(lambda t=token, w=who: load("alice/gated", token=t, cache_dir=s.cache(w)))
            for who, token in pulls.items()
        },
        "read token": failure(lambda: s.model.push_to_hub("alice/toy-text", token="alice-read")),
        "bob": failure(lambda: s.model.push_to_hub("alice/toy-text", token="bob-write")),
        "new by bob": failure(lambda: s.model.push_to_hub("alice/new", token="bob-write")),
        "nobody": failure(lambda: s.model.push_to_hub("alice/toy-text", token=False)),
        "no repo": failure(lambda: AutoModelForLwALClassification.from_pretrained("alice/nothing", num_labels=5)),
        "whoami": s.api.whoami()["name"],
    }


SCENARIOS = [
    push_and_pull,
    pipelines,
    images,
    revisions,
    companions,
    cards,
    large_files,
    files,
    sentence_encoder,
    access,
]
