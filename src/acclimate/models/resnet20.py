"""ResNet-20 for CIFAR, with shortcuts that have no parameters (He et al. 2016, section 4.2)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["ResNet20"]


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut that pads missing channels with zeros (option A)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        """Make a block."""
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.missing = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.missing:
            half = self.missing // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, half))
        return F.relu(out + x)


class ResNet20(nn.Module):
    """The network with n = 3, for images of 32×32 whose pixels are normalised."""

    def __init__(self, classes: int = 10, seed: int = 0) -> None:
        """Make the network with random weights that follow from the seed."""
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(16)
            self.layer1 = nn.Sequential(*(Block(16, 16, 1) for _ in range(3)))
            self.layer2 = nn.Sequential(Block(16, 32, 2), *(Block(32, 32, 1) for _ in range(2)))
            self.layer3 = nn.Sequential(Block(32, 64, 2), *(Block(64, 64, 1) for _ in range(2)))
            self.linear = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits
