"""Optimizers of the paper with fused kernels, and their state as named tensors."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer

from acclimate.config import TrainingConfig

__all__ = [
    "follow_layout",
    "make_optimizer",
    "optimizer_tensors",
    "set_learning_rate",
    "write_optimizer",
]


def make_optimizer(groups: list[dict[str, Any]], config: TrainingConfig, lr: float) -> Optimizer:
    """Return the optimizer that the options name.

    A group of parameters may have a ``factor`` by which it learns faster than at ``lr``.
    """
    parameters = [parameter for group in groups for parameter in group["params"]]
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
    optimizer: Optimizer
    if config.optimizer == "adam":
        optimizer = Adam(
            groups,
            lr=lr,
            betas=(config.optimizer_momentum, 0.999),
            weight_decay=config.weight_decay,
            fused=fused,
        )
    else:
        optimizer = SGD(
            groups,
            lr=lr,
            momentum=config.optimizer_momentum,
            nesterov=config.nesterov and config.optimizer_momentum > 0,
            weight_decay=config.weight_decay,
            fused=fused,
        )
    set_learning_rate(optimizer, lr)
    return optimizer


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of all groups, each times its factor."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("factor", 1.0)


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's live state by names like ``0.exp_avg``: parameter, then quantity."""
    return {
        f"{index}.{key}": value
        for index, quantities in optimizer.state_dict()["state"].items()
        for key, value in quantities.items()
        if isinstance(value, Tensor)
    }


def write_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Replace the optimizer's state by copies of ``tensors``, named as above."""
    quantities: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split(".")
        quantities.setdefault(int(index), {})[key] = value.clone()
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": quantities, "param_groups": groups})
    follow_layout(optimizer)


@torch.no_grad()
def follow_layout(optimizer: Optimizer) -> None:
    """Lay the state out in memory as its parameters are: fused kernels read both in step."""
    for parameter, quantities in optimizer.state.items():
        for key, value in quantities.items():
            if isinstance(value, Tensor) and value.ndim > 0:
                quantities[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
