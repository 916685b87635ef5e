"""Source: the model as it is, the baseline of every table.

Differs from the official code in nothing. Cost per batch: 1 forward.
"""

from torch import nn

from acclimate.adapter import Adapter
from acclimate.config import AdapterConfig

__all__ = ["Source"]


class Source(Adapter[AdapterConfig]):
    """Predict with the source model and its own running statistics."""

    name = "source"

    def configure(self, student: nn.Module) -> None:
        """Keep the running statistics."""

    def changes_last(self) -> bool:
        """Nothing changes."""
        return True
