"""GTTA-MIX: bridge a shift by mixing labelled source images into the test images.

Idea: self-training succeeds on small shifts, so images between source and test are made, which
keep the source's labels; pseudo-labels count only where they are confident.

Marsden, Döbler, Yang, "Introducing intermediate domains for effective self-training during
test-time" (2022), the variant with mixup; GTTA-MIX in Tables 1 to 3 of the RMT paper.

Differs from the official code: of the network only BatchNorm is in training mode, not dropout;
where no pseudo-label is confident enough the loss is 0 instead of undefined (the optimizer takes
its step all the same); and a batch's first prediction makes its pseudo-labels too, instead of the
same forward pass twice. Cost per batch and update: 2 forward and backward, 2 forwards.
"""

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from acclimate.adapter import Adapter, Report
from acclimate.config import TrainingConfig
from acclimate.options import option
from acclimate.source import Batch, Source, SourceBatches

__all__ = ["GTTA", "GTTAConfig"]

_CHECKED = 1000  # Source images looked at before deployment.


@dataclasses.dataclass(frozen=True, kw_only=True)
class GTTAConfig(TrainingConfig):
    """Options of GTTA-MIX; the defaults are the paper's for CIFAR10-C and CIFAR100-C."""

    lr: float = option(1e-5, above=0)
    """Learning rate for batches of ``batch_size`` images."""
    updates: int = option(4, minimum=1)
    """Update steps for each batch, of two optimizer steps each."""
    test_share: float = option(1 / 3, minimum=0, maximum=1)
    """The test image's share in a mixed image."""
    confidence_momentum: float = option(0.9, minimum=0, maximum=1)
    """The running mean confidence's share of itself in each average."""


class GTTA(Adapter[GTTAConfig]):
    """Train on mixtures of source and test images, and on confident pseudo-labels."""

    name = "gtta-mix"
    Config = GTTAConfig
    needs_source = True
    trains = "all"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar": {},
        "imagenet": {"batch_size": 64},
        "domainnet": {"batch_size": 128},
    }

    confidence: Tensor

    def configure(self, student: nn.Module) -> None:
        """Use batch statistics; the running mean confidence starts at 0.9."""
        super().configure(student)
        self.register_buffer("confidence", torch.tensor(0.9))

    def needs_replay(self) -> bool:
        """Labelled source batches are mixed with every test batch."""
        return True

    def learn_source(self, source: Source, report: Report) -> None:
        """Learn nothing, but see from a sample that the source data can be replayed."""
        batches = SourceBatches(source, self.config.batch_size, self.config.seed)
        total, done = min(len(batches), _CHECKED), 0
        for batch in batches.once(_CHECKED):
            x_NCHW, _ = self.take_source(batch)
            done += len(x_NCHW)
            report("source check", done, max(total, done))

    def begin(self, x_NCHW: Tensor) -> None:
        """Take the batches to replay, predict, and keep the pseudo-labels that are confident."""
        self.source_batches: list[Batch] = self.replayed()
        with torch.no_grad():
            self.first_NK: Tensor | None = self.run(self.student, x_NCHW)
        confidence_N, self.pseudo_label_N = self.first_NK.softmax(1).max(1)
        share = self.config.confidence_momentum
        self.next_confidence = share * self.confidence + (1 - share) * confidence_N.mean()
        self.kept_N = confidence_N >= self.next_confidence.sqrt()

    def adapt(self, x_NCHW: Tensor) -> Tensor:
        """Step down the loss on mixed images, then on confident pseudo-labels; predict."""
        x_source_NCHW, y_N = self.source_batches.pop(0)
        mixed_NCHW = self.mix(x_source_NCHW, x_NCHW)
        self.update(F.cross_entropy(self.run(self.student, mixed_NCHW), y_N))
        logits_NK = self.run(self.student, x_NCHW)
        loss_N = F.cross_entropy(logits_NK, self.pseudo_label_N, reduction="none")
        self.update((loss_N * self.kept_N).sum() / self.kept_N.sum().clamp_min(1))
        self.confidence.copy_(self.next_confidence)
        return logits_NK

    @torch.no_grad()
    def mix(self, x_source_NCHW: Tensor, x_NCHW: Tensor) -> Tensor:
        """Mix each source image with the test image whose prediction is most like its own."""
        test_NK = self.run(self.student, x_NCHW) if self.first_NK is None else self.first_NK
        self.first_NK = None
        source_NK = self.run(self.student, x_source_NCHW)
        nearest_N = (source_NK.softmax(1) @ test_NK.softmax(1).T).argmax(1)
        return x_source_NCHW.lerp(x_NCHW[nearest_N], self.config.test_share)
