"""AdaContrast: pseudo-labels from nearest neighbours, and contrast with a queue of keys.

Idea: a sample's neighbours in feature space correct its pseudo-label; strongly augmented views
are trained on it, while contrastive learning that spares the same class shapes the features.

Chen et al., "Contrastive test-time adaptation" (CVPR 2022), section 3: pseudo-labels refined by
neighbours, contrast that excludes same-class pairs, diversity. AdaContrast in Tables 1 to 3 of the
RMT paper.

Differs from the official code: of the network only BatchNorm is in training mode, not dropout;
views are drawn from the images given, in floating point; the bank's size is its capacity rounded
up to whole batches of ``batch_size`` (or ``window``), so a smaller batch does not change it. The
official code does not run on single images. The bank's ring starts, as there, at the last batch
that was written in filling it. Cost per batch and update: 1 forward and backward, 4 forwards and
3 views.
"""

import dataclasses
import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from acclimate import network
from acclimate.adapter import Adapter
from acclimate.augment import StrongView, WeakView
from acclimate.config import TeacherConfig
from acclimate.losses import diversity, info_nce
from acclimate.options import option

__all__ = ["AdaContrast", "AdaContrastConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaContrastConfig(TeacherConfig):
    """Options of AdaContrast; the defaults are the paper's for CIFAR10-C and CIFAR100-C."""

    optimizer: str = option("sgd", choices=("adam", "sgd"))
    lr: float = option(2e-4, above=0)
    """Learning rate for batches of ``batch_size`` images."""
    weight_decay: float = option(1e-4, minimum=0)
    temperature: float = option(0.07, above=0)
    """Temperature of the contrastive loss."""
    capacity: int = option(16_384, minimum=1)
    """Keys in the queue, and at least so many samples in the bank of neighbours."""
    neighbours: int = option(10, minimum=1)
    """So many nearest neighbours refine a pseudo-label."""
    refine_after: int = option(1024, minimum=0)
    """Samples seen before pseudo-labels are refined."""
    crop: bool = option(False)
    """Whether views crop, as for natural images whose object may be anywhere."""
    all_parameters: bool = option(False)
    """Whether all parameters are trained, not only those named weight and bias."""
    fast_layers: int = option(0, minimum=0)
    """So many of the model's last layers learn faster: what its backbone was given for the task."""
    fast_factor: float = option(10.0, above=0)
    """How much faster they learn."""


class AdaContrast(Adapter[AdaContrastConfig]):
    """Contrastive test-time adaptation."""

    name = "adacontrast"
    Config = AdaContrastConfig
    needs_features = True
    trains = "all"
    changes_statistics = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar": {},
        "imagenet": {"batch_size": 64},
        "imagenet-r": {"batch_size": 64, "crop": True},
        "domainnet": {"batch_size": 128, "crop": True, "all_parameters": True, "fast_layers": 3},
    }

    queue: Tensor | None
    queue_labels: Tensor
    bank: Tensor
    bank_probabilities: Tensor

    # --- Networks and memory ----------------------------------------------------------------

    def configure(self, student: nn.Module) -> None:
        """Keep the running statistics; queue and bank come with the first batch."""
        for name in ("queue", "queue_labels", "bank", "bank_probabilities"):
            self.register_buffer(name, None)
        self.counters |= {"seen": 0, "queue_next": 0, "bank_next": 0, "bank_filled": 0}

    def trainable(self, student: nn.Module) -> dict[str, nn.Parameter]:
        """Weights and biases, or all parameters."""
        if self.config.all_parameters:
            return dict(student.named_parameters())
        return super().trainable(student)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The last layers may learn faster than the rest."""
        last = network.parameters_of_last_layers(self.student, self.config.fast_layers)
        fast = {id(parameter) for parameter in last}
        groups = []
        for factor, which in ((1.0, False), (self.config.fast_factor, True)):
            chosen = [p for p in self.trained.values() if (id(p) in fast) is which]
            if chosen:
                groups.append({"params": chosen, "factor": factor})
        return groups

    def make_memory(self, features_ND: Tensor, logits_NK: Tensor) -> None:
        """Fill the queue with random unit features and labels, and make room for the bank."""
        dimensions, classes = features_ND.shape[1], logits_NK.shape[1]
        size = self.config.capacity
        random_MD = torch.randn(size, dimensions, generator=self.generator)
        self.queue = F.normalize(random_MD).to(features_ND)
        labels_M = torch.randint(classes, (size,), generator=self.generator)
        self.queue_labels = labels_M.to(features_ND.device)
        batch = self.config.window or self.config.batch_size
        whole_batches = math.ceil(size / batch) * batch
        self.bank = features_ND.new_zeros(whole_batches, dimensions)
        self.bank_probabilities = logits_NK.new_zeros(whole_batches, classes)

    # --- Adaptation -------------------------------------------------------------------------

    def views(self, x_NCHW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return a weak view and two strong ones, of the query and of the key."""
        kinds = (WeakView, StrongView, StrongView)
        weak, query, key = (
            kind.draw(self.generator, x_NCHW.shape, self.config.crop).apply(x_NCHW)
            for kind in kinds
        )
        return weak, query, key

    def adapt(self, x_NCHW: Tensor) -> Tensor:
        """Step down classification, contrast and (up) diversity; predict after the step."""
        assert self.teacher is not None
        weak_NCHW, query_NCHW, key_NCHW = self.views(x_NCHW)
        with network.moving_statistics(self.student), network.moving_statistics(self.teacher):
            with torch.no_grad():
                weak_ND, weak_NK = self.run_features(self.student, weak_NCHW)
            if self.queue is None:
                self.make_memory(weak_ND, weak_NK)
            label_N = self.pseudo_label(weak_ND, weak_NK)
            query_ND, query_NK = self.run_features(self.student, query_NCHW)
            self.move_teacher()
            with torch.no_grad():
                key_ND, _ = self.run_features(self.teacher, key_NCHW)
            loss = F.cross_entropy(query_NK, label_N) - diversity(query_NK)
            self.descend(loss + self.contrast(query_ND, key_ND, label_N))
            with torch.no_grad():
                remembered = self.run_features(self.teacher, weak_NCHW)
        self.enqueue(key_ND, label_N)
        self.remember(*remembered)
        with torch.no_grad():
            return self.infer(x_NCHW)

    @torch.no_grad()
    def pseudo_label(self, features_ND: Tensor, logits_NK: Tensor) -> Tensor:
        """Return the class that the nearest neighbours in the bank (cosine) make most likely."""
        filled = self.counters["bank_filled"]
        if self.counters["seen"] < self.config.refine_after or filled == 0:
            return logits_NK.argmax(1)
        similarity_NB = F.normalize(features_ND) @ F.normalize(self.bank[:filled]).T
        nearest_NJ = similarity_NB.topk(min(self.config.neighbours, filled), sorted=False).indices
        return self.bank_probabilities[nearest_NJ].mean(1).argmax(1)

    def contrast(self, query_ND: Tensor, key_ND: Tensor, label_N: Tensor) -> Tensor:
        """Contrast with the queue as it is, sparing the same class by its labels to be."""
        assert self.queue is not None
        label_M = self.queue_labels.clone()
        _write(label_M, label_N, self.counters["queue_next"])
        ignored_NM = label_N[:, None] == label_M
        return info_nce(query_ND, key_ND, self.queue, ignored_NM, self.config.temperature).mean()

    def enqueue(self, key_ND: Tensor, label_N: Tensor) -> None:
        """Put keys of unit length and their labels in the places of the oldest."""
        assert self.queue is not None
        start = self.counters["queue_next"]
        _write(self.queue, F.normalize(key_ND), start)
        self.counters["queue_next"] = _write(self.queue_labels, label_N, start)

    def remember(self, features_ND: Tensor, logits_NK: Tensor) -> None:
        """Write a batch into the bank, behind the last one until it is full, then as a ring."""
        filled, start = self.counters["bank_filled"], self.counters["bank_next"]
        into = start if filled == len(self.bank) else filled
        _write(self.bank_probabilities, logits_NK.softmax(1), into)
        _write(self.bank, features_ND, into)
        filled = min(len(self.bank), filled + len(features_ND))
        self.counters["bank_filled"] = filled
        self.counters["bank_next"] = (start + len(features_ND)) % filled
        self.counters["seen"] += len(features_ND)


def _write(ring: Tensor, rows: Tensor, start: int) -> int:
    """Write rows into a ring from a position on, and return the position behind them."""
    end = start + len(rows)
    rows = rows[-len(ring) :]
    ring[torch.arange(end - len(rows), end, device=ring.device) % len(ring)] = rows
    return end % len(ring)
