"""The time of one step of each method over the time of its bare arithmetic.

Bare arithmetic is the forward (F) and forward-plus-backward (FB) passes that a method cannot do
without, in the same network, precision, memory format and with the same trained parameters.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import acclimate
from acclimate import network
from acclimate.allocator import keep_freed_memory
from acclimate.bench.machine import describe_machine
from acclimate.models.resnet20 import ResNet20
from benchmarks.timing import medians

BATCH = 200
# Method, options, forward-plus-backward passes, forward passes, the bound on the ratio.
ROWS: list[tuple[str, type[acclimate.Adapter[Any]], dict[str, Any], int, int, float]] = [
    ("BN-1", acclimate.BN1, {}, 0, 1, 1.05),
    ("TENT", acclimate.Tent, {}, 1, 0, 1.10),
    ("MT", acclimate.MeanTeacher, {}, 1, 1, 1.10),
    ("RMT source-free", acclimate.RMT, {"warmup_samples": 0}, 2, 1, 1.15),
    ("RMT with replay", acclimate.RMT, {"warmup_samples": 0, "lambda_ce": 1.0}, 3, 1, 1.15),
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


def measure(table: Table, precision: str, channels_last: bool, device: str, rounds: int) -> bool:
    """Measure all methods; return whether all ratios are within their bounds."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    source = [(images(device, seed), torch.arange(BATCH, device=device) % 10) for seed in (2, 3)]
    x = images(device, 0)
    good = True
    for name, kind, options, backwards, forwards, bound in ROWS:
        options = {**options, "precision": precision, "channels_last": channels_last}
        adapter = kind(ResNet20().to(device), **options).prepare(source)
        f, fb = bare(adapter.trains, precision, layout, device)

        def one_step(adapter: acclimate.Adapter[Any] = adapter) -> None:
            adapter(x)

        step, one_f, one_fb = medians(device, rounds, [one_step, f, fb])
        arithmetic = backwards * one_fb + forwards * one_f
        ratio = step / arithmetic
        good &= ratio <= bound
        table.add_row(
            name,
            " + ".join(f"{n}{p}" for n, p in ((backwards, "FB"), (forwards, "F")) if n),
            precision,
            "channels last" if channels_last else "contiguous",
            f"{step:.1f}",
            f"{arithmetic:.1f}",
            f"{ratio:.3f}",
            f"{bound:.2f}",
            "yes" if ratio <= bound else "NO",
        )
    return good


def main() -> bool:
    """Print the table; return whether every ratio is within its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--contiguous", action="store_true", help="do not use channels last")
    parser.add_argument("--trim", action="store_true", help="leave the C allocator as it is")
    arguments, _ = parser.parse_known_args()
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
        good &= measure(
            table, precision, not arguments.contiguous, arguments.device, arguments.rounds
        )
    Console(width=120).print(table)
    return good


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
