"""The test-time augmentation of CoTTA and RMT as batched tensor code.

One draw of parameters holds for the whole batch: colours, then one geometric map (rotation,
translation, scale and flip on the edge-padded image), a light blur and pixel noise. Everything
stays on the device of its input; the parameters come from the generator that is passed in.

Shapes: N images, C channels, H rows, W columns; h and w are H and W plus the blur's margin.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from acclimate.generators import generator_on

__all__ = ["TestTimeAugmentation", "augment"]

_BLUR_MARGIN = 2  # A 5×5 kernel reaches two pixels beyond the crop.
_GRAY = (0.2989, 0.587, 0.114)


@torch.no_grad()
def augment(x_NCHW: Tensor, generator: Generator) -> Tensor:
    """Return a randomly augmented copy of a batch in [0, 1], one draw for the whole batch.

    Args:
        x_NCHW: images in [0, 1]; saturation and hue change images of three channels only.
        generator: a CPU generator; on other devices it seeds the pixel noise.

    Returns:
        Images of the same shape, in [0, 1].
    """
    draw = TestTimeAugmentation.draw(generator, x_NCHW.shape[-2], x_NCHW.shape[-1])
    noise = draw.noise * _normal(x_NCHW, generator)
    return draw.apply(x_NCHW).add_(noise).clamp_(0, 1)


@dataclass(frozen=True)
class TestTimeAugmentation:
    """The parameters of one augmentation."""

    order: tuple[int, ...]
    """Order of the colour operations: 0 brightness, 1 contrast, 2 saturation, 3 hue, 4 gamma."""
    brightness: float = 1.0
    contrast: float = 1.0
    saturation: float = 1.0
    hue: float = 0.0
    gamma: float = 1.0
    angle: float = 0.0
    """Rotation in degrees."""
    shift: tuple[int, int] = (0, 0)
    """Translation in whole pixels, right and down."""
    scale: float = 1.0
    sigma: float = 0.001
    """Standard deviation of the blur in pixels."""
    flip: bool = False
    noise: float = 0.005
    """Standard deviation of the pixel noise."""

    __test__ = False  # The name is the paper's, not a pytest class.

    @classmethod
    def draw(cls, generator: Generator, height: int, width: int) -> "TestTimeAugmentation":
        """Draw the parameters for images of the given size."""

        def uniform(low: float, high: float) -> float:
            return low + (high - low) * torch.rand((), generator=generator).item()

        # Up to a sixteenth of the padded image, which is twice as large as the image.
        reach_x, reach_y = (2 * (size // 2) + size for size in (width, height))
        return cls(
            order=tuple(torch.randperm(5, generator=generator).tolist()),
            brightness=uniform(0.6, 1.4),
            contrast=uniform(0.7, 1.3),
            saturation=uniform(0.5, 1.5),
            hue=uniform(-0.06, 0.06),
            gamma=uniform(0.7, 1.3),
            angle=uniform(-15.0, 15.0),
            shift=(
                round(uniform(-reach_x / 16, reach_x / 16)),
                round(uniform(-reach_y / 16, reach_y / 16)),
            ),
            scale=uniform(0.9, 1.1),
            sigma=uniform(0.001, 0.5),
            flip=uniform(0.0, 1.0) < 0.5,
        )

    def apply(self, x_NCHW: Tensor) -> Tensor:
        """Return the batch with these colours, this geometry and this blur, without noise."""
        x_NCHW = x_NCHW.clamp(0, 1)
        operations: list[Callable[[Tensor], Tensor]] = [
            lambda x: x.mul_(self.brightness).clamp_(0, 1),
            lambda x: _blend(x, _gray(x).mean((-3, -2, -1), keepdim=True), self.contrast),
            lambda x: _blend(x, _gray(x), self.saturation),
            lambda x: _shift_hue(x, self.hue),
            lambda x: x.clamp_(1e-8, 1).pow_(self.gamma).clamp_(0, 1),
        ]
        coloured = (2, 3)
        for index in self.order:
            if x_NCHW.shape[1] == 3 or index not in coloured:
                x_NCHW = operations[index](x_NCHW)
        return self._blur(self._sample(x_NCHW))

    def _sample(self, x_NCHW: Tensor) -> Tensor:
        """Map the edge-padded image affinely and return its centre with the blur's margin.

        Padding by an edge's value is what sampling does beyond the border, so nothing is padded.
        Beyond the padding the map fills with 0, fading over one pixel as bilinear sampling does.
        """
        height, width = x_NCHW.shape[-2:]
        rows_h = _centred(height + 2 * _BLUR_MARGIN, x_NCHW) - self.shift[1]
        columns_w = _centred(width + 2 * _BLUR_MARGIN, x_NCHW)
        columns_w = (-columns_w if self.flip else columns_w) - self.shift[0]
        cos = math.cos(math.radians(self.angle)) / self.scale
        sin = math.sin(math.radians(self.angle)) / self.scale
        x_hw = cos * columns_w[None, :] + sin * rows_h[:, None]
        y_hw = cos * rows_h[:, None] - sin * columns_w[None, :]
        grid_hw2 = torch.stack([x_hw * (2 / width), y_hw * (2 / height)], dim=2)
        sampled_NChw = F.grid_sample(
            x_NCHW,
            grid_hw2.expand(len(x_NCHW), -1, -1, -1),
            mode="bilinear",
            padding_mode="border",
            align_corners=False,
        )
        inside_hw = _fade(x_hw, width) * _fade(y_hw, height)
        return sampled_NChw.mul_(inside_hw)

    def _blur(self, x_NChw: Tensor) -> Tensor:
        """Blur with a 5×5 Gaussian and crop its margin."""
        offsets = torch.arange(-_BLUR_MARGIN, _BLUR_MARGIN + 1, dtype=torch.float64)
        kernel = torch.exp(-0.5 * (offsets / self.sigma) ** 2)
        kernel = (kernel / kernel.sum()).to(x_NChw)
        n, c, h, w = x_NChw.shape
        # As one image of N·C channels: a convolution of a single channel is 25 times slower.
        weight = torch.outer(kernel, kernel).expand(n * c, 1, -1, -1)
        return F.conv2d(x_NChw.reshape(1, n * c, h, w), weight, groups=n * c).view(
            n, c, h - 2 * _BLUR_MARGIN, w - 2 * _BLUR_MARGIN
        )


def _normal(like: Tensor, generator: Generator) -> Tensor:
    """Standard normal noise on the device of ``like``."""
    local = generator_on(like.device, generator)
    return torch.randn(like.shape, generator=local, dtype=like.dtype, device=like.device)


def _gray(x_NCHW: Tensor) -> Tensor:
    """Luma of colour images, the mean over channels of others, shape (N, 1, H, W)."""
    if x_NCHW.shape[1] != 3:
        return x_NCHW.mean(1, keepdim=True)
    red, green, blue = x_NCHW.split(1, dim=1)
    gray: Tensor = (red * _GRAY[0]).add_(green, alpha=_GRAY[1]).add_(blue, alpha=_GRAY[2])
    return gray


def _blend(x: Tensor, other: Tensor, factor: float) -> Tensor:
    return x.mul_(factor).add_(other, alpha=1 - factor).clamp_(0, 1)


def _shift_hue(x_NCHW: Tensor, turns: float) -> Tensor:
    """Turn the hue by a fraction of the circle and keep saturation and value.

    With value V, chroma C and hue h in sixths of a turn, the channel c is
    ``V - C * clamp(min(k, 4 - k), 0, 1)`` where ``k = (h + n_c) mod 6`` and n = 5, 3, 1
    for red, green, blue.
    """
    red, green, blue = x_NCHW.split(1, dim=1)
    value = x_NCHW.amax(1, keepdim=True)
    chroma = value - x_NCHW.amin(1, keepdim=True)
    scale = chroma.clamp_min(1e-12).reciprocal_()
    hue = torch.where(
        value == red,
        (green - blue) * scale,
        torch.where(value == green, (blue - red) * scale + 2, (red - green) * scale + 4),
    )
    shifted = (hue + turns * 6 + x_NCHW.new_tensor([5.0, 3.0, 1.0]).view(1, 3, 1, 1)) % 6
    weight = torch.minimum(shifted, 4 - shifted).clamp_(0, 1)
    return torch.addcmul(value, chroma, weight, value=-1).clamp_(0, 1)


def _centred(size: int, like: Tensor) -> Tensor:
    """Pixel centres relative to the middle of an axis."""
    return torch.arange(size, device=like.device, dtype=like.dtype) - (size - 1) / 2


def _fade(position: Tensor, size: int) -> Tensor:
    """Weight of a bilinear sample inside the padded axis: 1, and 0 a pixel beyond its end."""
    half = size / 2 + size // 2
    return (half + 0.5 - position.abs()).clamp_(0, 1)
