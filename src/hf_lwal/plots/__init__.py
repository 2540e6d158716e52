"""Pictures of a training run and of its label vectors: learning curves, reliability, dendrogram, heat map, map, drift.

Every function writes one file, PNG, SVG or PDF by its name. Figures are built without pyplot: no global state and no
window system.
"""

from .curves import logged_drift, plot_label_drift, plot_learning_curves
from .figures import require_matplotlib
from .maps import plot_label_distances, plot_label_map
from .reliability import plot_reliability
from .trees import plot_dendrogram

__all__ = [
    "logged_drift",
    "plot_dendrogram",
    "plot_label_distances",
    "plot_label_drift",
    "plot_label_map",
    "plot_learning_curves",
    "plot_reliability",
    "require_matplotlib",
]
