"""The measures as modules of ``evaluate``, which load from the package without network.

``evaluate`` copies the file of a module into its cache and runs it there, so that each imports the installed package.
"""

from __future__ import annotations

from pathlib import Path

MODULES = ("auac", "expected_calibration_error", "learning_speed", "mds_disparity", "structure_correlation")


def path(name: str) -> str:
    """Where a module's file is, for ``evaluate.load(hf_lwal.metrics.path(name))``.

    Args:
        name: one of `MODULES`.

    >>> path("auac").endswith("auac.py")
    True
    """
    if name not in MODULES:
        raise ValueError(f"There is no measure {name!r}: choose one of {', '.join(MODULES)}.")
    return str(Path(__file__).with_name(f"{name}.py"))
