"""What the label vectors say about the labels: distances between them, nearest neighbours, and a hierarchy."""

from .tree import (
    LINKAGE_METHODS,
    Matrix,
    Neighbourhood,
    as_matrix,
    cluster_names,
    group_distances,
    label_distances,
    label_drift,
    leaf_order,
    linkage,
    nearest_labels,
    neighbourhood,
    reference_clusters,
)

__all__ = [
    "LINKAGE_METHODS",
    "Matrix",
    "Neighbourhood",
    "as_matrix",
    "cluster_names",
    "group_distances",
    "label_distances",
    "label_drift",
    "leaf_order",
    "linkage",
    "nearest_labels",
    "neighbourhood",
    "reference_clusters",
]
