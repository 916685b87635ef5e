"""BN-1: normalise with the statistics of the test data instead of the source's.

Idea: a shift moves the statistics of every layer's input; normalising with those of the present
batch undoes much of it. Nothing is trained.

Schneider et al., "Improving robustness against common corruptions by covariate shift adaptation"
(NeurIPS 2020), section 3; BN-1 in the paper's Table 1. Two variants:

- ``alpha``: statistics between the source's and the batch's, ``(1 - alpha) * source + alpha *
  batch`` with the unbiased batch variance. BN-1 is ``alpha=1``.
- ``momentum``: running statistics that start from the source's and are moved by each batch, in a
  forward pass of its own, before it is predicted with them.

Differs from the official code: with a window, the moving statistics count every image once, not
once for every forward pass of the window. Cost per batch: 1 forward; 2 with ``momentum``.
"""

import dataclasses

import torch
from torch import Tensor, nn

from acclimate.adapter import Adapter
from acclimate.config import AdapterConfig
from acclimate.errors import OptionError
from acclimate.network import MixedStatistics, moving_statistics, use_batch_statistics
from acclimate.options import option

__all__ = ["BN1", "BN1Config"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BN1Config(AdapterConfig):
    """Options of BN-1."""

    alpha: float = option(1.0, minimum=0, maximum=1)
    """Share of the batch's statistics; the official BN-alpha uses 0.1."""
    momentum: float | None = option(None, minimum=0, maximum=1)
    """Step of the moving statistics; the official BN-EMA uses 0.1."""

    def __post_init__(self) -> None:
        """Check that one variant is chosen."""
        super().__post_init__()
        if self.momentum is not None and self.alpha != 1.0:
            raise OptionError(
                "The 'alpha' and 'momentum' options of BN1 name two variants; set one of them. "
                f"Got alpha={self.alpha}, momentum={self.momentum}."
            )


class BN1(Adapter[BN1Config]):
    """Predict with the BatchNorm statistics of the test data."""

    name = "bn1"
    Config = BN1Config

    def configure(self, student: nn.Module) -> None:
        """Install the variant's statistics."""
        if self.config.momentum is not None:
            self.changes_statistics = True
        elif self.config.alpha < 1:
            MixedStatistics(student, self.config.alpha)
        else:
            use_batch_statistics(student)

    def changes_last(self) -> bool:
        """Moving statistics change layer by layer, the others not at all."""
        return self.config.momentum is None

    def adapt(self, x_NCHW: Tensor) -> Tensor:
        """Let moving statistics follow the batch, and predict it."""
        with torch.no_grad():
            if self.config.momentum is not None:
                with moving_statistics(self.student, self.config.momentum):
                    self.infer(x_NCHW)
            return self.infer(x_NCHW)
