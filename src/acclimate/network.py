"""What is done to a network: copying, batch statistics, parameters, head, features, teacher.

Everything works on any classifier, a module that maps images (N, C, H, W) to logits (N, K),
without knowing its architecture. Functions that change a network are only ever given a copy.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.optim.swa_utils import get_ema_multi_avg_fn

from acclimate.errors import InputError, ModelError
from acclimate.generators import generator_on

__all__ = [
    "LogitSum",
    "MixedStatistics",
    "Normalized",
    "batch_norms",
    "copy_network",
    "features_and_logits",
    "find_head",
    "moving_statistics",
    "norm_parameters",
    "parameters_of_last_layers",
    "plain_copy",
    "probe",
    "restore_at_random",
    "single_image",
    "takes_channels_last",
    "update_teacher",
    "use_batch_statistics",
    "weights_and_biases",
]


class Normalized(nn.Module):
    """A model that normalises its images first, so that it can be given pixels in [0, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        model: nn.Module,
        mean: tuple[float, ...] = (0.485, 0.456, 0.406),
        std: tuple[float, ...] = (0.229, 0.224, 0.225),
    ) -> None:
        """Wrap ``model``; one mean and std per channel, ImageNet's unless told."""
        super().__init__()
        if len(mean) != len(std) or not all(value > 0 for value in std):
            raise ModelError(
                "Normalized needs one mean and one std above 0 for each channel. "
                f"Got mean={mean!r}, std={std!r} instead."
            )
        self.model = model
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))

    def forward(self, x_NCHW: Tensor) -> Tensor:
        """Return the model's logits of the normalised images."""
        if x_NCHW.shape[1] != self.mean.shape[1]:
            raise InputError(
                f"This model normalises {self.mean.shape[1]} channels. "
                f"Got images with {x_NCHW.shape[1]}."
            )
        logits: Tensor = self.model((x_NCHW - self.mean) / self.std)
        return logits


class LogitSum(nn.Module):
    """The ensemble prediction of RMT: the sum of several networks' logits."""

    def __init__(self, *networks: nn.Module) -> None:
        """Hold the networks."""
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        """Return the summed logits."""
        return torch.stack([network(x_NCHW) for network in self.networks]).sum(0)


def copy_network(model: nn.Module) -> nn.Module:
    """Return a deep copy that shares nothing with ``model``."""
    # Tensors computed by hooks (old-style weight normalisation) are no leaves, which deepcopy
    # refuses; the hooks compute them anew at the first forward pass of the copy.
    computed: dict[int, Any] = {
        id(value): value.detach().clone()
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }
    try:
        return copy.deepcopy(model, computed)
    except (TypeError, RuntimeError) as error:
        raise ModelError(
            f"An adapter works on its own copy, and {type(model).__name__} cannot be copied: "
            f"{error}."
        ) from error


def batch_norms(network: nn.Module) -> list[_BatchNorm]:
    """Return the network's BatchNorm layers."""
    return [module for module in network.modules() if isinstance(module, _BatchNorm)]


def takes_channels_last(network: nn.Module) -> bool:
    """Whether channels-last memory is worth while: there are convolutions, and no GroupNorm.

    PyTorch's GroupNorm in channels-last memory crashes on CPU in the backward pass where only its
    weight and bias need a gradient, as TENT asks for (seen in 2.4.1 and 2.13.0).
    """
    modules = list(network.modules())
    return any(isinstance(module, nn.Conv2d) for module in modules) and not any(
        isinstance(module, nn.GroupNorm) for module in modules
    )


def norm_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights and biases of normalisation layers by name, TENT's parameters."""
    kinds = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
    return weights_and_biases(network, kinds)


def weights_and_biases(
    network: nn.Module, kinds: tuple[type[nn.Module], ...] = (nn.Module,)
) -> dict[str, nn.Parameter]:
    """Return every module's own ``weight`` and ``bias`` by name.

    Class tokens, position embeddings, layer scales and the parts of a weight-normalised weight
    have other names and stay fixed, as in the official implementation.
    """
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for prefix, module in network.named_modules():
        if not isinstance(module, kinds):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if name in ("weight", "bias") and id(parameter) not in seen:
                seen.add(id(parameter))
                found[f"{prefix}.{name}" if prefix else name] = parameter
    return found


def parameters_of_last_layers(network: nn.Module, count: int) -> list[nn.Parameter]:
    """Return the parameters of the last layers that own any, in the model's own order of modules.

    Layers that a pre-trained backbone was given for its task come last in every common model.
    """
    owners = [m for m in network.modules() if next(m.parameters(recurse=False), None) is not None]
    return [
        p
        for owner in owners[max(0, len(owners) - count) :]
        for p in owner.parameters(recurse=False)
    ]


# --- Batch statistics ---------------------------------------------------------------------------


def use_batch_statistics(network: nn.Module) -> None:
    """Let BatchNorm layers normalise with the statistics of the batch they are given.

    Running statistics are neither read nor written, except as :func:`single_image` says.
    """
    for layer in batch_norms(network):
        layer.track_running_stats = False
        layer.training = True  # of the layer alone: train() would reach a dropout within it


@contextmanager
def single_image(network: nn.Module) -> Iterator[None]:
    """Let layers that meet a single value per channel, which has no variance, use the source's.

    After pooling, a single image has one value per channel. With two images or more no layer
    meets one, so forward passes of a batch need no such care. A layer that has no statistics from
    the source only scales and shifts such a value.
    """
    without = [layer for layer in batch_norms(network) if layer.running_mean is None]
    for layer in without:
        like = next(network.parameters())
        layer.running_mean = like.new_zeros(layer.num_features)
        layer.running_var = like.new_ones(layer.num_features)
    layers = [layer for layer in batch_norms(network) if layer.training or layer in without]
    modes = [layer.training for layer in layers]
    hooks = [layer.register_forward_pre_hook(_choose_statistics) for layer in layers]
    try:
        yield
    finally:
        for layer, hook, mode in zip(layers, hooks, modes, strict=True):
            hook.remove()
            layer.training = mode
        for layer in without:
            layer.running_mean = layer.running_var = None


def _choose_statistics(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
    layer.training = not _single_values(args[0])


def _single_values(x: Tensor) -> bool:
    return x.numel() == x.shape[1]


@contextmanager
def moving_statistics(network: nn.Module, momentum: float | None = None) -> Iterator[None]:
    """Let forward passes within move the running statistics towards those of their batch.

    Meanwhile layers normalise with the batch's statistics, as in training. Without a momentum
    each layer moves by its own.
    """
    layers = [layer for layer in batch_norms(network) if layer.running_mean is not None]
    for layer in layers:
        if momentum is not None:
            layer.momentum = momentum
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


class MixedStatistics:
    """BatchNorm statistics between the source's and the batch's.

    A layer normalises with ``(1 - alpha) * source + alpha * batch``; a layer that meets a single
    value per channel uses the source's alone.
    """

    def __init__(self, network: nn.Module, alpha: float) -> None:
        """Install on every BatchNorm layer of ``network`` that has running statistics."""
        self.alpha = alpha
        self.source: tuple[Tensor, Tensor] | None = None
        for layer in batch_norms(network):
            if layer.running_mean is not None:
                layer.register_forward_pre_hook(self)
                layer.register_forward_hook(self.put_back, always_call=True)

    def __call__(self, layer: nn.Module, args: tuple[Tensor, ...]) -> None:
        """Lend the layer mixed statistics for this forward pass."""
        if _single_values(args[0]):
            return
        assert isinstance(layer, _BatchNorm)
        assert layer.running_mean is not None
        assert layer.running_var is not None
        self.source = layer.running_mean, layer.running_var
        mean_C, variance_C = _statistics(args[0])
        layer.running_mean = layer.running_mean.lerp(mean_C.to(self.source[0].dtype), self.alpha)
        layer.running_var = layer.running_var.lerp(variance_C.to(self.source[1].dtype), self.alpha)

    def put_back(self, layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        """Return the source's statistics to the layer."""
        if self.source is not None:
            layer.running_mean, layer.running_var = self.source
            self.source = None


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance per channel."""
    dims = [dim for dim in range(x.ndim) if dim != 1]
    variance_C, mean_C = torch.var_mean(x.detach().float(), dims)
    return mean_C, variance_C


def plain_copy(network: nn.Module) -> nn.Module:
    """Return a copy in eval mode that normalises as ``network`` does.

    Layers that normalise with batch statistics have no running statistics in the copy: it is
    PyTorch's own way to say so, and holds in train and in eval mode.
    """
    plain = copy_network(network).eval()
    for layer in batch_norms(plain):
        if not layer.track_running_stats:
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    return plain


# --- Head and features --------------------------------------------------------------------------


def probe(network: nn.Module, x_NCHW: Tensor) -> Tensor:
    """Run one forward pass and return logits, or explain why the network gives none."""
    first: list[tuple[str, nn.Conv2d, int]] = []

    def note(name: str) -> Any:
        def hook(module: nn.Conv2d, args: tuple[Tensor, ...]) -> None:
            if not first:
                first.append((name, module, args[0].shape[1]))

        return hook

    hooks = [
        module.register_forward_pre_hook(note(name))
        for name, module in network.named_modules()
        if isinstance(module, nn.Conv2d)
    ]
    try:
        logits = network(x_NCHW)
    except RuntimeError as error:
        if first and first[0][1].in_channels != first[0][2]:
            name, conv, got = first[0]
            raise InputError(
                f"The model's first convolution {name!r} takes {conv.in_channels} channels. "
                f"Got images of the shape {tuple(x_NCHW.shape)}, which reach it with {got}."
            ) from error
        raise
    finally:
        for handle in hooks:
            handle.remove()
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(x_NCHW):
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else None
        returned = type(logits).__name__ if shape is None else f"a tensor of the shape {shape}"
        raise ModelError(
            "The model must map images (N, C, H, W) to one tensor of logits (N, classes). "
            f"For images of the shape {tuple(x_NCHW.shape)} it returned {returned}. "
            "Wrap it in a module that returns the logits alone."
        )
    return logits


def find_head(network: nn.Module, x_NCHW: Tensor, name: str | None = None) -> str:
    """Return the name of the layer that makes the logits.

    It is the linear layer or 1×1 convolution whose output, averaged over positions, ranks the
    classes of every image as the logits do. Scaled logits therefore still find their layer.
    """
    modules = dict(network.named_modules())
    if name is not None:
        if name not in modules:
            likely = [key for key, module in modules.items() if _may_be_head(module)]
            raise ModelError(
                f"The model has no module named {name!r} to be its head. "
                f"Its linear layers and 1×1 convolutions are: {', '.join(likely) or 'none'}."
            )
        return name
    outputs: dict[str, Tensor] = {}

    def note(key: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                outputs[key] = output

        return hook

    hooks = [
        module.register_forward_hook(note(key))
        for key, module in modules.items()
        if _may_be_head(module)
    ]
    try:
        logits_NK = network(x_NCHW)
    finally:
        for handle in hooks:
            handle.remove()
    pooled = {key: _pool(output, modules[key]) for key, output in outputs.items()}
    right_size = {key: p for key, p in pooled.items() if p.shape == logits_NK.shape}
    exact = [key for key, p in right_size.items() if torch.equal(p, logits_NK)]
    ranked = [
        key for key, p in right_size.items() if torch.equal(p.argsort(1), logits_NK.argsort(1))
    ]
    heads = exact or ranked
    if len(heads) == 1:
        return heads[0]
    if heads or len(right_size) > 1:
        raise ModelError(
            "The model has several layers that could be its head: "
            f"{', '.join(heads or right_size)}. Name the one whose input are the features with "
            "head='...'."
        )
    raise ModelError(
        "No linear layer or 1×1 convolution of the model makes its logits "
        f"(shape {tuple(logits_NK.shape)}). Name the module whose input are the features with "
        f"head='...'; its modules are: {', '.join(key for key in modules if key)}."
    )


def features_and_logits(network: nn.Module, head: str, x_NCHW: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features (N, D), the head's input averaged over positions, and the logits."""
    with _recording_input(network.get_submodule(head)) as inputs:
        logits_NK = network(x_NCHW)
    if not inputs:
        raise ModelError(
            f"The model's head {head!r} was given no tensor in a forward pass. Name the module "
            "whose input are the features with head='...'."
        )
    return _pool(inputs[-1], network.get_submodule(head)), logits_NK


@contextmanager
def _recording_input(module: nn.Module) -> Iterator[list[Tensor]]:
    inputs: list[Tensor] = []

    def note(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        inputs.extend(value for value in [*args, *named.values()][:1] if isinstance(value, Tensor))

    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield inputs
    finally:
        handle.remove()


def _may_be_head(module: nn.Module) -> bool:
    if isinstance(module, nn.Conv2d):
        return module.kernel_size == (1, 1)
    return isinstance(module, nn.Linear)


def _pool(x: Tensor, module: nn.Module) -> Tensor:
    """Average over positions: the middle of tokens (N, T, D), the end of maps (N, D, H, W)."""
    if isinstance(module, nn.Linear):
        return x.flatten(1, -2).mean(1) if x.ndim > 2 else x
    return x.flatten(2).mean(2) if x.ndim > 2 else x


# --- Teacher and anchor -------------------------------------------------------------------------


@torch.no_grad()
def update_teacher(teacher: Sequence[Tensor], student: Sequence[Tensor], momentum: float) -> None:
    """Move the teacher's parameters towards the student's by an exponential moving average.

    ``teacher = momentum * teacher + (1 - momentum) * student``, in one multi-tensor kernel.
    """
    get_ema_multi_avg_fn(momentum)(teacher, student, None)


@torch.no_grad()
def restore_at_random(
    weights: list[Tensor], source: list[Tensor], probability: float, generator: Generator
) -> None:
    """Give each element of the weights its source value back with a probability, on its own.

    One draw serves all weights, in their order, and multi-tensor kernels do the rest.
    """
    device = weights[0].device
    flat = torch.empty(sum(weight.numel() for weight in weights), device=device)
    flat.bernoulli_(probability, generator=generator_on(device, generator))
    masks = torch._utils._unflatten_dense_tensors(flat.to(weights[0].dtype), weights)
    # Interpolation by exactly 0 or 1 returns exactly the one or the other.
    torch._foreach_lerp_(weights, source, masks)
