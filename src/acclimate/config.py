"""The options that methods share; each method's own stand beside it."""

import dataclasses

from acclimate.errors import OptionError
from acclimate.options import Options, option

__all__ = ["AdapterConfig", "TeacherConfig", "TrainingConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdapterConfig(Options):
    """Options of every method."""

    seed: int = option(0, minimum=0, maximum=2**32)
    """Seed of the adapter's own generator."""
    window: int | None = option(None, minimum=1)
    """For single images: how many of the last images are kept, and one update for as many."""
    head: str | None = option(None)
    """Name of the module whose input are the features; found by a probe unless told."""
    precision: str | None = option(None, choices=("fp32", "bf16"))
    """Precision of the networks' forward passes; None follows the caller's autocast."""
    channels_last: bool = option(True)
    """Memory layout of convolutional networks; docs/performance.md says what it gains."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig(AdapterConfig):
    """Options of every method that trains parameters."""

    optimizer: str = option("adam", choices=("adam", "sgd"))
    lr: float = option(1e-3, above=0)
    """Learning rate for batches of ``batch_size`` images."""
    batch_size: int = option(200, minimum=1)
    """The batch size that ``lr`` was tuned for; a window scales it by window / batch_size."""
    optimizer_momentum: float = option(0.9, minimum=0, maximum=1)
    """Momentum of SGD, first beta of Adam."""
    nesterov: bool = option(True)
    """Whether SGD's momentum is Nesterov's."""
    weight_decay: float = option(0.0, minimum=0)
    updates: int = option(1, minimum=1)
    """Update steps for each batch, which is predicted by the last one's forward pass."""

    def __post_init__(self) -> None:
        """Check that the optimizer takes its momentum."""
        super().__post_init__()
        if self.optimizer == "adam" and self.optimizer_momentum == 1:
            raise OptionError(
                "The 'optimizer_momentum' option must be below 1 with Adam. Got 1.0 instead."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherConfig(TrainingConfig):
    """Options of every method with an averaged teacher."""

    momentum: float = option(0.999, minimum=0, maximum=1)
    """The teacher's share of itself in each average, the paper's alpha."""
