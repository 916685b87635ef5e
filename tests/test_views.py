"""AdaContrast's views against slow versions, image by image and by other means."""

import colorsys
import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter
from torch import Generator, Tensor

from acclimate.augment import Boxes, StrongView, WeakView

SHAPE = torch.Size((24, 3, 20, 16))


def pictures(shape: torch.Size = SHAPE, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=Generator().manual_seed(seed))


def gray(image_HWC: np.ndarray) -> np.ndarray:
    return image_HWC @ np.array([0.2989, 0.587, 0.114])


def turn_hue(image_HWC: np.ndarray, turns: float) -> np.ndarray:
    turned = np.empty_like(image_HWC)
    for row in range(image_HWC.shape[0]):
        for column in range(image_HWC.shape[1]):
            hue, saturation, value = colorsys.rgb_to_hsv(*image_HWC[row, column])
            turned[row, column] = colorsys.hsv_to_rgb((hue + turns) % 1, saturation, value)
    return turned


def jitter(image: np.ndarray, operation: int, factor: float) -> np.ndarray:
    if operation == 0:
        return np.clip(image * factor, 0, 1)
    if operation == 1:
        return np.clip(factor * image + (1 - factor) * gray(image).mean(), 0, 1)
    if operation == 2:
        return np.clip(factor * image + (1 - factor) * gray(image)[..., None], 0, 1)
    return turn_hue(image, factor)


def slow_strong_view(x_NCHW: Tensor, draw: StrongView) -> Tensor:
    done = []
    for n, image in enumerate(x_NCHW.double().permute(0, 2, 3, 1).numpy()):
        if draw.jittered_N[n]:
            for operation in draw.order_N4[n].tolist():
                image = jitter(image, operation, draw.factors_4N[operation, n].item())
        if draw.grayed_N[n]:
            image = np.repeat(gray(image)[..., None], 3, axis=2)
        if draw.blurred_N[n]:
            sigma = draw.sigma_N[n].item()
            image = gaussian_filter(image, (sigma, sigma, 0), mode="nearest", radius=(6, 6, 0))
        if draw.flip_N[n]:
            image = image[:, ::-1]
        done.append(torch.from_numpy(image.copy()).permute(2, 0, 1))
    return torch.stack(done)


@pytest.mark.parametrize("seed", range(4))
def test_strong_views_image_by_image(seed: int) -> None:
    x = pictures(seed=seed)
    draw = StrongView.draw(Generator().manual_seed(seed), SHAPE, crop=False)
    before = x.clone()
    view = draw.apply(x)
    assert torch.equal(x, before)
    torch.testing.assert_close(view.double(), slow_strong_view(x, draw), atol=2e-5, rtol=0)
    assert 0 <= view.min() <= view.max() <= 1 + 1e-6


def test_images_of_one_channel_have_no_colours() -> None:
    shape = torch.Size((16, 1, 9, 8))
    x = pictures(shape)
    draw = StrongView.draw(Generator().manual_seed(1), shape, crop=True)
    view = draw.apply(x)
    assert view.shape == shape
    assert view.isfinite().all()


def crop_by_pillow(channel: np.ndarray, box: tuple[float, ...], size: tuple[int, int]) -> Tensor:
    image = Image.fromarray(channel.astype(np.float32))
    resized = image.resize(size, Image.Resampling.BILINEAR, box=box)
    return torch.from_numpy(np.array(resized))


@pytest.mark.parametrize("shape", [(24, 3, 20, 16), (24, 1, 32, 32), (24, 3, 8, 40)])
def test_resized_crops_against_pillow(shape: tuple[int, ...]) -> None:
    x = pictures(torch.Size(shape))
    height, width = shape[2:]
    boxes = Boxes.draw_resized_crops(Generator().manual_seed(0), len(x), height, width)
    view = boxes.apply(x)
    for n in range(len(x)):
        (left, top), (w, h) = boxes.corner_N2[n].tolist(), boxes.size_N2[n].tolist()
        assert left == int(left)
        assert 0 <= left <= width - w
        assert top == int(top)
        assert 0 <= top <= height - h
        for channel, ours in zip(x[n].numpy(), view[n], strict=True):
            cropped = channel[int(top) : int(top + h), int(left) : int(left + w)]
            theirs = crop_by_pillow(cropped, (0, 0, w, h), (width, height))
            torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)


def test_resized_crops_are_of_a_fifth_to_the_whole_and_not_too_narrow() -> None:
    boxes = Boxes.draw_resized_crops(Generator().manual_seed(0), 4000, 224, 224)
    w, h = boxes.size_N2.T
    area, ratio = w * h / 224**2, w / h
    assert 0.19 < float(area.min()) < 0.21
    assert float(area.max()) <= 1
    assert 0.74 < float(ratio.min()) < 0.77
    assert 1.30 < float(ratio.max()) < 1.35
    # Ratios are drawn on a logarithmic scale, so wide and high ones are as frequent.
    assert abs(float(ratio.log().mean())) < 0.02
    room = 224 - w
    inside = boxes.corner_N2[:, 0][room > 50] / room[room > 50]
    assert abs(float(inside.mean()) - 0.5) < 0.03


def test_where_no_box_fits_the_middle_is_taken() -> None:
    """An image of 8×400: no box between 3:4 and 4:3 has a fifth of its area."""
    boxes = Boxes.draw_resized_crops(Generator().manual_seed(0), 5, 8, 400)
    assert boxes.size_N2.tolist() == [[11, 8]] * 5
    assert boxes.corner_N2.tolist() == [[194, 0]] * 5


def test_weak_views_flip_half_of_the_images() -> None:
    shape = torch.Size((400, 3, 4, 6))
    x = pictures(shape)
    draw = WeakView.draw(Generator().manual_seed(0), shape, crop=False)
    view = draw.apply(x)
    flipped = [torch.equal(one, other.flip(2)) for one, other in zip(view, x, strict=True)]
    kept = [torch.equal(one, other) for one, other in zip(view, x, strict=True)]
    assert all(a != b for a, b in zip(flipped, kept, strict=True))
    assert 160 < sum(flipped) < 240


def test_weak_views_of_natural_images_against_pillow() -> None:
    """Resized to 8/7, which is 256 for 224, and cropped to the image's size."""
    shape = torch.Size((12, 3, 28, 14))
    x = pictures(shape)
    draw = WeakView.draw(Generator().manual_seed(3), shape, crop=True)
    view = draw.apply(x)
    seen = set()
    for n in range(len(x)):
        left, top = (draw.boxes.corner_N2[n] * 8 / 7).round().int().tolist()
        seen.add((left, top))
        assert 0 <= left <= 2
        assert 0 <= top <= 4
        for channel, ours in zip(x[n].numpy(), view[n], strict=True):
            resized = crop_by_pillow(channel, (0, 0, 14, 28), (16, 32))
            theirs = resized[top : top + 28, left : left + 14]
            theirs = theirs.flip(1) if draw.flip_N[n] else theirs
            torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)
    assert len(seen) > 4


def test_draws_are_as_frequent_and_as_large_as_they_should() -> None:
    count = 4000
    draw = StrongView.draw(Generator().manual_seed(0), torch.Size((count, 3, 8, 8)), crop=False)
    for chosen, probability in (
        (draw.jittered_N, 0.8),
        (draw.grayed_N, 0.2),
        (draw.blurred_N, 0.5),
        (draw.flip_N, 0.5),
    ):
        deviation = math.sqrt(probability * (1 - probability) / count)
        assert abs(float(chosen.float().mean()) - probability) < 5 * deviation
    for factors, (low, high) in zip(
        draw.factors_4N, [(0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1)], strict=True
    ):
        reach = high - low
        assert low <= float(factors.min()) < low + reach / 100
        assert high - reach / 100 < float(factors.max()) <= high
    assert 0.1 <= float(draw.sigma_N.min()) < 0.11
    assert 1.99 < float(draw.sigma_N.max()) <= 2
    orders, counts = draw.order_N4.unique(dim=0, return_counts=True)
    assert len(orders) == 24
    assert min(counts.tolist()) > count / 24 * 0.6


def test_one_seed_gives_one_view_and_images_differ() -> None:
    x = pictures()[:1].expand(8, -1, -1, -1)
    draws = [StrongView.draw(Generator().manual_seed(5), x.shape, crop=True) for _ in range(2)]
    one, other = (draw.apply(x) for draw in draws)
    assert torch.equal(one, other)
    assert len({tuple(view.flatten().tolist()) for view in one}) == 8
