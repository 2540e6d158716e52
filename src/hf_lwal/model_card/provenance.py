"""Where a data set comes from, and whether anyone may see its rows."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

logger = logging.getLogger(__name__)

_HUB_FILE = re.compile(r"hf://datasets/([^@]+)@([^/]+)")
SAMPLES = 3
"""Rows of a public data set that a card shows."""

PACKAGE = __name__.partition(".")[0]
"""Builder name that data sets of the package bear."""


def hub_sources(dataset: Any) -> list[str]:
    """Ids on the Hub of the data sets that rows were loaded from, as the datasets library records them.

    Args:
        dataset: anything; only a `datasets.Dataset` has a record.

    Returns:
        Distinct ids; empty where some of the rows come from elsewhere, or nothing is recorded.
    """
    found = [_HUB_FILE.match(source) for source in _recorded(dataset)]
    return list(dict.fromkeys(match[1] for match in found if match)) if all(found) else []


def hub_revision(dataset: Any) -> str | None:
    """Commit on the Hub that all rows were loaded from, if there is one."""
    revisions = {match[2] for source in _recorded(dataset) if (match := _HUB_FILE.match(source))}
    return revisions.pop() if len(revisions) == 1 and re.fullmatch("[0-9a-f]{40}", min(revisions)) else None


def _recorded(dataset: Any) -> list[str]:
    """Addresses of the files that rows were loaded from."""
    sources = getattr(getattr(dataset, "info", None), "download_checksums", None) or {}
    return [str(source) for source in sources]


def is_embedded(dataset: Any) -> bool:
    """Whether rows are those of a data set that travels with the package."""
    return getattr(getattr(dataset, "info", None), "builder_name", None) == PACKAGE


def sample_count(dataset: Any, told: Sequence[str]) -> int:
    """How many rows of a data set a card shows where nobody has said it: none, unless anyone can see them anyway.

    Args:
        dataset: the rows.
        told: ids on the Hub that the caller gave, for rows that bear no record of their own.
    """
    if is_embedded(dataset):
        return SAMPLES
    sources = hub_sources(dataset) or told
    return SAMPLES if sources and all(is_public(source) for source in sources) else 0


def is_public(dataset_id: str) -> bool:
    """Whether the Hub shows a data set to someone without a token; False where the Hub cannot be asked."""
    try:
        return _shown_to_anyone(dataset_id)
    except Exception as error:  # whatever its client raises, the answer is not known
        logger.info(
            "The model card shows no rows of %s, since the Hub did not say that it is public (%s); "
            "create_model_card(samples=3) shows them.",
            dataset_id,
            type(error).__name__,
        )
        return False


@lru_cache
def _shown_to_anyone(dataset_id: str) -> bool:
    from huggingface_hub import HfApi

    info = HfApi(token=False).dataset_info(dataset_id, timeout=5)
    return not (info.private or info.gated or info.disabled)
