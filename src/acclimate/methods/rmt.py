"""RMT: a mean teacher with symmetric cross-entropy, contrastive learning and source replay.

Idea: a symmetric loss makes self-training robust, contrastive learning pulls test features to
the source prototypes, warm-up gives the teacher a head start, and replay keeps what was known.

Döbler et al., "Robust mean teacher for continual and gradual test-time adaptation" (CVPR 2023):
self-training eq. 6, contrastive loss eq. 7, replay eq. 8, total eq. 9, rows A to E of Table 5.

Differs from the official code: source images are shuffled by the adapter's seed, an epoch's last
partial batch is dropped, and with a window the learning rate is scaled as the paper says.
Cost per batch and update: 2 forward and backward, 1 forward; with replay one more of the first.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from acclimate.adapter import Adapter, Report
from acclimate.augment import augment
from acclimate.config import TeacherConfig
from acclimate.errors import InputError
from acclimate.losses import contrastive, symmetric_cross_entropy
from acclimate.methods.mean_teacher import warm_up
from acclimate.options import option
from acclimate.source import Source, SourceBatches

__all__ = ["RMT", "RMTConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RMTConfig(TeacherConfig):
    """Options of RMT; the defaults are the paper's source-free variant for CIFAR10-C."""

    augmented: bool = option(True)
    """A: whether self-training also compares the student's view of augmented images."""
    ensemble: bool = option(True)
    """B: whether student and teacher predict together, or the teacher alone."""
    lambda_cl: float = option(1.0, minimum=0)
    """C: weight of the contrastive loss."""
    warmup_samples: int = option(50_000, minimum=0)
    """D: source images seen in warm-up."""
    lambda_ce: float = option(0.0, minimum=0)
    """E: weight of source replay; the paper's variant with replay uses 1."""
    source_share: float = option(1.0, minimum=0, maximum=1)
    """Part of the source data kept for replay."""
    temperature: float = option(0.1, above=0)
    """Temperature of the contrastive loss."""
    projector: bool = option(True)
    """Whether the contrastive loss sees projected features or the features themselves."""
    prototype_samples: int = option(100_000, minimum=1)
    """At most so many source images make the prototypes."""


class RMT(Adapter[RMTConfig]):
    """Robust mean teacher."""

    name = "rmt"
    Config = RMTConfig
    needs_source = True
    needs_features = True
    trains = "all"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar": {},
        "imagenet": {"optimizer": "sgd", "lr": 0.01, "batch_size": 64},
        "domainnet": {"optimizer": "sgd", "lr": 0.01, "batch_size": 128, "projector": False},
    }

    projector: nn.Module | None
    prototypes: Tensor | None

    def uses_source(self) -> bool:
        """Whether there are prototypes, warm-up or replay."""
        return self.config.lambda_cl > 0 or self.config.warmup_samples > 0 or self.needs_replay()

    def needs_replay(self) -> bool:
        """Whether labelled source batches are trained on while adapting."""
        return self.config.lambda_ce > 0 and self.config.source_share > 0

    def configure(self, student: nn.Module) -> None:
        """Use batch statistics; prototypes come with ``prepare``."""
        super().configure(student)
        self.needs_features = self.config.lambda_cl > 0
        self.register_buffer("prototypes", None)
        self.projector = None

    def predictors(self) -> list[nn.Module]:
        """Student and teacher predict, or the teacher alone."""
        assert self.teacher is not None
        return [self.student, self.teacher] if self.config.ensemble else [self.teacher]

    # --- Before deployment ------------------------------------------------------------------

    def learn_source(self, source: Source, report: Report) -> None:
        """Average the source's features class by class, then warm up."""
        if self.config.lambda_cl > 0:
            prototypes_KD = self.average_features(source, report)
        warm_up(self, source, self.config.warmup_samples, report)
        if self.config.lambda_cl > 0:
            self.prototypes = prototypes_KD
            self.make_projector(prototypes_KD.shape[1])

    @torch.no_grad()
    def average_features(self, source: Source, report: Report) -> Tensor:
        """Return the mean feature of every class, the prototypes (K, D)."""
        batches = SourceBatches(source, self.config.batch_size, self.config.seed)
        total = min(len(batches), self.config.prototype_samples)
        sums_KD, counts_K, done = torch.empty(0), torch.empty(0), 0
        for batch in batches.once(self.config.prototype_samples):
            x_NCHW, y_N = self.take_source(batch)
            features_ND, logits_NK = self.run_features(self.student, x_NCHW)
            if done == 0:
                sums_KD = features_ND.new_zeros(logits_NK.shape[1], features_ND.shape[1])
                counts_K = features_ND.new_zeros(logits_NK.shape[1])
            sums_KD.index_add_(0, y_N, features_ND)
            counts_K += y_N.bincount(minlength=len(counts_K))
            done += len(x_NCHW)
            report("prototypes", done, max(total, done))
        absent = (counts_K == 0).nonzero().flatten().tolist()
        if absent:
            raise InputError(
                "Every class needs a source image for its prototype. Got none of the classes "
                f"{absent[:10]}{' and more' if len(absent) > 10 else ''} among {done} images."
            )
        return sums_KD / counts_K[:, None]

    def make_projector(self, dimensions: int) -> None:
        """Make the projector of the contrastive loss, initialised as PyTorch's layers are."""
        if not self.config.projector:
            return
        layers = [nn.utils.skip_init(nn.Linear, size, 128) for size in (dimensions, 128)]
        for layer in layers:
            bound = 1 / math.sqrt(layer.in_features)
            for parameter in layer.parameters():
                nn.init.uniform_(parameter, -bound, bound, generator=self.generator)
        like = next(self.student.parameters())
        self.projector = nn.Sequential(layers[0], nn.ReLU(), layers[1]).to(like.device, like.dtype)
        assert self.optimizer is not None
        del self.optimizer.param_groups[1:]
        self.optimizer.add_param_group({"params": list(self.projector.parameters())})

    def allocate(self, tensors: Mapping[str, Tensor]) -> None:
        """Make a projector for the prototypes of a saved state."""
        if self.config.lambda_cl > 0 and self.projector is None:
            self.make_projector(tensors["prototypes"].shape[1])

    def attach_source(self, source: Source) -> None:
        """Keep a share of the source data for replay, in batches as large as the test's."""
        size = self.config.window or self.config.batch_size
        share = self.config.source_share
        self.replay = self.checked_replay(SourceBatches(source, size, self.config.seed, share))

    # --- Adaptation -------------------------------------------------------------------------

    def begin(self, x_NCHW: Tensor) -> None:
        """Take the batches to replay, so that a faulty one fails before anything has changed."""
        self.source_batches = self.replayed()

    def augment(self, x_NCHW: Tensor) -> Tensor:
        """Return the augmented view of a batch."""
        return augment(x_NCHW, self.generator)

    def changes_last(self) -> bool:
        """The update is the only change."""
        return True

    def adapt(self, x_NCHW: Tensor) -> Tensor:
        """Predict a batch, and step the student down the total loss (eq. 9)."""
        assert self.teacher is not None
        config = self.config
        if self.source_batches:
            x_source_NCHW, y_N = self.source_batches.pop(0)
            source_NK = self.run(self.student, x_source_NCHW)
            self.accumulate(config.lambda_ce * F.cross_entropy(source_NK, y_N))
        with torch.no_grad():
            teacher_NK = self.run(self.teacher, x_NCHW)
        features_ND, student_NK = self.look(x_NCHW)
        if config.augmented or config.lambda_cl > 0:
            features_aug_ND, augmented_NK = self.look(self.augment(x_NCHW))
        if config.augmented:
            loss = symmetric_cross_entropy(student_NK, teacher_NK).mean() / 4
            loss = loss + symmetric_cross_entropy(augmented_NK, teacher_NK).mean() / 4
        else:
            loss = symmetric_cross_entropy(student_NK, teacher_NK).mean() / 2
        if features_ND is not None and features_aug_ND is not None:
            loss = loss + config.lambda_cl * self.contrast(features_ND, features_aug_ND)
        self.update(loss)
        return student_NK.detach() + teacher_NK if config.ensemble else teacher_NK

    def look(self, x_NCHW: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return the student's features, if they are contrasted, and its logits."""
        if self.config.lambda_cl > 0:
            return self.run_features(self.student, x_NCHW)
        return None, self.run(self.student, x_NCHW)

    def contrast(self, features_ND: Tensor, augmented_ND: Tensor) -> Tensor:
        """Contrastive loss of both views and the nearest prototype by cosine (section 3.2)."""
        assert self.prototypes is not None
        with torch.no_grad():
            similarity_NK = F.normalize(features_ND) @ F.normalize(self.prototypes).T
            nearest_ND = self.prototypes[similarity_NK.argmax(1)]
        views_NVD = torch.stack([nearest_ND, features_ND, augmented_ND], dim=1)
        if self.projector is not None:
            dtype = next(self.projector.parameters()).dtype
            views_NVD = self.projector(views_NVD.to(dtype))
        return contrastive(views_NVD, self.config.temperature).mean()
