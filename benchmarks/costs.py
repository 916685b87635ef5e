"""What each method costs: passes through the network for a batch, and memory in copies of it.

    python -m benchmarks.costs

A pass is counted as FB where a gradient is asked for, else as F. Memory is every tensor that the
adapter holds between batches, prepared state and optimizer included, after a first batch; the
table of docs/methods.md comes from here.
"""

from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import acclimate
from acclimate.models.resnet20 import ResNet20

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "source": ("source", {}),
    "bn1": ("bn1", {}),
    "tent": ("tent", {}),
    "mean-teacher": ("mean-teacher", {}),
    "cotta": ("cotta", {"threshold": 0.0}),
    "cotta, unsure": ("cotta", {"threshold": 1.0}),
    "adacontrast": ("adacontrast", {}),
    "gtta-mix": ("gtta-mix", {"updates": 1}),
    "rmt": ("rmt", {"warmup_samples": 1}),
    "rmt, replay": ("rmt", {"warmup_samples": 1, "lambda_ce": 1.0}),
}


def measure(name: str, options: dict[str, Any], network: nn.Module) -> tuple[int, int, float]:
    """Return the FB and the F of a batch and the memory in copies of the network."""
    generator = torch.Generator().manual_seed(0)
    batches = [torch.rand(8, 3, 32, 32, generator=generator) for _ in range(2)]
    adapter = acclimate.get_method(name)(network, **{**options, **_small(name)})
    adapter.prepare((torch.cat([batches[0]] * 2), torch.arange(16) % 10))
    adapter(batches[0])
    passes = {True: 0, False: 0}

    def count(module: nn.Module, args: Any) -> None:
        passes[torch.is_grad_enabled()] += 1

    for net in (adapter.student, adapter.teacher, adapter.anchor):
        if net is not None:
            net.register_forward_pre_hook(count)
    adapter(batches[1])
    one = sum(_bytes(tensor) for tensor in network.state_dict().values())
    return passes[True], passes[False], sum(map(_bytes, _held(adapter))) / one


def _small(name: str) -> dict[str, Any]:
    """AdaContrast's queue and bank do not grow with the network; the table names them apart."""
    return {"capacity": 8, "batch_size": 8} if name == "adacontrast" else {}


def _held(adapter: acclimate.Adapter[Any]) -> list[Tensor]:
    """All tensors that the adapter holds, each once."""
    prepared = adapter._require_prepared().tensors.values()
    tensors = [*adapter.parameters(), *adapter.buffers(), *prepared]
    if adapter.optimizer is not None:
        for quantities in adapter.optimizer.state.values():
            tensors += [value for value in quantities.values() if isinstance(value, Tensor)]
    return list({id(tensor): tensor for tensor in tensors}.values())


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def main() -> None:
    """Print the table."""
    table = Table(title="Cost of a batch with one update step, ResNet-20")
    for column in ("method", "FB", "F", "copies of the network"):
        table.add_column(column)
    for label, (name, options) in CASES.items():
        backwards, forwards, copies = measure(name, options, ResNet20())
        table.add_row(label, str(backwards), str(forwards), f"{copies:.1f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
