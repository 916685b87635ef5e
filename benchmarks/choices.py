"""What each choice of memory layout, precision and kernels gains; not part of `make bench`.

Whole steps are of source-free RMT on ResNet-20; parts are of the optimizer and the teacher, on
ResNet-20's parameters and on 36 million, as many as a WideResNet-28-10 has. CoTTA's views are
forwarded in three ways, each view with its own batch statistics.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import acclimate
from acclimate import network
from acclimate.allocator import keep_freed_memory
from acclimate.bench.machine import describe_machine
from acclimate.models.resnet20 import ResNet20
from benchmarks.steps import BATCH, images
from benchmarks.timing import count_cpu_time, medians

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


@torch.no_grad()
def views() -> Table:
    """Measure 32 forward passes, one after the other and several at once."""
    table = Table(title="Logits of 32 views, ResNet-20, in ms")
    for column in ("images", "one by one", "8 stacked", "8 folded", "largest difference"):
        table.add_column(column)
    net, stacking = ResNet20().requires_grad_(False), Stacked()
    network.use_batch_statistics(net.eval().to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    for count in (8, 16, 32, 64):
        x = images("cpu", 0)[:count]
        seen = [
            x.roll(shift, 3).contiguous(memory_format=torch.channels_last) for shift in range(32)
        ]
        groups = [seen[start : start + 8] for start in range(0, 32, 8)]

        def one_by_one(seen: list[Tensor] = seen) -> Tensor:
            return torch.stack([net(view) for view in seen])

        def stacked(groups: list[list[Tensor]] = groups, count: int = count) -> Tensor:
            with stacking.of(net, count):
                return torch.cat([net(torch.cat(group)) for group in groups]).view(32, count, -1)

        def folded(groups: list[list[Tensor]] = groups) -> Tensor:
            return torch.cat([torch.vmap(net)(torch.stack(group)) for group in groups])

        far = max(float((run() - one_by_one()).abs().max()) for run in (stacked, folded))
        times = medians("cpu", 3, [one_by_one, stacked, folded])
        table.add_row(str(count), *(f"{time:.0f}" for time in times), f"{far:.0e}")
    return table


class Stacked:
    """Lets BatchNorm layers take the statistics of each view in a stack of several."""

    @contextmanager
    def of(self, net: nn.Module, images_per_view: int) -> Iterator[None]:
        """Change the layers for forward passes within."""
        layers = network.batch_norms(net)
        for layer in layers:
            plain = layer.forward

            def forward(x: Tensor, plain: Callable[[Tensor], Tensor] = plain) -> Tensor:
                return torch.cat([plain(view) for view in x.split(images_per_view)])

            layer.__dict__["forward"] = forward
        try:
            yield
        finally:
            for layer in layers:
                del layer.forward


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu-time", action="store_true", help="of one thread, not wall time")
    if parser.parse_args().cpu_time:
        count_cpu_time()
    keep_freed_memory()
    console = Console(width=120)
    for table in (steps, parts, views):
        console.print(table())
    console.print(describe_machine("cpu"))


if __name__ == "__main__":
    main()
