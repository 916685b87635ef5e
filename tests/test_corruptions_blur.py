"""Blurs against SciPy's filters, loops over pixels, and the original's own way of shuffling."""

import math

import numpy as np
import pytest
from numpy.random import Generator, default_rng
from numpy.typing import NDArray
from scipy import ndimage

from acclimate.corruptions import blur, corrupt, filters

Array = NDArray[np.float64]
SIZES = [(32, 32), (17, 24), (3, 5), (1, 1), (1, 9)]


def pixels(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def smooth(height: int, width: int) -> NDArray[np.uint8]:
    """Waves of at most 6 levels a pixel: OpenCV may round places to a 32nd of a pixel."""
    rows, columns = np.indices((height, width))
    waves = [np.sin(rows / 20 + columns / (30 + 10 * channel) + channel) for channel in range(3)]
    return (128 + 100 * np.stack(waves, -1)).astype(np.uint8)


def assert_truncated(ours: NDArray[np.uint8], exact: Array, slack: float = 2e-3) -> None:
    """Compare with a value before it loses its fraction, known but for ``slack``."""
    low, high = (np.floor(np.clip(exact + shift, 0, 255)) for shift in (-slack, slack))
    assert (low <= ours).all()
    assert (ours <= high).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("constants", "sigmas"), [("cifar", (0.4, 0.6, 0.7, 0.8, 1)), ("imagenet", (1, 2, 3, 4, 6))]
)
def test_gaussian_blur_equals_scipy(
    size: tuple[int, int], constants: str, sigmas: tuple[float, ...]
) -> None:
    image = pixels(*size)
    for severity, sigma in enumerate(sigmas, 1):
        ours = corrupt(image, "gaussian_blur", severity, constants=constants)
        exact = ndimage.gaussian_filter(image.astype(float), (sigma, sigma, 0), mode="nearest")
        assert_truncated(ours, exact)


def disk(radius: float, sigma: float) -> Array:
    """The part of the plane within a radius, its edge smoothed by a Gaussian of few samples."""
    reach = int(max(8, radius))
    inside = [
        [float(math.hypot(row, column) <= radius) for column in range(-reach, reach + 1)]
        for row in range(-reach, reach + 1)
    ]
    samples = 1 if radius <= 8 else 2
    edge = np.array([math.exp(-((i / sigma) ** 2) / 2) for i in range(-samples, samples + 1)])
    edge /= edge.sum()
    kernel = np.array(inside) / np.sum(inside)
    for axis in (0, 1):
        kernel = ndimage.convolve1d(kernel, edge, axis, mode="mirror")
    return kernel


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("constants", "disks"),
    [
        ("cifar", ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
        ("imagenet", ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))),
    ],
)
def test_defocus_blur_equals_a_convolution_with_a_disk(
    size: tuple[int, int], constants: str, disks: tuple[tuple[float, float], ...]
) -> None:
    image = pixels(*size)
    for severity, (radius, sigma) in enumerate(disks, 1):
        ours = corrupt(image, "defocus_blur", severity, constants=constants)
        kernel = disk(radius, sigma)[..., None]
        assert_truncated(ours, ndimage.correlate(image.astype(float), kernel, mode="mirror"))


def streaked(image: Array, radius: int, sigma: float, degrees: float) -> Array:
    """Every pixel as the weighted sum of those along a ray, the border repeated beyond itself."""
    height, width = image.shape[:2]
    weights = [math.exp(-(step**2) / (2 * sigma**2)) for step in range(2 * radius + 1)]
    angle = math.radians(degrees)
    result = np.zeros_like(image)
    for row in range(height):
        for column in range(width):
            for step, weight in enumerate(weights):
                y = row + math.ceil(step * math.sin(angle) - 0.5)
                x = column + math.ceil(step * math.cos(angle) - 0.5)
                y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
                result[row, column] += weight / sum(weights) * image[y, x]
    return result


@pytest.mark.parametrize("degrees", [-135.0, -90.0, -62.3, -45.0, -7.7, 0.0, 31.0, 45.0])
@pytest.mark.parametrize("size", [(9, 12), (2, 3), (1, 1)])
def test_motion_blur_equals_a_loop(size: tuple[int, int], degrees: float) -> None:
    image = pixels(*size).astype(float)
    ours = filters.motion_blur(image.astype(np.float32), 6, 2.5, degrees)
    np.testing.assert_allclose(ours, streaked(image, 6, 2.5, degrees), atol=1e-3)


def test_motion_blur_draws_an_angle_up_to_45_degrees() -> None:
    images = np.stack([pixels(8, 9, seed) for seed in range(6)])
    ours = blur.motion_blur(images, [default_rng(seed) for seed in range(6)], 9, 2.5)
    for seed, image in enumerate(images):
        angle = default_rng(seed).uniform(-45, 45)
        assert_truncated(ours[seed], streaked(image.astype(float), 9, 2.5, angle))


def test_motion_blur_of_a_point_tells_its_angle() -> None:
    image = np.zeros((81, 81, 3), np.uint8)
    image[40, 40] = 255
    angles = []
    for seed in range(60):
        streak = corrupt(image, "motion_blur", 5, constants="imagenet", seed=seed)[..., 0]
        # The point shows in the pixels whose ray meets it.
        rows, columns = ((streak * (40.0 - axis)).sum() for axis in np.indices(streak.shape))
        angles.append(math.degrees(math.atan2(rows, columns)))
    assert -46 < min(angles) < -38
    assert 38 < max(angles) < 46
    assert len(set(angles)) > 50


def zoomed(image: Array, factor: float) -> Array:
    """The centre of an image, enlarged by SciPy and cut to the image's size."""
    sizes = image.shape[:2]
    crops = [math.ceil(size / factor) for size in sizes]
    centre = tuple(
        slice((size - crop) // 2, (size - crop) // 2 + crop)
        for size, crop in zip(sizes, crops, strict=True)
    )
    enlarged = ndimage.zoom(image[centre], (factor, factor, 1), order=1)
    trims = [(have - want) // 2 for have, want in zip(enlarged.shape, sizes, strict=False)]
    return enlarged[trims[0] : trims[0] + sizes[0], trims[1] : trims[1] + sizes[1]]


@pytest.mark.parametrize("size", [(32, 32), (17, 40), (224, 224), (1, 2)])
def test_zoom_equals_scipy(size: tuple[int, int]) -> None:
    image = smooth(*size)
    for factor in [*np.arange(1, 1.31, 0.01).tolist(), 1.75, 2.0, 2.25, 2.5, 3, 4, 4.5]:
        ours = filters.ZoomGrid(*size, factor).zoom(image.astype(np.float32))
        np.testing.assert_allclose(ours, zoomed(image.astype(float), factor), atol=0.15)


def test_zoom_leaves_out_the_black_line_scipy_has_at_a_few_sizes() -> None:
    image = smooth(36, 36)
    theirs = zoomed(image.astype(float), 1.2)
    assert not theirs[-1].any()
    ours = filters.ZoomGrid(36, 36, 1.2).zoom(image.astype(np.float32))
    np.testing.assert_allclose(ours[:-1, :-1], theirs[:-1, :-1], atol=0.15)
    assert abs(ours[-1] - ours[-2]).max() < 6


@pytest.mark.parametrize(
    ("constants", "factors"),
    [
        ("cifar", [(1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)]),
        ("imagenet", [(1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)]),
    ],
)
@pytest.mark.parametrize("size", [(32, 32), (40, 27)])
def test_zoom_blur_is_the_mean_of_zooms(
    size: tuple[int, int], constants: str, factors: list[tuple[float, float]]
) -> None:
    image = smooth(*size)
    for severity, (stop, step) in enumerate(factors, 1):
        ours = corrupt(image, "zoom_blur", severity, constants=constants)
        # The image itself counts once more than its enlargement by 1.
        copies = [image, *(zoomed(image.astype(float), f) for f in np.arange(1, stop, step))]
        assert_truncated(ours, np.mean(copies, 0), slack=0.15)


def shuffled(
    image: NDArray[np.uint8], generator: Generator, reach: int, sweeps: int
) -> NDArray[np.uint8]:
    """The original's loops, whose exchange of two views copies one onto the other."""
    image = image.copy()
    height, width = image.shape[:2]
    for _ in range(sweeps):
        shape = (max(0, height - 2 * reach), max(0, width - 2 * reach), 2)
        shifts = generator.integers(-reach, reach, shape, np.int8)
        for h in range(height - reach, reach, -1):
            for w in range(width - reach, reach, -1):
                dy, dx = shifts[h - reach - 1, w - reach - 1]
                image[h, w], image[h + dy, w + dx] = image[h + dy, w + dx], image[h, w]
    return image


@pytest.mark.parametrize("reach", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(32, 32), (9, 23), (3, 5), (9, 9), (8, 9), (1, 1)])
def test_glass_blur_shuffles_as_the_original(size: tuple[int, int], reach: int) -> None:
    images = np.stack([pixels(*size, seed) for seed in range(3)])
    # So small a sigma does not blur.
    ours = blur.glass_blur(images, [default_rng(seed) for seed in range(3)], 0.05, reach, 3)
    for seed, image in enumerate(images):
        np.testing.assert_array_equal(ours[seed], shuffled(image, default_rng(seed), reach, 3))
    if min(size) > 2 * reach:
        assert (ours != images).any()


@pytest.mark.parametrize("sigma", [0.25, 0.4, 0.7, 1.5])
def test_glass_blur_blurs_before_and_after(sigma: float) -> None:
    # Nothing is shuffled in so small an image.
    image = pixels(8, 8)
    ours = blur.glass_blur(image[None], [default_rng(0)], sigma, 4, 2)[0]
    sigmas = (sigma, sigma, 0)
    once = np.floor(ndimage.gaussian_filter(image.astype(float), sigmas, mode="nearest"))
    twice = ndimage.gaussian_filter(once, sigmas, mode="nearest")
    assert_truncated(ours, twice)
    assert (np.floor(twice) != once).any()
