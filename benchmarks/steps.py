"""The time of one step of each method over the time of its bare arithmetic.

Bare arithmetic is the forward (F) and forward-plus-backward (FB) passes that a method cannot do
without, in the same network, precision, memory format and with the same trained parameters, and
the augmentations it asks for.
"""

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Generator, Tensor

import acclimate
from acclimate import network
from acclimate.allocator import keep_freed_memory
from acclimate.augment import StrongView, WeakView, augment
from acclimate.bench.machine import describe_machine
from acclimate.models.resnet20 import ResNet20
from benchmarks.timing import count_cpu_time, medians

BATCH = 200


def cotta_views(x_NCHW: Tensor, generator: Generator) -> None:
    """Make CoTTA's augmented copies."""
    for _ in range(32):
        augment(x_NCHW, generator)


def contrast_views(x_NCHW: Tensor, generator: Generator) -> None:
    """Make AdaContrast's views."""
    for kind in (WeakView, StrongView, StrongView):
        kind.draw(generator, x_NCHW.shape, crop=False).apply(x_NCHW)


@dataclasses.dataclass(frozen=True)
class Row:
    """A method and the arithmetic of one of its steps."""

    name: str
    method: type[acclimate.Adapter[Any]]
    options: dict[str, Any]
    backwards: int
    """Forward-plus-backward passes."""
    forwards: int
    bound: float
    """On the ratio of step and arithmetic."""
    views: Callable[[Tensor, Generator], None] | None = None
    """The augmentations of a step."""

    def passes(self) -> str:
        """Describe the arithmetic."""
        counts = ((self.backwards, "FB"), (self.forwards, "F"))
        parts = [f"{count}{kind}" for count, kind in counts if count]
        return " + ".join(parts + ["views"] * (self.views is not None))


ROWS = [
    Row("BN-1", acclimate.BN1, {}, 0, 1, 1.05),
    Row("TENT", acclimate.Tent, {}, 1, 0, 1.10),
    Row("MT", acclimate.MeanTeacher, {}, 1, 1, 1.10),
    Row("RMT source-free", acclimate.RMT, {"warmup_samples": 0}, 2, 1, 1.15),
    Row("RMT with replay", acclimate.RMT, {"warmup_samples": 0, "lambda_ce": 1.0}, 3, 1, 1.15),
    # The source model counts as unsure of every batch, so that views are averaged.
    Row("CoTTA", acclimate.CoTTA, {"threshold": 1.0}, 1, 33, 1.15, cotta_views),
    Row("AdaContrast", acclimate.AdaContrast, {}, 1, 4, 1.20, contrast_views),
    Row("GTTA-MIX", acclimate.GTTA, {}, 4 * 2, 4 * 2, 1.15),
]


def images(device: str, seed: int) -> Tensor:
    """Random images."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(BATCH, 3, 32, 32, generator=generator).to(device)


def bare(
    trains: str, precision: str, layout: torch.memory_format, device: str
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return the bare forward pass and the bare forward-plus-backward pass."""
    net = ResNet20().requires_grad_(False).eval().to(device)
    for layer in network.batch_norms(net):
        layer.track_running_stats = False
        layer.train()
    find = network.norm_parameters if trains == "norm" else network.weights_and_biases
    parameters = list(find(net).values())
    for parameter in parameters:
        parameter.requires_grad_(True)
    net.to(memory_format=layout)  # type: ignore[call-overload]
    x = images(device, 0).contiguous(memory_format=layout)
    weight = torch.rand(BATCH, 10, generator=torch.Generator().manual_seed(1)).to(device)

    def forward() -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            logits: Tensor = net(x)
        return logits

    def f() -> None:
        with torch.no_grad():
            forward()

    def fb() -> None:
        (forward().float() * weight).mean().backward()
        for parameter in parameters:
            parameter.grad = None

    return f, fb


def fill_bank(adapter: acclimate.AdaContrast, x_NCHW: Tensor) -> None:
    """Fill the bank of neighbours, which takes AdaContrast 82 batches."""
    adapter(x_NCHW)
    generator = Generator().manual_seed(1)
    while adapter.counters["bank_filled"] < len(adapter.bank):
        features_ND = torch.rand(len(x_NCHW), adapter.bank.shape[1], generator=generator)
        adapter.remember(features_ND.to(x_NCHW), torch.zeros(len(x_NCHW), 10).to(x_NCHW))


def measure(
    table: Table, rows: list[Row], precision: str, channels_last: bool, device: str, rounds: int
) -> bool:
    """Measure the methods; return whether all ratios are within their bounds."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    source = [(images(device, seed), torch.arange(BATCH, device=device) % 10) for seed in (2, 3)]
    x = images(device, 0)
    good = True
    generator = Generator().manual_seed(0)
    for case in rows:
        options = {**case.options, "precision": precision, "channels_last": channels_last}
        adapter = case.method(ResNet20().to(device), **options).prepare(source)
        if isinstance(adapter, acclimate.AdaContrast):
            fill_bank(adapter, x)
        f, fb = bare(adapter.trains, precision, layout, device)

        def one_step(adapter: acclimate.Adapter[Any] = adapter) -> None:
            adapter(x)

        def views(case: Row = case) -> None:
            if case.views is not None:
                case.views(x, generator)

        step, one_f, one_fb, augmenting = medians(device, rounds, [one_step, f, fb, views])
        arithmetic = case.backwards * one_fb + case.forwards * one_f + augmenting
        ratio = step / arithmetic
        good &= ratio <= case.bound
        table.add_row(
            case.name,
            case.passes(),
            precision,
            "channels last" if channels_last else "contiguous",
            f"{step:.1f}",
            f"{arithmetic:.1f}",
            f"{ratio:.3f}",
            f"{case.bound:.2f}",
            "yes" if ratio <= case.bound else "NO",
        )
    return good


def main() -> bool:
    """Print the table; return whether every ratio is within its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--contiguous", action="store_true", help="do not use channels last")
    parser.add_argument("--trim", action="store_true", help="leave the C allocator as it is")
    parser.add_argument("--cpu-time", action="store_true", help="of one thread, not wall time")
    parser.add_argument("--methods", help="which rows, separated by commas; all unless told")
    arguments, _ = parser.parse_known_args()
    if arguments.cpu_time:
        count_cpu_time()
    names = arguments.methods.split(",") if arguments.methods else [row.name for row in ROWS]
    rows = [row for row in ROWS if row.name in names]
    kept = not arguments.trim and keep_freed_memory()
    memory = "kept" if kept else "returned"
    table = Table(
        title=f"Steps of ResNet-20, batch {BATCH}, in ms",
        caption=f"{describe_machine(arguments.device)}, freed memory {memory}",
    )
    for column in ("method", "passes", "precision", "layout", "step", "arithmetic", "ratio"):
        table.add_column(column)
    table.add_column("bound")
    table.add_column("within")
    good = True
    for precision in ("fp32", "bf16"):
        layout = not arguments.contiguous
        good &= measure(table, rows, precision, layout, arguments.device, arguments.rounds)
    Console(width=120).print(table)
    return good


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
