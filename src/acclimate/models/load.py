"""Models by name, ready to be given pixels in [0, 1]."""

import difflib
from collections.abc import Callable
from importlib.resources import as_file, files

from safetensors.torch import load_file
from torch import nn

from acclimate.errors import ModelError
from acclimate.models.resnet20 import ResNet20
from acclimate.network import Normalized

__all__ = ["CIFAR10_MEAN", "CIFAR10_STD", "load_model"]

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)


def load_model(name: str) -> nn.Module:
    """Return a trained classifier in eval mode.

    Args:
        name: "cifar10/resnet20", the bundled network: it errs on 7.62 % of CIFAR-10's test images.
    """
    if name not in _MODELS:
        near = difflib.get_close_matches(name, _MODELS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ModelError(f"There is no model {name!r}.{hint} Known are: {', '.join(_MODELS)}.")
    return _MODELS[name]().eval()


def _cifar10_resnet20() -> nn.Module:
    network = ResNet20()
    with as_file(files("acclimate.models") / "weights" / "cifar10-resnet20.safetensors") as path:
        network.load_state_dict(load_file(path))
    return Normalized(network, CIFAR10_MEAN, CIFAR10_STD)


_MODELS: dict[str, Callable[[], nn.Module]] = {"cifar10/resnet20": _cifar10_resnet20}
