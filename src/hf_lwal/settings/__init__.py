"""What can be chosen: training arguments, presets, and applying both to a model."""

from .applying import apply_settings

__all__ = ["apply_settings"]
