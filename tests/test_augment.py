"""The augmentation against pad, affine, blur and crop done one after the other."""

import colorsys
import dataclasses
import math

import pytest
import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from acclimate.augment import TestTimeAugmentation, augment

PLAIN = TestTimeAugmentation(order=(0, 1, 2, 3, 4))


def pictures(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=Generator().manual_seed(seed))


def step_by_step(x: Tensor, draw: TestTimeAugmentation) -> Tensor:
    """Pad by half the size, map affinely with zeros outside, blur, crop, flip; in float64."""
    height, width = x.shape[-2:]
    pad_x, pad_y = width // 2, height // 2
    padded = F.pad(x.double(), (pad_x, pad_x, pad_y, pad_y), mode="replicate")
    h, w = padded.shape[-2:]
    angle = math.radians(draw.angle)
    rotate = torch.tensor(
        [[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0], [0, 0, 1]]
    )
    scale = torch.diag(torch.tensor([draw.scale, draw.scale, 1.0]))
    translate = torch.eye(3)
    translate[:2, 2] = torch.tensor(draw.shift, dtype=torch.float32)
    backwards = torch.linalg.inv((translate @ rotate @ scale).double())
    # affine_grid speaks of the half image as one.
    to_pixels = torch.diag(torch.tensor([w / 2, h / 2, 1.0], dtype=torch.float64))
    theta = torch.linalg.inv(to_pixels) @ backwards @ to_pixels
    grid = F.affine_grid(theta[None, :2], (1, 1, h, w), align_corners=False)
    mapped = F.grid_sample(
        padded, grid.expand(len(x), -1, -1, -1), padding_mode="zeros", align_corners=False
    )
    weights = torch.tensor([math.exp(-((i / draw.sigma) ** 2) / 2) for i in (-2, -1, 0, 1, 2)])
    kernel = torch.outer(weights, weights).double()
    kernel = (kernel / kernel.sum()).expand(x.shape[1], 1, 5, 5)
    blurred = F.conv2d(mapped, kernel, padding=2, groups=x.shape[1])
    cropped = blurred[..., pad_y : pad_y + height, pad_x : pad_x + width]
    return cropped.flip(-1) if draw.flip else cropped


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("shape", [(2, 3, 32, 32), (1, 3, 17, 24), (2, 1, 9, 8)])
def test_geometry_equals_pad_affine_blur_crop(seed: int, shape: tuple[int, ...]) -> None:
    x = pictures(*shape)
    drawn = TestTimeAugmentation.draw(Generator().manual_seed(seed), *shape[2:])
    draw = dataclasses.replace(drawn, brightness=1, contrast=1, saturation=1, hue=0, gamma=1)
    torch.testing.assert_close(draw.apply(x).double(), step_by_step(x, draw), atol=3e-6, rtol=0)


def test_far_translation_fills_with_zero_as_padding_ends() -> None:
    x = pictures(1, 3, 8, 8)
    draw = dataclasses.replace(PLAIN, shift=(7, -6), angle=14, scale=1.1, sigma=0.5)
    expected = step_by_step(x, draw)
    assert (expected < 1e-3).any()
    torch.testing.assert_close(draw.apply(x).double(), expected, atol=3e-6, rtol=0)


def test_identity() -> None:
    x = pictures(2, 3, 16, 16)
    torch.testing.assert_close(PLAIN.apply(x), x, atol=1e-6, rtol=0)


def test_hue_against_colorsys() -> None:
    x = pictures(1, 3, 6, 6)
    x[0, :, 0, 0] = 0.5  # a gray pixel has no hue
    for hue in (-0.06, 0.02, 0.05):
        ours = dataclasses.replace(PLAIN, hue=hue).apply(x)
        for row in range(6):
            for column in range(6):
                h, s, v = colorsys.rgb_to_hsv(*x[0, :, row, column].tolist())
                expected = torch.tensor(colorsys.hsv_to_rgb((h + hue) % 1, s, v))
                torch.testing.assert_close(ours[0, :, row, column], expected, atol=2e-6, rtol=0)


def test_other_colours_by_hand() -> None:
    x = pictures(2, 3, 5, 5)
    gray = (x * torch.tensor([0.2989, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)
    mean = gray.mean((1, 2, 3), keepdim=True)
    expected = {
        "brightness": (x * 1.3).clamp(0, 1),
        "contrast": (1.3 * x - 0.3 * mean).clamp(0, 1),
        "saturation": (1.3 * x - 0.3 * gray).clamp(0, 1),
        "gamma": x**1.3,
    }
    for name, value in expected.items():
        ours = dataclasses.replace(PLAIN, **{name: 1.3}).apply(x)
        torch.testing.assert_close(ours, value, atol=2e-6, rtol=0)


def test_the_order_of_colours_matters() -> None:
    x = pictures(1, 3, 5, 5)
    draw = dataclasses.replace(PLAIN, brightness=1.4, gamma=0.7)
    expected = (x**0.7 * 1.4).clamp(0, 1)
    ours = dataclasses.replace(draw, order=(4, 0, 1, 2, 3)).apply(x)
    torch.testing.assert_close(ours, expected, atol=2e-6, rtol=0)
    assert not torch.allclose(draw.apply(x), expected, atol=1e-3)


def test_draws_cover_their_ranges() -> None:
    generator = Generator().manual_seed(0)
    draws = [TestTimeAugmentation.draw(generator, 32, 32) for _ in range(2000)]
    ranges = {
        "brightness": (0.6, 1.4),
        "contrast": (0.7, 1.3),
        "saturation": (0.5, 1.5),
        "hue": (-0.06, 0.06),
        "gamma": (0.7, 1.3),
        "angle": (-15, 15),
        "scale": (0.9, 1.1),
        "sigma": (0.001, 0.5),
    }
    for name, (low, high) in ranges.items():
        values = [getattr(draw, name) for draw in draws]
        margin = (high - low) / 50
        assert low <= min(values) < low + margin
        assert high - margin < max(values) <= high
    # A sixteenth of the padded size of 64 pixels.
    assert {draw.shift[0] for draw in draws} == set(range(-4, 5))
    assert {draw.shift[1] for draw in draws} == set(range(-4, 5))
    assert 900 < sum(draw.flip for draw in draws) < 1100
    assert len({draw.order for draw in draws}) == 120


def test_one_draw_for_the_whole_batch_and_noise_for_each_pixel() -> None:
    x = pictures(1, 3, 32, 32).expand(64, -1, -1, -1)
    y = augment(x, Generator().manual_seed(3))
    inner = (y > 0.05) & (y < 0.95)
    spread = y.std(0)[inner.all(0)]
    assert spread.mean().item() == pytest.approx(0.005, rel=0.05)


def test_every_call_draws_noise_of_its_own() -> None:
    """Of a uniform gray image nothing but brightness and noise is left to change."""
    generator = Generator().manual_seed(0)
    noise = []
    for _ in range(2):
        y = augment(torch.full((2, 3, 32, 32), 0.5), generator)
        noise.append(y - y.mean())
        assert noise[-1].std().item() == pytest.approx(0.005, rel=0.1)
    for other in (noise[1], noise[1].flip(-1)):
        together = torch.stack([noise[0].flatten(), other.flatten()])
        assert abs(together.corrcoef()[0, 1].item()) < 0.1


@pytest.mark.parametrize("shape", [(3, 3, 8, 8), (2, 1, 8, 8), (2, 4, 6, 10), (1, 3, 1, 1)])
def test_any_image_stays_in_range_and_is_repeatable(shape: tuple[int, ...]) -> None:
    x = pictures(*shape)
    kept = x.clone()
    one, other = (augment(x, Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(one, other)
    assert torch.equal(x, kept)
    assert one.shape == x.shape
    assert one.min() >= 0
    assert one.max() <= 1
    assert not torch.equal(one, augment(x, Generator().manual_seed(6)))
