"""The networks of an adapter: copies of the caller's model, and how batches go through them.

Shapes: N images, C channels, H rows, W columns, D features, K classes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import Self

from acclimate import network
from acclimate.checks import check_images
from acclimate.config import TeacherConfig, TrainingConfig
from acclimate.errors import InputError, ModelError
from acclimate.optimizer import follow_layout, make_optimizer
from acclimate.stateful import Stateful

__all__ = ["Networked"]


class Networked(Stateful):
    """Student, teacher and anchor: built, laid out in memory, and given images."""

    needs_features: bool = False
    """Whether the method reads features, and so needs the model's head."""
    trains: ClassVar[Literal["all", "norm", "nothing"]] = "nothing"
    """Which of the student's weights and biases are trained."""
    keeps_anchor: ClassVar[bool] = False
    """Whether the method looks back at the source model: a frozen copy, ``self.anchor``."""
    changes_statistics: bool = False
    """Whether the networks' buffers are among what adapting changes."""

    def __init__(self) -> None:
        """Begin without networks."""
        super().__init__()
        self.head_: str | None = None
        self.classes_: int | None = None
        self._known_shapes: set[tuple[int, ...]] = set()
        self._autocast: torch.dtype | None = None

    # --- What a method may override ---------------------------------------------------------

    def configure(self, student: nn.Module) -> None:
        """Change how the copy of the model works; by default it uses batch statistics."""
        network.use_batch_statistics(student)

    def trainable(self, student: nn.Module) -> dict[str, nn.Parameter]:
        """The parameters to train by name; by default those that ``trains`` tells."""
        find = network.norm_parameters if self.trains == "norm" else network.weights_and_biases
        return find(student)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Groups of ``self.trained`` for the optimizer, with a ``factor`` on the learning rate."""
        return [{"params": list(self.trained.values())}]

    @property
    def learning_rate(self) -> float:
        """The learning rate of adaptation: scaled to the window, if there is one."""
        assert isinstance(self.config, TrainingConfig)
        window = self.config.window
        return self.config.lr * (1.0 if window is None else window / self.config.batch_size)

    # --- Forward passes ---------------------------------------------------------------------

    def run(self, net: nn.Module, x_NCHW: Tensor) -> Tensor:
        """Forward a batch through one of the networks and return logits in full precision."""
        with self._forwarding(net, x_NCHW):
            logits_NK: Tensor = net(self._laid_out(x_NCHW))
        return _full(logits_NK)

    def run_features(self, net: nn.Module, x_NCHW: Tensor) -> tuple[Tensor, Tensor]:
        """Forward a batch and return features (N, D) and logits in full precision."""
        assert self.head_ is not None
        with self._forwarding(net, x_NCHW):
            x_NCHW = self._laid_out(x_NCHW)
            features_ND, logits_NK = network.features_and_logits(net, self.head_, x_NCHW)
        return _full(features_ND), _full(logits_NK)

    # --- Images in --------------------------------------------------------------------------

    def _accept(self, images: Tensor) -> Tensor:
        """Check a batch of test images; nothing has changed if this raises."""
        self._require_prepared()
        device = next(self.student.parameters()).device
        if isinstance(images, Tensor) and images.device != device:
            raise InputError(
                f"Images must be on the model's device, {device}. Got {images.device} instead. "
                "Move them with images.to(device)."
            )
        x_NCHW = self._placed(check_images(images, "Images"))
        self._meet(x_NCHW)
        return x_NCHW

    def _placed(self, images: Tensor) -> Tensor:
        """The images on the networks' device, of their type, and free to enter a graph."""
        parameter = next(self.student.parameters())
        x_NCHW = images.detach().to(parameter.device, parameter.dtype)
        # A tensor made in inference mode cannot be saved for a backward pass; its copy can.
        return x_NCHW.clone() if x_NCHW.is_inference() else x_NCHW

    @torch.no_grad()
    def _meet(self, x_NCHW: Tensor) -> None:
        """Try a few images of a new shape: does the model take them, and where is its head?"""
        shape = tuple(x_NCHW.shape[1:])
        if shape in self._known_shapes:
            return
        few = x_NCHW[:4]
        known = next(iter(self._known_shapes), shape)
        if known[0] != shape[0]:
            raise InputError(f"Images must have {known[0]} channels, as before. Got {shape[0]}.")
        if len(few) == 1:
            few = few.expand(2, -1, -1, -1)  # as BatchNorm has no use for a single value
        try:
            logits_NK = network.probe(self.student, self._laid_out(few))
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # A model that calls view() on its feature maps may need them contiguous.
            layout = self._layout
            self._set_layout(torch.contiguous_format)
            try:
                logits_NK = network.probe(self.student, self._laid_out(few))
            except RuntimeError:
                self._set_layout(layout)
                raise InputError(
                    f"The model {type(self.student).__name__} cannot take images of the shape "
                    f"{shape}: {error}"
                ) from error
        if self.head_ is None and self.needs_features:
            self.head_ = network.find_head(self.student, self._laid_out(few), self.config.head)
        self.classes_ = logits_NK.shape[1]
        self._known_shapes.add(shape)

    # --- Networks ---------------------------------------------------------------------------

    def _build_networks(self, model: nn.Module) -> None:
        self.student = network.copy_network(model).requires_grad_(False).eval()
        self.configure(self.student)
        teaches = isinstance(self.config, TeacherConfig)
        self.teacher = network.copy_network(self.student) if teaches else None
        self.anchor = network.copy_network(self.student) if self.keeps_anchor else None
        self.trained: dict[str, nn.Parameter] = {}
        if self.trains != "nothing":
            self.trained = self.trainable(self.student)
            if not self.trained:
                kind = "normalisation layers" if self.trains == "norm" else "layers"
                raise ModelError(
                    f"{type(self).__name__} trains the weights and biases of {kind}. "
                    f"The model {type(model).__name__} has none."
                )
        self.changing = set(self.trained)
        if self.changes_statistics:
            self.changing.update(name for name, _ in self.student.named_buffers())
        self._averaged, self._source = map(self._counterparts, (self.teacher, self.anchor))
        self.optimizer: Optimizer | None = None
        if isinstance(self.config, TrainingConfig):
            for parameter in self.trained.values():
                parameter.requires_grad_(True)
            groups = self.parameter_groups()
            self.optimizer = make_optimizer(groups, self.config, self.learning_rate)
        self._layout = torch.contiguous_format
        if self.config.channels_last and network.takes_channels_last(self.student):
            self._set_layout(torch.channels_last)

    def _counterparts(self, net: nn.Module | None) -> list[Tensor]:
        """The parameters of another network that stand where the student's trained ones do."""
        if net is None:
            return []
        named = dict(net.named_parameters(remove_duplicate=False))
        return [named[name] for name in self.trained]

    def _drop_gradients(self) -> None:
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)

    def _set_layout(self, layout: torch.memory_format) -> None:
        self._layout = layout
        for net in (self.student, self.teacher, self.anchor):
            if net is not None:
                net.to(memory_format=layout)  # type: ignore[call-overload]
        if self.optimizer is not None:
            follow_layout(self.optimizer)

    def _laid_out(self, x_NCHW: Tensor) -> Tensor:
        """A copy in the networks' memory layout, which a model may normalise in place."""
        return x_NCHW.clone(memory_format=self._layout)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move what the optimizer holds along with the networks: ``to``, ``cuda``, ``double``."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._fingerprint = None
        if self.optimizer is not None:
            for quantities in self.optimizer.state.values():
                for key, value in quantities.items():
                    quantities[key] = fn(value) if isinstance(value, Tensor) else value
        return self

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Leave the caller's inference mode and autocast; remember the latter for the networks."""
        device = next(self.student.parameters()).device.type
        if self.config.precision is not None:
            self._autocast = torch.bfloat16 if self.config.precision == "bf16" else None
        elif torch.is_autocast_enabled(device):
            self._autocast = torch.get_autocast_dtype(device)
        else:
            self._autocast = None
        with torch.inference_mode(False), torch.autocast(device, enabled=False):
            yield

    @contextmanager
    def _forwarding(self, net: nn.Module, x_NCHW: Tensor) -> Iterator[None]:
        """Choose the precision of a forward pass, and the statistics of a single image."""
        enabled = self._autocast is not None
        few = network.single_image(net) if len(x_NCHW) == 1 else nullcontext()
        # Without the cache: it would outlive the weights that the optimizer changes.
        with few, torch.autocast(x_NCHW.device.type, self._autocast, enabled, cache_enabled=False):
            yield


def _full(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
