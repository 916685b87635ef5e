"""CoTTA: learn from a teacher averaged over weights and views, and forget back to the source.

Idea: where the source model is unsure, the mean over many augmented views makes the better
pseudo-label; restoring a few random weights to the source at every step bounds what a long
stream can spoil.

Wang et al., "Continual test-time domain adaptation" (CVPR 2022), section 3: weight-averaged and
augmentation-averaged pseudo-labels, stochastic restoration. CoTTA in Tables 1 to 3 of the RMT
paper, whose ImageNet and DomainNet rows use a symmetric loss.

Differs from the official code: the teacher does not forward the plain batch where the views are
averaged anyway, and one draw makes the masks of all weights. Above the threshold a student equal
to its teacher has no gradient under cross-entropy, and Adam turns the rounding noise into its
first steps, as there. Cost per batch and update: 1 forward and backward, 2 forwards; 33 forwards
and 32 augmentations where the source model is unsure.
"""

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from acclimate.adapter import Adapter
from acclimate.augment import augment
from acclimate.config import TeacherConfig
from acclimate.losses import cross_entropy, symmetric_cross_entropy
from acclimate.options import option

__all__ = ["CoTTA", "CoTTAConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoTTAConfig(TeacherConfig):
    """Options of CoTTA; the defaults are the paper's for CIFAR10-C."""

    loss: str = option("ce", choices=("ce", "sce"))
    """Cross-entropy with the pseudo-label, or half of the symmetric cross-entropy."""
    threshold: float = option(0.92, minimum=0, maximum=1)
    """Below this mean confidence of the source model, pseudo-labels average augmented views."""
    augmentations: int = option(32, minimum=1)
    """How many augmented views are averaged."""
    restore: float = option(0.01, minimum=0, maximum=1)
    """Probability that a step gives a weight its source value back."""


_NATURAL: dict[str, Any] = {
    "optimizer": "sgd",
    "lr": 0.01,
    "loss": "sce",
    "threshold": 0.1,
    "restore": 0.001,
}


class CoTTA(Adapter[CoTTAConfig]):
    """Continual test-time adaptation by averaged pseudo-labels and stochastic restoration."""

    name = "cotta"
    Config = CoTTAConfig
    trains = "all"
    keeps_anchor = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar": {},
        "cifar100": {"threshold": 0.72},
        "imagenet": {**_NATURAL, "batch_size": 64},
        "domainnet": {**_NATURAL, "batch_size": 128},
    }

    def predictors(self) -> list[nn.Module]:
        """The teacher predicts."""
        assert self.teacher is not None
        return [self.teacher]

    def augment(self, x_NCHW: Tensor) -> Tensor:
        """Return one augmented view of a batch."""
        return augment(x_NCHW, self.generator)

    def changes_last(self) -> bool:
        """The update is the only change."""
        return True

    def adapt(self, x_NCHW: Tensor) -> Tensor:
        """Predict the pseudo-label, step the student towards it, and restore some weights."""
        pseudo_label_NK = self.pseudo_label(x_NCHW)
        student_NK = self.run(self.student, x_NCHW)
        if self.config.loss == "ce":
            loss = cross_entropy(student_NK, pseudo_label_NK).mean()
        else:
            loss = symmetric_cross_entropy(student_NK, pseudo_label_NK).mean() / 2
        self.update(loss)
        if self.config.restore > 0:
            self.restore_weights(self.config.restore)
        return pseudo_label_NK

    @torch.no_grad()
    def pseudo_label(self, x_NCHW: Tensor) -> Tensor:
        """Return the teacher's logits, averaged over views if the source model is unsure.

        Every view is a forward pass of its own, with its own batch statistics. Passes of several
        views at once are no faster: docs/methods.md has the measurements.
        """
        assert self.teacher is not None
        assert self.anchor is not None
        confidence_N = self.run(self.anchor, x_NCHW).softmax(1).amax(1)
        if confidence_N.mean() >= self.config.threshold:
            return self.run(self.teacher, x_NCHW)
        views = range(self.config.augmentations)
        return torch.stack([self.run(self.teacher, self.augment(x_NCHW)) for _ in views]).mean(0)
