"""A client process that runs scenarios: ``hub_worker.py FOLDER GROUP...``; what they saw goes to FOLDER/GROUP.json."""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from pathlib import Path

import hub_scenarios
import huggingface_hub

GROUPS = {
    "scenarios": "hub_scenarios",
    "failures": "hub_failures",
    "training": "hub_training",
    "samples": "hub_samples",
    "offline": "hub_offline",
}
"""Group → module with its ``SCENARIOS``, imported when its turn comes: the trainer alone takes a while."""


def main(folder: Path, *groups: str) -> None:
    scene = hub_scenarios.scene(huggingface_hub.constants.ENDPOINT, folder)
    for group in groups:
        seen = {}
        for scenario in importlib.import_module(GROUPS[group]).SCENARIOS:
            try:
                seen[scenario.__name__] = scenario(scene)
            except Exception:  # the tests of this scenario fail, and the others still say what they have to
                seen[scenario.__name__] = {"crashed": traceback.format_exc()}
        (folder / f"{group}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
