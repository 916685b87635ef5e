"""Architectures and the bundled network."""

from acclimate.models.load import load_model

__all__ = ["load_model"]
