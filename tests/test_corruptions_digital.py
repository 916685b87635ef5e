"""Colours against colorsys, files against Pillow, and elastic maps against SciPy."""

import colorsys
from io import BytesIO

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from acclimate.corruptions import corrupt, digital

Array = NDArray[np.float64]
SEVERITIES = range(1, 6)


def pixels(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    image = default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    # Pixels without a hue or without any light, and the ends of the range.
    special = [(0, 0, 0), (255, 255, 255), (90, 90, 90), (255, 0, 0), (0, 200, 200), (1, 0, 0)]
    image.reshape(-1, 3)[: len(special)] = special[: height * width]
    return image


def assert_truncated(ours: NDArray[np.uint8], exact: Array, slack: float) -> None:
    """Compare with a value before it loses its fraction, known but for ``slack``."""
    low, high = (np.floor(np.clip(exact + shift, 0, 255)) for shift in (-slack, slack))
    assert (low <= ours).all()
    assert (ours <= high).all()


@pytest.mark.parametrize(
    ("constants", "added"),
    [("cifar", (0.05, 0.1, 0.15, 0.2, 0.3)), ("imagenet", (0.1, 0.2, 0.3, 0.4, 0.5))],
)
def test_brightness_adds_to_the_value_of_hsv(constants: str, added: tuple[float, ...]) -> None:
    image = pixels(17, 13)
    for severity, more in zip(SEVERITIES, added, strict=True):
        ours = corrupt(image, "brightness", severity, constants=constants)
        exact = [
            colorsys.hsv_to_rgb(h, s, min(v + more, 1))
            for h, s, v in (colorsys.rgb_to_hsv(*pixel / 255) for pixel in image.reshape(-1, 3))
        ]
        assert_truncated(ours, 255 * np.reshape(exact, image.shape), 1e-9)


@pytest.mark.parametrize(
    ("constants", "table"),
    [
        ("cifar", ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
        ("imagenet", ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2))),
    ],
)
def test_saturate_scales_the_saturation_of_hsv(
    constants: str, table: tuple[tuple[float, float], ...]
) -> None:
    image = pixels(17, 13)
    for severity, (factor, more) in zip(SEVERITIES, table, strict=True):
        ours = corrupt(image, "saturate", severity, constants=constants)
        exact = [
            colorsys.hsv_to_rgb(h, min(s * factor + more, 1), v)
            for h, s, v in (colorsys.rgb_to_hsv(*pixel / 255) for pixel in image.reshape(-1, 3))
        ]
        assert_truncated(ours, 255 * np.reshape(exact, image.shape), 1e-3)


@pytest.mark.parametrize(
    ("constants", "factors"),
    [("cifar", (0.75, 0.5, 0.4, 0.3, 0.15)), ("imagenet", (0.4, 0.3, 0.2, 0.1, 0.05))],
)
def test_contrast_shrinks_the_distance_to_each_channels_mean(
    constants: str, factors: tuple[float, ...]
) -> None:
    image = pixels(11, 30)
    for severity, factor in zip(SEVERITIES, factors, strict=True):
        ours = corrupt(image, "contrast", severity, constants=constants)
        for channel in range(3):
            values = image[..., channel].tolist()
            mean = sum(map(sum, values)) / (11 * 30)
            exact = [[mean + factor * (value - mean) for value in row] for row in values]
            assert_truncated(ours[..., channel], np.array(exact), 1e-4)


def test_contrast_takes_the_mean_of_each_image() -> None:
    dark, light = np.zeros((4, 4, 3), np.uint8), np.full((4, 4, 3), 200, np.uint8)
    ours = corrupt(np.stack([dark, light]), "contrast", 5)
    assert ours[0].max() == 0
    assert ours[1].min() >= 199


@pytest.mark.parametrize(
    ("constants", "qualities"), [("cifar", (80, 65, 58, 50, 40)), ("imagenet", (25, 18, 15, 10, 7))]
)
@pytest.mark.parametrize("size", [(32, 32), (13, 40), (1, 1)])
def test_jpeg_compression_is_pillows(
    size: tuple[int, int], constants: str, qualities: tuple[int, ...]
) -> None:
    image = pixels(*size)
    for severity, quality in zip(SEVERITIES, qualities, strict=True):
        file = BytesIO()
        Image.fromarray(image).save(file, format="JPEG", quality=quality)
        ours = corrupt(image, "jpeg_compression", severity, constants=constants)
        np.testing.assert_array_equal(ours, np.asarray(Image.open(file)))


def test_jpeg_compression_takes_images_that_pillow_thinks_are_attacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = pixels(32, 32)
    expected = corrupt(image, "jpeg_compression", 5)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    np.testing.assert_array_equal(corrupt(image, "jpeg_compression", 5), expected)


@pytest.mark.parametrize(
    ("constants", "scales"),
    [("cifar", (0.95, 0.9, 0.85, 0.75, 0.65)), ("imagenet", (0.6, 0.5, 0.4, 0.3, 0.25))],
)
@pytest.mark.parametrize("size", [(32, 32), (13, 40), (224, 224), (1, 3)])
def test_pixelate_is_pillows(
    size: tuple[int, int], constants: str, scales: tuple[float, ...]
) -> None:
    height, width = size
    image = pixels(height, width)
    for severity, scale in zip(SEVERITIES, scales, strict=True):
        small = (max(1, int(width * scale)), max(1, int(height * scale)))
        expected = Image.fromarray(image).resize(small, Image.Resampling.BOX)
        expected = expected.resize((width, height), Image.Resampling.BOX)
        ours = corrupt(image, "pixelate", severity, constants=constants)
        np.testing.assert_array_equal(ours, np.asarray(expected))


def sampled(image: Array, rows: Array, columns: Array, mode: str) -> Array:
    """Values at places between the pixels, interpolated by SciPy."""
    return np.stack(
        [
            ndimage.map_coordinates(image[..., channel], (rows, columns), order=1, mode=mode)
            for channel in range(3)
        ],
        -1,
    )


def stretched(image: Array, seed: int, amplitude: float, sigma: float, reach: float) -> Array:
    """The original's steps: three points of a square move at random, then every pixel a little."""
    generator = default_rng(seed)
    height, width = image.shape[:2]
    centre, arm = np.array([height // 2, width // 2]), min(height, width) // 3
    # The original writes rows first where OpenCV wants columns first.
    points = centre + arm * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = points + generator.uniform(-reach, reach, (3, 2))
    affine = np.linalg.solve(np.column_stack([points, np.ones(3)]), moved).T
    rows, columns = np.indices((height, width)).astype(float)
    backwards = np.linalg.inv(np.vstack([affine, [0, 0, 1]]))
    from_columns, from_rows = (
        backwards[axis, 0] * columns + backwards[axis, 1] * rows + backwards[axis, 2]
        for axis in range(2)
    )
    image = sampled(image, from_rows, from_columns, "mirror")
    if not amplitude:
        return image
    field = generator.random((2, height, width), np.float32).astype(float) * 2 - 1
    across, down = (
        amplitude * ndimage.gaussian_filter(axis, sigma, mode="reflect", truncate=3)
        for axis in field
    )
    return sampled(image, rows + down, columns + across, "reflect")


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ((32, 32), (0, 0, 32 * 0.08)),
        ((32, 32), (32 * 0.05, 32 * 0.2, 32 * 0.07)),
        ((32, 32), (32 * 0.1, 32 * 0.03, 32 * 0.03)),
        ((21, 40), (32 * 0.08, 32 * 0.06, 32 * 0.06)),
        ((32, 32), (300, 3, 1)),  # so far that the filter's last samples count
        ((60, 60), (244 * 2, 244 * 0.7, 244 * 0.1)),
        ((60, 60), (244 * 0.12, 244 * 0.01, 244 * 0.02)),
    ],
)
def test_elastic_transform_equals_scipy(
    size: tuple[int, int], parameters: tuple[float, float, float]
) -> None:
    rows, columns = np.indices(size)
    waves = [np.sin(rows / 9 + columns / (11 + channel)) for channel in range(3)]
    image = (128 + 100 * np.stack(waves, -1)).astype(np.uint8)
    for seed in range(4):
        ours = digital.elastic_transform(image[None], [default_rng(seed)], *parameters)[0]
        exact = stretched(image.astype(float), seed, *parameters)
        # OpenCV may round places to a 32nd of a pixel; levels change by up to 15 a pixel here.
        assert abs(ours + 0.5 - exact).max() < 1.6
        assert abs(exact - image).mean() > 3
