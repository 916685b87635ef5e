"""The augmentations of the methods as batched tensor code.

CoTTA and RMT: one draw of parameters holds for the whole batch: colours, then one geometric map
(rotation, translation, scale and flip on the edge-padded image), a light blur and pixel noise.

AdaContrast: a weak and a strong view, with a draw for each image.

Everything stays on the device of its input; the parameters come from the generator that is passed
in.

Shapes: N images, C channels, H rows, W columns; h and w are H and W plus the blur's margin.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from acclimate.generators import generator_on

__all__ = ["Boxes", "StrongView", "TestTimeAugmentation", "WeakView", "augment"]

_BLUR_MARGIN = 2  # A 5×5 kernel reaches two pixels beyond the crop.
_BLUR_REACH = 6  # Three times the largest standard deviation of AdaContrast's blur.
_TRIALS = 10  # So many boxes are tried for each random resized crop.
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


@dataclass(frozen=True)
class Boxes:
    """Where in its image each view lies, and how far from there pixels are read (in pixels)."""

    corner_N2: Tensor
    """Left and upper end."""
    size_N2: Tensor
    """Width and height, which the view shows in as many pixels as the image has."""
    inner: bool
    """Whether only pixels of the box are read, or their neighbours outside too."""

    @classmethod
    def draw_resized_crops(
        cls, generator: Generator, count: int, height: int, width: int
    ) -> "Boxes":
        """Draw boxes of 20 % to 100 % of the area, from 3:4 to 4:3, as RandomResizedCrop does."""
        low, high = math.log(3 / 4), math.log(4 / 3)
        area_NT = height * width * (0.2 + 0.8 * torch.rand(count, _TRIALS, generator=generator))
        root_NT = torch.exp(
            (low + (high - low) * torch.rand(area_NT.shape, generator=generator)) / 2
        )
        size_NT2 = torch.stack([area_NT.sqrt() * root_NT, area_NT.sqrt() / root_NT], 2).round()
        image_2 = torch.tensor([width, height])
        fits_NT = ((size_NT2 >= 1) & (size_NT2 <= image_2)).all(2)
        first_N = fits_NT.int().argmax(1)
        ratio = min(max(width / height, 3 / 4), 4 / 3)
        largest_2 = torch.tensor(
            [round(min(width, height * ratio)), round(min(height, width / ratio))]
        )
        size_N2 = torch.where(
            fits_NT.any(1, keepdim=True), size_NT2[torch.arange(count), first_N], largest_2
        )
        room_N2 = image_2 - size_N2
        drawn_N2 = (torch.rand(count, 2, generator=generator) * (room_N2 + 1)).floor()
        corner_N2 = torch.where(
            fits_NT.any(1, keepdim=True), drawn_N2.minimum(room_N2), (room_N2 / 2).floor()
        )
        return cls(corner_N2, size_N2, inner=True)

    @classmethod
    def draw_crops(cls, generator: Generator, count: int, height: int, width: int) -> "Boxes":
        """Draw crops of the image's size out of the image resized to 8/7 of it, 256 for 224."""
        image_2 = torch.tensor([width, height])
        resized_2 = (image_2 * 8 / 7).round()
        room_2 = resized_2 - image_2
        drawn_N2 = (torch.rand(count, 2, generator=generator) * (room_2 + 1)).floor()
        scale_2 = image_2 / resized_2
        corner_N2 = drawn_N2.minimum(room_2) * scale_2
        return cls(corner_N2, (image_2 * scale_2).expand(count, 2), inner=False)

    def apply(self, x_NCHW: Tensor) -> Tensor:
        """Return the boxes of the images, resized bilinearly to the images' size."""
        n, _, height, width = x_NCHW.shape
        corner_N2, size_N2 = self.corner_N2.to(x_NCHW), self.size_N2.to(x_NCHW)
        axes = []
        for axis, pixels in enumerate((width, height)):
            corner_N1, size_N1 = corner_N2[:, axis, None], size_N2[:, axis, None]
            middle_P = torch.arange(pixels, device=x_NCHW.device, dtype=x_NCHW.dtype) + 0.5
            at_NP = corner_N1 + middle_P * (size_N1 / pixels)
            if self.inner:
                at_NP = at_NP.maximum(corner_N1 + 0.5).minimum(corner_N1 + size_N1 - 0.5)
            axes.append(at_NP * (2 / pixels) - 1)
        x_NHW = axes[0][:, None, :].expand(n, height, width)
        y_NHW = axes[1][:, :, None].expand(n, height, width)
        return F.grid_sample(
            x_NCHW,
            torch.stack([x_NHW, y_NHW], dim=3),
            mode="bilinear",
            padding_mode="border",
            align_corners=False,
        )


@dataclass(frozen=True)
class WeakView:
    """The parameters of AdaContrast's weak view, one draw for each image."""

    flip_N: Tensor
    boxes: Boxes | None = None

    @classmethod
    def draw(cls, generator: Generator, shape: torch.Size, crop: bool) -> "WeakView":
        """Draw the parameters for a batch (N, C, H, W); ``crop`` is for natural images."""
        count, _, height, width = shape
        boxes = Boxes.draw_crops(generator, count, height, width) if crop else None
        return cls(torch.rand(count, generator=generator) < 0.5, boxes)

    def apply(self, x_NCHW: Tensor) -> Tensor:
        """Return the view of a batch."""
        if self.boxes is not None:
            x_NCHW = self.boxes.apply(x_NCHW)
        return _flip(x_NCHW, self.flip_N)


@dataclass(frozen=True)
class StrongView:
    """The parameters of AdaContrast's strong view, one draw for each image."""

    jittered_N: Tensor
    order_N4: Tensor
    """Order of the colour operations: 0 brightness, 1 contrast, 2 saturation, 3 hue."""
    factors_4N: Tensor
    """How much of each colour operation, in that numbering."""
    grayed_N: Tensor
    blurred_N: Tensor
    sigma_N: Tensor
    """Standard deviation of the blur in pixels."""
    flip_N: Tensor
    boxes: Boxes | None = None

    @classmethod
    def draw(cls, generator: Generator, shape: torch.Size, crop: bool) -> "StrongView":
        """Draw the parameters for a batch (N, C, H, W); ``crop`` is for natural images."""
        count, _, height, width = shape

        def happens(probability: float) -> Tensor:
            return torch.rand(count, generator=generator) < probability

        boxes = Boxes.draw_resized_crops(generator, count, height, width) if crop else None
        reach_41 = torch.tensor([[0.4], [0.4], [0.4], [0.1]])
        centre_41 = torch.tensor([[1.0], [1.0], [1.0], [0.0]])
        return cls(
            jittered_N=happens(0.8),
            order_N4=torch.rand(count, 4, generator=generator).argsort(1),
            factors_4N=centre_41 + reach_41 * (2 * torch.rand(4, count, generator=generator) - 1),
            grayed_N=happens(0.2),
            blurred_N=happens(0.5),
            sigma_N=0.1 + 1.9 * torch.rand(count, generator=generator),
            flip_N=happens(0.5),
            boxes=boxes,
        )

    def apply(self, x_NCHW: Tensor) -> Tensor:
        """Return the view of a batch."""
        x_NCHW = x_NCHW.clone() if self.boxes is None else self.boxes.apply(x_NCHW)
        operations: list[Callable[[Tensor, Tensor], Tensor]] = [
            lambda x, factor: x.mul_(factor).clamp_(0, 1),
            lambda x, factor: _mix(_gray(x).mean((-3, -2, -1), keepdim=True), x, factor),
            lambda x, factor: _mix(_gray(x), x, factor),
            _shift_hue,
        ]
        coloured = x_NCHW.shape[1] == 3
        for position_N in self.order_N4.T:
            for index, operation in enumerate(operations if coloured else operations[:2]):
                rows = (self.jittered_N & (position_N == index)).nonzero().flatten()
                factor = self.factors_4N[index, rows].to(x_NCHW).view(-1, 1, 1, 1)
                rows = rows.to(x_NCHW.device)
                x_NCHW.index_copy_(0, rows, operation(x_NCHW[rows], factor))
        if coloured:
            rows = self.grayed_N.nonzero().flatten().to(x_NCHW.device)
            x_NCHW.index_copy_(0, rows, _gray(x_NCHW[rows]).expand(-1, 3, -1, -1))
        rows = self.blurred_N.nonzero().flatten()
        blurred = _blur_each(x_NCHW[rows.to(x_NCHW.device)], self.sigma_N[rows])
        x_NCHW.index_copy_(0, rows.to(x_NCHW.device), blurred)
        return _flip(x_NCHW, self.flip_N)


def _flip(x_NCHW: Tensor, chosen_N: Tensor) -> Tensor:
    return torch.where(chosen_N.to(x_NCHW.device).view(-1, 1, 1, 1), x_NCHW.flip(3), x_NCHW)


def _mix(other: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(other, x, factor).clamp_(0, 1)


def _blur_each(x_NCHW: Tensor, sigma_N: Tensor) -> Tensor:
    """Blur each image with a Gaussian of its own, up to three times the largest away."""
    n, c, height, width = x_NCHW.shape
    if n == 0:
        return x_NCHW
    offsets = torch.arange(-_BLUR_REACH, _BLUR_REACH + 1)
    kernel_NP = torch.exp(-0.5 * (offsets / sigma_N[:, None]) ** 2)
    kernel_NP = (kernel_NP / kernel_NP.sum(1, keepdim=True)).to(x_NCHW)
    weight = kernel_NP.repeat_interleave(c, 0).view(n * c, 1, 1, -1)
    x = F.pad(x_NCHW, (_BLUR_REACH,) * 4, mode="replicate")
    x = x.reshape(1, n * c, height + 2 * _BLUR_REACH, width + 2 * _BLUR_REACH)
    x = F.conv2d(F.conv2d(x, weight, groups=n * c), weight.transpose(2, 3), groups=n * c)
    return x.view(n, c, height, width)


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


def _shift_hue(x_NCHW: Tensor, turns: float | Tensor) -> Tensor:
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
