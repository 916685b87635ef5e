"""What each choice of memory layout, precision and kernels gains; not part of `make bench`.

Whole steps are of source-free RMT on ResNet-20; parts are of the optimizer and the teacher, on
ResNet-20's parameters and on 36 million, as many as a WideResNet-28-10 has.
"""

from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import acclimate
from acclimate import network
from acclimate.allocator import keep_freed_memory
from acclimate.bench.machine import describe_machine
from acclimate.models.resnet20 import ResNet20
from benchmarks.steps import BATCH, images
from benchmarks.timing import medians

STEPS: dict[str, dict[str, Any]] = {
    "default": {},
    "contiguous memory": {"channels_last": False},
    "bfloat16": {"precision": "bf16"},
    "bfloat16, contiguous memory": {"precision": "bf16", "channels_last": False},
}


def steps() -> Table:
    """Measure whole steps."""
    table = Table(title=f"A step of source-free RMT, ResNet-20, batch {BATCH}")
    x = images("cpu", 0)
    source = [(images("cpu", 2), torch.arange(BATCH) % 10)]
    adapters = [
        acclimate.RMT(ResNet20(), warmup_samples=0, **options).prepare(source)
        for options in STEPS.values()
    ]
    times = medians("cpu", 10, [lambda a=adapter: a(x) for adapter in adapters])  # type: ignore[misc]
    for column in ("choice", "ms", "over default"):
        table.add_column(column)
    for name, time in zip(STEPS, times, strict=True):
        table.add_row(name, f"{time:.0f}", f"{time / times[0]:.2f}")
    return table


def parts() -> Table:
    """Measure the optimizer and the teacher alone."""
    table = Table(title="One step of Adam and of the teacher, in ms")
    for column in ("parameters", "loop", "foreach", "fused", "teacher, loop", "teacher, foreach"):
        table.add_column(column)
    large = nn.ModuleList(nn.Linear(640, 1440) for _ in range(40))
    for net in (ResNet20(), large):
        runs = [adam(net, kind) for kind in ("loop", "foreach", "fused")]
        runs += [teacher(net, foreach) for foreach in (False, True)]
        count = sum(parameter.numel() for parameter in net.parameters())
        table.add_row(f"{count / 1e6:.1f} million", *(f"{t:.2f}" for t in medians("cpu", 20, runs)))
    return table


def adam(net: nn.Module, kind: str) -> Callable[[], object]:
    """Return one step of Adam by a kind of kernel."""
    parameters = [nn.Parameter(parameter.detach().clone()) for parameter in net.parameters()]
    for parameter in parameters:
        parameter.grad = torch.rand_like(parameter)
    return torch.optim.Adam(parameters, foreach=kind == "foreach", fused=kind == "fused").step


def teacher(net: nn.Module, foreach: bool) -> Callable[[], object]:
    """Return one update of the teacher."""
    student = [parameter.detach().clone() for parameter in net.parameters()]
    average = [parameter.clone() for parameter in student]

    def loop() -> None:
        for mine, theirs in zip(average, student, strict=True):
            mine.copy_(0.999 * mine + 0.001 * theirs)

    def together() -> None:
        network.update_teacher(average, student, 0.999)

    return together if foreach else loop


def main() -> None:
    """Print the tables."""
    keep_freed_memory()
    console = Console(width=120)
    for table in (steps(), parts()):
        console.print(table)
    console.print(describe_machine("cpu"))


if __name__ == "__main__":
    main()
