"""Client scenarios in which the network, the server or another person interferes; each leaves both sides whole."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import huggingface_hub.constants
from hub_scenarios import Scene, digest, failure, load, tiny_model
from huggingface_hub import HfApi

from hf_lwal import LwALForSequenceClassification

FOREVER = -1


def no_waiting(s: Scene) -> dict[str, Any]:
    """Shorten the waits between the client's attempts, for all scenarios after this one."""
    real = time.sleep
    time.sleep = lambda seconds: real(min(seconds, 0.01))
    return {}


def _push(s: Scene, seed: int, at: tuple[str, str], **fault: Any) -> str:
    """Push weights that the server has never seen to ``alice/faults`` while the fault lasts; the exception."""
    s.fault({"method": at[0], "path": at[1], **fault})
    try:
        return failure(lambda: tiny_model(seed=seed).push_to_hub("faults"))
    finally:
        s.fault()


def uploads(s: Scene) -> dict[str, Any]:
    s.model.push_to_hub("faults")
    put, commit, pre = ("PUT", "/-/lfs/"), ("POST", "/commit/"), ("POST", "/preupload/")
    seen = {
        "cut for ever": _push(s, 1, put, after=5_000, times=FOREVER),
        "cut commit": _push(s, 2, commit, after=100, times=FOREVER),
        "500 on upload": _push(s, 3, put, status=500, times=FOREVER),
        "500 on commit": _push(s, 4, commit, status=500, times=FOREVER),
        "503 for ever": _push(s, 5, pre, status=503, times=FOREVER),
    }
    whole = digest(load("alice/faults", cache_dir=s.cache("after"))) == digest(s.model)
    recovered = {
        "cut once": _push(s, 6, put, after=5_000),
        "429": _push(s, 7, pre, status=429, times=2, headers={"Retry-After": "0"}),
    }
    healed = digest(load("alice/faults", cache_dir=s.cache("healed"))) == digest(tiny_model(seed=7))
    return {"errors": seen, "whole": whole, "recovered": recovered, "healed": healed}


def failed_push_of_a_folder(s: Scene) -> dict[str, Any]:
    """The folder of save_pretrained(push_to_hub=True) is loadable after the push has failed."""
    s.fault({"method": "POST", "path": "/commit/", "status": 500, "times": FOREVER})
    folder = s.folder / "failed"
    error = failure(lambda: s.model.save_pretrained(folder, push_to_hub=True, repo_id="failed"))
    s.fault()
    loaded = LwALForSequenceClassification.from_pretrained(folder)
    files = sorted(path.name for path in folder.iterdir())
    return {"error": error, "same": digest(loaded) == digest(s.model), "files": files}


def stale(s: Scene) -> dict[str, Any]:
    """Somebody else committed since this person looked."""
    s.model.push_to_hub("stale")
    seen = HfApi().model_info("alice/stale").sha
    tiny_model(seed=1).push_to_hub("stale")
    tiny_model(seed=2).save_pretrained(s.folder / "stale")

    def push() -> Any:
        return HfApi().upload_folder(repo_id="alice/stale", folder_path=s.folder / "stale", parent_commit=seen)

    error = failure(push)
    return {"error": error, "kept": digest(load("alice/stale")) == digest(tiny_model(seed=1))}


def _pull(s: Scene, name: str, *faults: dict[str, Any]) -> tuple[str, bool]:
    """The exception of a pull into a cache of its own, and whether the next one, without faults, is right."""
    s.fault(*faults)
    error = failure(lambda: load("alice/toy-text", cache_dir=s.cache(name)))
    s.fault()
    return error, digest(load("alice/toy-text", cache_dir=s.cache(name))) == digest(s.model)


def downloads(s: Scene) -> dict[str, Any]:
    cut = {"method": "GET", "path": "/-/cdn/", "after": 30_000}
    return {
        "cut once": _pull(s, "cut-once", cut),
        "cut for ever": _pull(s, "cut", {**cut, "times": FOREVER}),
        "500 on the weights": _pull(s, "500-weights", {**cut, "status": 500, "times": FOREVER}),
        "500 on everything": _pull(
            s,
            "500",
            {"method": "GET", "path": "/", "status": 500, "times": FOREVER},
            {"method": "HEAD", "path": "/", "status": 500, "times": FOREVER},
        ),
    }


def resumed(s: Scene) -> dict[str, Any]:
    """A cut download goes on where it was: with chunks smaller than the file, as real models have them."""
    size, huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE = huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE, 10_000
    try:
        return {"seen": _pull(s, "resumed", {"method": "GET", "path": "/-/cdn/", "after": 30_500})}
    finally:
        huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE = size


SCENARIOS: list[Callable[[Scene], dict[str, Any]]] = [
    no_waiting,
    uploads,
    failed_push_of_a_folder,
    stale,
    downloads,
    resumed,
]
