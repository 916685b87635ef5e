"""A tiny classifier and tiny data, the same for every seed and without drawing on global state."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["CLASSES", "TinyClassifier", "tiny_batches", "tiny_source"]

CLASSES = 5
_CENTRES = torch.linspace(0.2, 0.8, CLASSES)


class TinyClassifier(nn.Module):
    """Two convolutions with a normalisation of choice, and a linear head ``fc``."""

    def __init__(self, norm: str = "batch", seed: int = 0, width: int = 8) -> None:
        """Make a classifier with normalisation ``"batch"``, ``"group"`` or ``"layer"``."""
        super().__init__()
        kinds: dict[str, Callable[[int], nn.Module]] = {
            "batch": nn.BatchNorm2d,
            "group": lambda channels: nn.GroupNorm(2, channels),
            "layer": lambda channels: nn.GroupNorm(1, channels),
        }
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.conv1 = nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False)
            self.norm1 = kinds[norm](6)
            self.conv2 = nn.Conv2d(6, width, 3, stride=2, padding=1, bias=False)
            self.norm2 = kinds[norm](width)
            self.fc = nn.Linear(width, CLASSES)
            for module in (self.norm1, self.norm2):
                for name, buffer in module.named_buffers():
                    if buffer.is_floating_point():
                        nn.init.uniform_(buffer, *((0.5, 1.5) if "var" in name else (-0.1, 0.1)))
        self.eval()

    def forward(self, x_NCHW: Tensor) -> Tensor:
        """Return logits."""
        x_NCHW = self.norm1(self.conv1(x_NCHW)).relu()
        x_NCHW = self.norm2(self.conv2(x_NCHW)).relu()
        logits_NK: Tensor = self.fc(x_NCHW.mean((2, 3)))
        return logits_NK


def tiny_batches(count: int, size: int = 8, seed: int = 0, side: int = 8) -> list[Tensor]:
    """Return batches of random images in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(size, 3, side, side, generator=generator) for _ in range(count)]


def tiny_source(size: int = 40, seed: int = 0, side: int = 8) -> tuple[Tensor, Tensor]:
    """Return labelled images whose brightness tells their class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(size) % CLASSES
    noise = 0.2 * torch.rand(size, 3, side, side, generator=generator)
    return (_CENTRES[labels].view(-1, 1, 1, 1) + noise).clamp(0, 1), labels
