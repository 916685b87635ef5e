"""The contract every method keeps: predict and adapt, several updates, single images, state.

A method subclasses :class:`Adapter` and says what is its own: what it trains, how it adapts to a
batch. What methods share is here, once. The networks and the passes through them are in
:mod:`acclimate.networked`, saving and restoring in :mod:`acclimate.stateful`.

Shapes: N images, W images in the window, C channels, H rows, W columns, K classes.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from typing_extensions import Self

from acclimate import network
from acclimate.checks import check_images, check_labels
from acclimate.config import AdapterConfig, TeacherConfig, TrainingConfig
from acclimate.errors import InputError, ModelError, OptionError, StateError
from acclimate.losses import entropy
from acclimate.networked import Networked
from acclimate.optimizer import set_learning_rate
from acclimate.options import build
from acclimate.source import Batch, Source, SourceBatches

__all__ = ["Adapter", "Progress", "Report", "StepReport"]

C = TypeVar("C", bound=AdapterConfig)

Report = Callable[[str, int, int], None]
"""Tells how far preparation has come: the stage, the steps done and their total."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far ``prepare`` has come."""

    stage: str
    done: int
    total: int


@dataclasses.dataclass(frozen=True)
class StepReport:
    """What one update step did."""

    batch: int
    """Batches adapted to before this one."""
    update: int
    """Number of the step within the batch, from 0."""
    loss: float | None
    """The loss before the step; None if nothing was trained."""
    entropy: float
    """Mean entropy of the step's predictions, in nats."""
    update_norm: float
    """Euclidean norm of the step's change to the student's parameters."""


class Adapter(Networked, Generic[C]):
    """A classifier that adapts to the images it predicts."""

    name: ClassVar[str]
    """The method's name in the registry."""
    Config: ClassVar[type[AdapterConfig]] = AdapterConfig
    """The dataclass of the method's options."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cifar": {},
        "imagenet": {},
        "domainnet": {},
    }
    """The paper's options by kind of benchmark, where they differ from the defaults."""
    needs_source: bool = False
    """Whether ``prepare`` needs source data; of an instance, whether it does with its options."""

    config: C
    window_images: Tensor | None

    def __init__(self, model: nn.Module, config: C | None = None, **options: Any) -> None:
        """Copy ``model``; options are given as a config, by name, or as a config with changes."""
        super().__init__()
        self.config = build(self.Config, config, options)  # type: ignore[assignment]
        self.needs_source = self.uses_source()
        self.counters = {"batches": 0, "window_next": 0, "window_filled": 0}
        self.generator = torch.Generator().manual_seed(self.config.seed)
        self.replay: SourceBatches | None = None
        self.register_buffer("window_images", None)
        self._observers: OrderedDict[int, Callable[[StepReport], None]] = OrderedDict()
        self._loss: Tensor | None = None
        self._fingerprint: str | None = None
        if not isinstance(model, nn.Module):
            raise ModelError(f"The model must be an nn.Module. Got {type(model).__name__} instead.")
        if next(model.parameters(), None) is None:
            raise ModelError(f"The model {type(model).__name__} has no parameters to work with.")
        with torch.inference_mode(False), torch.enable_grad():
            self._build_networks(model)
            self._prepared = None if self.needs_source else self._capture()

    # --- What a method overrides ------------------------------------------------------------

    def uses_source(self) -> bool:
        """Whether ``prepare`` needs source data with these options."""
        return bool(type(self).needs_source)

    def learn_source(self, source: Source, report: Report) -> None:
        """Learn from source data what the method needs."""

    def attach_source(self, source: Source) -> None:
        """Keep source data for replay, in batches as large as the test's."""
        assert isinstance(self.config, TrainingConfig)
        size = self.config.window or self.config.batch_size
        self.replay = self.checked_replay(SourceBatches(source, size, self.config.seed))

    def checked_replay(self, batches: SourceBatches) -> SourceBatches:
        """Return batches for replay after a look at the first, while it can still be refused."""
        self.take_source(batches.next())
        batches.position = 0
        return batches

    def begin(self, x_NCHW: Tensor) -> None:
        """Do what is done once for a batch, before its update steps."""

    def adapt(self, x_NCHW: Tensor) -> Tensor:
        """Make one update step on a batch and return its logits; called with gradients on."""
        with torch.no_grad():
            return self.infer(x_NCHW)

    def predictors(self) -> list[nn.Module]:
        """The networks whose summed logits are the prediction."""
        return [self.student]

    def changes_last(self) -> bool:
        """Whether a step changes nothing before all that can fail in it is done.

        If not, the state is copied before every batch, so that a batch that fails leaves no trace.
        """
        return False

    # --- What everybody calls ---------------------------------------------------------------

    @classmethod
    def preset(cls, name: str, **options: Any) -> C:
        """Return the paper's options for a kind of benchmark, with changes."""
        if name not in cls.presets:
            raise OptionError(
                f"{cls.__name__} has no preset {name!r}. Its presets are: {', '.join(cls.presets)}."
            )
        options = {**cls.presets[name], **options}
        return build(cls.Config, None, options)  # type: ignore[return-value]

    def prepare(
        self,
        source: Source | None = None,
        *,
        progress: Callable[[Progress], None] | None = None,
    ) -> Self:
        """Learn from labelled source data, once, before adapting.

        Args:
            source: see :data:`acclimate.source.Source`; methods that need none ignore it.
            progress: called with each :class:`Progress`.

        Returns:
            The adapter itself.
        """
        if not self.needs_source:
            return self
        if self._prepared is not None:
            raise StateError(
                f"This {type(self).__name__} is prepared already. reset() returns to that state; "
                "build a new adapter to prepare anew."
            )
        if source is None:
            raise InputError(f"{type(self).__name__}.prepare needs labelled source data.")

        def report(stage: str, done: int, total: int) -> None:
            if progress is not None:
                progress(Progress(stage, done, total))

        with self._working():
            before = self._capture()
            try:
                self.learn_source(source, report)
                if self.needs_replay():
                    self.attach_source(source)
            except BaseException:
                self._write(before)
                self._drop_gradients()
                raise
            self._prepared = self._capture()
        return self

    def forward(self, x_NCHW: Tensor) -> Tensor:
        """Predict a batch, adapt to it and return its logits (N, K)."""
        reports: list[StepReport] = []
        with self._working():
            x_NCHW = self._accept(x_NCHW)
            put_back = self._remember(len(x_NCHW))
            try:
                if self.config.window is None:
                    logits_NK = self._adapt_to(x_NCHW, reports)
                else:
                    rows = [self._slide(row, reports) for row in x_NCHW.split(1)]
                    logits_NK = torch.cat(rows)
            except BaseException:
                put_back()
                self._drop_gradients()
                raise
        # Only now, with the state whole: what an observer raises is the caller's.
        for step in reports:
            for observer in tuple(self._observers.values()):
                observer(step)
        return logits_NK

    def predict(self, x_NCHW: Tensor) -> Tensor:
        """Predict without adapting; with a window, each image beside the last ones."""
        with self._working(), torch.no_grad():
            x_NCHW = self._accept(x_NCHW)
            if self.config.window is None:
                return self.infer(x_NCHW)
            return torch.cat([self._look(row)[0] for row in x_NCHW.split(1)])

    def export(self) -> nn.Module:
        """Return a plain module, sharing nothing, that predicts as ``predict`` does on batches.

        It is a copy of the caller's class with the adapted weights, or a
        :class:`~acclimate.network.LogitSum` of copies where a method predicts with several
        networks. Layers that normalise with batch statistics keep doing so.
        """
        self._require_prepared()
        with torch.inference_mode(False):
            copies = [network.plain_copy(one) for one in self.predictors()]
        return copies[0] if len(copies) == 1 else network.LogitSum(*copies).eval()

    def observe(self, observer: Callable[[StepReport], None]) -> RemovableHandle:
        """Call ``observer`` with a report of every update step, until the handle's ``remove``."""
        handle = RemovableHandle(self._observers)
        self._observers[handle.id] = observer
        return handle

    def train(self, mode: bool = True) -> Self:
        """Do nothing: the networks' modes belong to the method, not to the caller."""
        return self

    # --- What methods call ------------------------------------------------------------------

    def infer(self, x_NCHW: Tensor) -> Tensor:
        """Return the prediction of the networks as they are."""
        logits_NK, *others = [self.run(net, x_NCHW) for net in self.predictors()]
        for other_NK in others:
            logits_NK = logits_NK + other_NK
        return logits_NK

    def accumulate(self, loss: Tensor) -> None:
        """Add the gradient of a part of the loss, and free its graph before the next is built."""
        loss.backward()
        self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()

    def update(self, loss: Tensor) -> None:
        """Step the student down the gradient of ``loss``, then move the teacher."""
        self.descend(loss)
        if isinstance(self.config, TeacherConfig):
            self.move_teacher()

    def descend(self, loss: Tensor) -> None:
        """Step the student down the gradient of ``loss``, and leave the teacher as it is."""
        assert self.optimizer is not None
        self.accumulate(loss)
        self.optimizer.step()
        self._drop_gradients()

    def move_teacher(self) -> None:
        """Average the teacher's weights with the student's."""
        assert isinstance(self.config, TeacherConfig)
        student = list(self.trained.values())
        network.update_teacher(self._averaged, student, self.config.momentum)

    def restore_weights(self, probability: float) -> None:
        """Give each trained weight its source value back with a probability, on its own."""
        weights: list[Tensor] = list(self.trained.values())
        network.restore_at_random(weights, self._source, probability, self.generator)

    def replayed(self) -> list[Batch]:
        """Take a batch of source data for each update step, if they are replayed.

        To be called in ``begin``, so that a faulty batch fails before anything has changed.
        """
        if self.replay is None:
            return []
        assert isinstance(self.config, TrainingConfig)
        return [self.take_source(self.replay.next()) for _ in range(self.config.updates)]

    def take_source(self, batch: Batch) -> Batch:
        """Check a batch of source data and bring it to the networks' device and type."""
        images, labels = batch
        x_NCHW = self._placed(check_images(images, "Source images"))
        self._meet(x_NCHW)
        assert self.classes_ is not None
        y_N = check_labels(labels, x_NCHW, self.classes_)
        return x_NCHW, y_N.to(x_NCHW.device)

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate of all parameters."""
        assert self.optimizer is not None
        set_learning_rate(self.optimizer, lr)

    # --- The loop ---------------------------------------------------------------------------

    def _remember(self, images: int) -> Callable[[], None]:
        """Return what puts the state back if adapting to so many images fails."""
        window = self.config.window
        rounds = 1 if window is None else (self.counters["window_next"] + images) // window
        updates = self.config.updates if isinstance(self.config, TrainingConfig) else 1
        single = rounds * updates == 1 and (window is None or images == 1)
        if rounds > 0 and not (single and self.changes_last()):
            before = self._capture()
            return lambda: self._write(before)
        counters, generator = self._counters(), self.generator.get_state()
        window_images = self.window_images

        def put_back() -> None:
            self._set_counters(counters)
            self.generator.set_state(generator)
            self.window_images = window_images

        return put_back

    def _adapt_to(self, x_NCHW: Tensor, reports: list[StepReport]) -> Tensor:
        self.begin(x_NCHW)
        updates = self.config.updates if isinstance(self.config, TrainingConfig) else 1
        for update in range(updates):
            self._loss = None
            weights = [weight.detach() for weight in self.trained.values()]
            before = [weight.clone() for weight in weights] if self._observers else []
            with torch.enable_grad():
                logits_NK = self.adapt(x_NCHW).detach()
            if self._observers:
                loss = None if self._loss is None else self._loss.item()
                certainty = entropy(logits_NK).mean().item()
                batch = self.counters["batches"]
                norm = _norm_of_change(before, weights)
                reports.append(StepReport(batch, update, loss, certainty, norm))
        self.counters["batches"] += 1
        return logits_NK

    def _slide(self, x_1CHW: Tensor, reports: list[StepReport]) -> Tensor:
        """Add one image to the window; predict it, and adapt when the window has gone round."""
        assert self.config.window is not None
        position = self.counters["window_next"]
        if position < self.config.window - 1:
            with torch.no_grad():
                logits_1K, window_WCHW = self._look(x_1CHW)
        else:
            window_WCHW = self._window_with(x_1CHW)
            logits_1K = self._adapt_to(window_WCHW, reports)[position : position + 1]
        self.window_images = window_WCHW
        self.counters["window_next"] = (position + 1) % self.config.window
        self.counters["window_filled"] = max(self.counters["window_filled"], position + 1)
        return logits_1K

    def _look(self, x_1CHW: Tensor) -> tuple[Tensor, Tensor]:
        """Predict one image beside the last ones; return its logits and the window with it."""
        window_WCHW = self._window_with(x_1CHW)
        if not network.batch_norms(self.student):
            return self.infer(x_1CHW), window_WCHW
        position = self.counters["window_next"]
        filled = max(self.counters["window_filled"], position + 1)
        return self.infer(window_WCHW[:filled])[position : position + 1], window_WCHW

    def _window_with(self, x_1CHW: Tensor) -> Tensor:
        """Return a copy of the window with the image in the oldest one's place."""
        assert self.config.window is not None
        if self.window_images is None:
            window_WCHW = x_1CHW.new_zeros(self.config.window, *x_1CHW.shape[1:])
        elif self.window_images.shape[1:] == x_1CHW.shape[1:]:
            window_WCHW = self.window_images.clone()
        else:
            raise InputError(
                f"The window holds images of the shape {tuple(self.window_images.shape[1:])}. "
                f"Got {tuple(x_1CHW.shape[1:])} instead. Use an adapter for each size."
            )
        window_WCHW[self.counters["window_next"]] = x_1CHW[0]
        return window_WCHW


def _norm_of_change(before: list[Tensor], after: list[Tensor]) -> float:
    if not before:
        return 0.0
    change = torch._foreach_sub(after, before)
    return float(torch.stack(torch._foreach_norm(change)).norm())
