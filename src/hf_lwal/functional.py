"""The paper's equations as pure tensor functions; they stand in `hf_lwal.modeling.functional`."""

from .modeling.functional import *  # noqa: F403
