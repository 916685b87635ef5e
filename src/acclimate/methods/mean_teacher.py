"""Mean teacher: follow the predictions of an average of one's own weights.

Idea: the average over many steps predicts better than the last one, so it makes the better
pseudo-label; symmetric cross-entropy keeps the gradients of confident and of unsure samples in
balance where cross-entropy does not.

Döbler et al., "Robust mean teacher for continual and gradual test-time adaptation" (CVPR 2023),
section 3.1: MT(CE) uses eq. 1, MT(SCE) half of eq. 3; the rows "MT" and "+ warm-up" of Table 5.

The official code has no such rows; they follow RMT with everything else switched off. Under
cross-entropy a student equal to its teacher has no gradient, and Adam turns the rounding noise
into its first steps. Cost per batch and update: 1 forward and backward, 1 forward.
"""

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from acclimate.adapter import Adapter, Report
from acclimate.config import TeacherConfig
from acclimate.losses import cross_entropy, symmetric_cross_entropy
from acclimate.options import option
from acclimate.source import Source, SourceBatches

__all__ = ["MeanTeacher", "MeanTeacherConfig", "warm_up"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanTeacherConfig(TeacherConfig):
    """Options of the mean teacher; the defaults are the paper's for CIFAR10-C and CIFAR100-C."""

    loss: str = option("sce", choices=("ce", "sce"))
    """Cross-entropy or symmetric cross-entropy with the teacher."""
    warmup_samples: int = option(0, minimum=0)
    """Source images seen in warm-up; the paper's row takes 50,000."""


class MeanTeacher(Adapter[MeanTeacherConfig]):
    """Train a student on the predictions of its averaged teacher, which predicts."""

    name = "mean-teacher"
    Config = MeanTeacherConfig
    trains = "all"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar": {},
        "imagenet": {"optimizer": "sgd", "lr": 0.01, "batch_size": 64},
        "domainnet": {"optimizer": "sgd", "lr": 0.01, "batch_size": 128},
    }

    def uses_source(self) -> bool:
        """Whether there is a warm-up."""
        return self.config.warmup_samples > 0

    def predictors(self) -> list[nn.Module]:
        """The teacher predicts."""
        assert self.teacher is not None
        return [self.teacher]

    def learn_source(self, source: Source, report: Report) -> None:
        """Warm up."""
        warm_up(self, source, self.config.warmup_samples, report)

    def changes_last(self) -> bool:
        """The update is the only change."""
        return True

    def adapt(self, x_NCHW: Tensor) -> Tensor:
        """Predict a batch with the teacher and step the student towards that prediction."""
        assert self.teacher is not None
        with torch.no_grad():
            teacher_NK = self.run(self.teacher, x_NCHW)
        student_NK = self.run(self.student, x_NCHW)
        if self.config.loss == "ce":
            loss = cross_entropy(student_NK, teacher_NK).mean()
        else:
            loss = symmetric_cross_entropy(student_NK, teacher_NK).mean() / 2
        self.update(loss)
        return teacher_NK


def warm_up(adapter: Adapter[Any], source: Source, samples: int, report: Report) -> None:
    """Let teacher and student drift apart on source images before adapting (section 3.1).

    MT(SCE) on unlabelled, unaugmented source images for one pass over ``samples`` of them, while
    the learning rate rises linearly to its value. The optimizer's state is kept.
    """
    config: TeacherConfig = adapter.config
    assert adapter.teacher is not None
    steps = max(1, samples // config.batch_size) if samples else 0
    batches = SourceBatches(source, config.batch_size, config.seed)
    try:
        for step in range(steps):
            x_NCHW, _ = adapter.take_source(batches.next())
            adapter.set_learning_rate(config.lr * (step + 1) / steps)
            with torch.no_grad():
                teacher_NK = adapter.run(adapter.teacher, x_NCHW)
            with torch.enable_grad():
                student_NK = adapter.run(adapter.student, x_NCHW)
                adapter.update(symmetric_cross_entropy(student_NK, teacher_NK).mean() / 2)
            report("warm-up", step + 1, steps)
    finally:
        adapter.set_learning_rate(adapter.learning_rate)
