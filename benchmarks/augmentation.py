"""The time of one call of the test-time augmentation."""

import torch
from rich.console import Console

from acclimate.augment import augment
from acclimate.bench.machine import describe_machine
from benchmarks.timing import medians

BOUND = 35.0


def main() -> bool:
    """Print the time for 200 CIFAR images; return whether it is within the bound."""
    generator = torch.Generator().manual_seed(0)
    x_NCHW = torch.rand(200, 3, 32, 32, generator=generator)
    (time,) = medians("cpu", 50, [lambda: augment(x_NCHW, generator)])
    within = time <= BOUND
    Console(width=120).print(
        f"Augmentation of 200 images of 32×32: {time:.1f} ms, bound {BOUND:.0f} ms: "
        f"{'yes' if within else 'NO'} ({describe_machine('cpu')})"
    )
    return within


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
