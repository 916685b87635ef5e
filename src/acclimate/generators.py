"""Random numbers on any device from one generator, an adapter's own."""

import torch
from torch import Generator

__all__ = ["generator_on"]


def generator_on(device: torch.device, generator: Generator) -> Generator:
    """Return a generator of the device: a CPU's own, or on others one that it seeds anew.

    Drawing many numbers on the CPU and moving them would make an accelerator wait.
    """
    if device.type == "cpu":
        return generator
    seed = int(torch.randint(2**62, (), generator=generator).item())
    return Generator(device).manual_seed(seed)
