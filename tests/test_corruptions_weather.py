"""Weather against slow versions of it that are given the same noise."""

import math
from collections.abc import Iterator
from importlib.resources import files

import cv2
import numpy as np
import pytest
from numpy.random import default_rng
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from acclimate.corruptions import corrupt, weather

Array = NDArray[np.float64]


def pixels(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return default_rng(seed).integers(0, 200, (height, width, 3), np.uint8)


def assert_truncated(ours: NDArray[np.uint8], exact: Array, slack: float = 5e-3) -> None:
    """Compare with a value before it loses its fraction, known but for ``slack``."""
    low, high = (np.floor(np.clip(exact + shift, 0, 255)) for shift in (-slack, slack))
    assert (low <= ours).all()
    assert (ours <= high).all()


def diamond_square(noise: Array, decay: float) -> Array:
    """One point after the other: the mean of four known ones around it, and noise."""
    side = len(noise)
    heights = np.zeros((side, side))
    step, amplitude = side, 1.0
    while step >= 2:
        half = step // 2

        def fill(
            row: int, column: int, around: list[tuple[int, int]], amplitude: float = amplitude
        ) -> None:
            known = [
                heights[(row + down) % side, (column + right) % side] for down, right in around
            ]
            heights[row, column] = sum(known) / 4 + amplitude * noise[row, column]

        cells = [(row, column) for row in range(0, side, step) for column in range(0, side, step)]
        for row, column in cells:
            corners = [(down, right) for down in (-half, half) for right in (-half, half)]
            fill(row + half, column + half, corners)
        for row, column in cells:
            cross = [(-half, 0), (half, 0), (0, -half), (0, half)]
            fill(row, column + half, cross)
            fill(row + half, column, cross)
        step = half
        # Noise and its factor both shrink, in the original.
        amplitude /= decay * decay
    heights -= heights.min()
    return heights / heights.max()


@pytest.mark.parametrize("decay", [3, 2, 1.4])
@pytest.mark.parametrize("size", [(32, 32), (20, 33), (7, 3), (1, 1)])
def test_fog_equals_diamond_square(size: tuple[int, int], decay: float) -> None:
    images = np.stack([pixels(*size, seed) for seed in range(2)])
    ours = weather.fog(images, [default_rng(seed) for seed in range(2)], 1.5, decay)
    side = 2 ** max(1, math.ceil(math.log2(max(size))))
    for seed, image in enumerate(images):
        noise = default_rng(seed).random((side, side), np.float32).astype(float) * 2 - 1
        fog = diamond_square(noise, decay)[: size[0], : size[1], None]
        brightest = image.max() / 255
        exact = (image + 255 * 1.5 * fog) * brightest / (brightest + 1.5)
        assert_truncated(ours[seed], exact)


def test_fog_repeats_on_images_larger_than_its_largest_map(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = np.full((1, 20, 37, 3), 90, np.uint8)
    monkeypatch.setattr(weather, "_LARGEST_MAP", 16)
    foggy = weather.fog(image, [default_rng(0)], 2, 2)[0]
    tile = weather.fog(image[:, :16, :16], [default_rng(0)], 2, 2)[0]
    np.testing.assert_array_equal(foggy, np.tile(tile, (2, 3, 1))[:20, :37])
    assert tile.std() > 5


def photographs(scale: float) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    for name in ("frost1.png", "frost2.png", "frost4.jpg", "frost5.jpg"):
        with (files("acclimate.corruptions") / "frost" / name).open("rb") as file:
            photograph = np.asarray(Image.open(file).convert("RGB"))
        yield name, np.asarray(cv2.resize(photograph, None, fx=scale, fy=scale))


@pytest.mark.parametrize(
    ("constants", "severity", "weight", "frost_weight", "scale"),
    [("cifar", 2, 1, 0.3, 0.2), ("cifar", 5, 0.75, 0.45, 0.2), ("imagenet", 4, 0.65, 0.7, 1)],
)
def test_frost_adds_a_part_of_a_photograph(
    constants: str, severity: int, weight: float, frost_weight: float, scale: float
) -> None:
    """Which part is found by looking for it everywhere."""
    image = np.full((24, 30, 3), 60, np.uint8)
    # Decoders of JPEG may differ by a level, and so does the fraction lost.
    added = {
        name: np.asarray(frost_weight * photograph + weight * 60, np.float32)
        for name, photograph in photographs(scale)
    }
    found: list[str] = []
    places: list[tuple[float, float]] = []
    for seed in range(300 if scale < 1 else 12):
        frosty = corrupt(image, "frost", severity, constants=constants, seed=seed)
        for name, mixed in added.items():
            distance = cv2.matchTemplate(mixed, frosty.astype(np.float32) + 0.5, cv2.TM_SQDIFF)
            best, _, (left, top), _ = cv2.minMaxLoc(distance)
            if best < frosty.size:
                found.append(name)
                rows, columns = mixed.shape[0] - 24, mixed.shape[1] - 30
                assert top < rows
                assert left < columns
                places.append((top / rows, left / columns))
                break
        else:
            pytest.fail(f"the frost of seed {seed} is in no photograph")
    if scale < 1:
        counts = {name: found.count(name) for name in added}
        assert 90 < counts.pop("frost2.png") < 150
        assert all(35 < count < 85 for count in counts.values())
        down, right = np.array(places).T
        for place in (down, right):
            quarters = np.bincount((place * 4).astype(int), minlength=4)
            assert quarters.min() > 45


@pytest.mark.parametrize(("constants", "factor"), [("cifar", 0.45), ("imagenet", 0.75)])
def test_frost_on_an_image_larger_than_the_photographs(constants: str, factor: float) -> None:
    black = np.zeros((700, 1000, 3), np.uint8)
    frosty = corrupt(black, "frost", 5, constants=constants)
    matches = []
    for _, photograph in photographs(1):
        # The largest part of the image's shape is as wide or as high as the photograph.
        rows, columns = photograph.shape[:2]
        part = min(rows / 700, columns / 1000)
        small = cv2.resize(
            frosty, (int(1000 * part), int(700 * part)), interpolation=cv2.INTER_AREA
        )
        mixed = np.asarray(photograph * factor, np.float32)
        distance = cv2.matchTemplate(mixed, small.astype(np.float32), cv2.TM_SQDIFF)
        matches.append(float(distance.min()) / small.size)
    best, second, *_ = sorted(matches)
    assert best < second / 10


def test_frost_on_a_long_image_is_cut_before_it_is_enlarged() -> None:
    long = np.zeros((3, 30_000, 3), np.uint8)
    # Enlarged first, a photograph would take 1.8 GB.
    assert corrupt(long, "frost", 5).std() > 1


def snowed(
    image: NDArray[np.uint8], seed: int, parameters: tuple[float, ...]
) -> tuple[Array, Array]:
    """The original's steps, without its library for the streaks, and the layer of flakes."""
    mean, deviation, zoom, threshold, radius, sigma, kept = parameters
    height, width = image.shape[:2]
    generator = default_rng(seed)
    flakes = generator.standard_normal((height, width), np.float32).astype(float) * deviation + mean
    crop = [math.ceil(size / zoom) for size in (height, width)]
    top, left = ((size - part) // 2 for size, part in zip((height, width), crop, strict=True))
    flakes = ndimage.zoom(flakes[top : top + crop[0], left : left + crop[1]], zoom, order=1)
    trim = [(have - size) // 2 for have, size in zip(flakes.shape, (height, width), strict=True)]
    flakes = flakes[trim[0] : trim[0] + height, trim[1] : trim[1] + width]
    flakes[flakes < threshold] = 0
    flakes = np.floor(flakes.clip(0, 1) * 255)
    angle = math.radians(generator.uniform(-135, -45))
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    layer = np.zeros((height, width))
    for step, weight in zip(steps, weights / weights.sum(), strict=True):
        down, right = (math.ceil(step * side(angle) - 0.5) for side in (math.sin, math.cos))
        rows = (np.arange(height) + down).clip(0, height - 1)
        columns = (np.arange(width) + right).clip(0, width - 1)
        layer += weight * flakes[np.ix_(rows, columns)]
    layer = np.floor(layer + 1e-3)
    gray = image @ np.array([0.299, 0.587, 0.114])
    whitened = np.maximum(image, (gray * 1.5 + 127.5)[..., None])
    return kept * image + (1 - kept) * whitened, layer


@pytest.mark.parametrize(
    "parameters",
    [
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    ],
)
@pytest.mark.parametrize("size", [(32, 32), (20, 45)])
def test_snow(size: tuple[int, int], parameters: tuple[float, ...]) -> None:
    image = pixels(*size)
    for seed in range(3):
        ours = weather.snow(image[None], [default_rng(seed)], *parameters)[0]
        ground, layer = snowed(image, seed, parameters)
        exact = (ground + (layer + np.rot90(layer, 2))[..., None]).clip(0, 255)
        # A flake just at the threshold may fall or not.
        assert np.mean(abs(ours - exact + 0.5) <= 2) > 0.9
        assert abs(ours.mean() + 0.5 - exact.mean()) < 1
        assert layer.max() > 20


# Liquid: mean, deviation, sigma, threshold; strength, whether mud.
SPATTER = {
    ("cifar", 3): (0.65, 0.3, 1, 0.69, 0.5, 0),
    ("imagenet", 1): (0.65, 0.3, 4, 0.69, 0.6, 0),
    ("cifar", 5): (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ("imagenet", 5): (0.67, 0.4, 1, 0.65, 1.5, 1),
}


def liquid(size: tuple[int, int], seed: int, parameters: tuple[float, ...]) -> Array:
    mean, deviation, sigma, *_ = parameters
    drops = default_rng(seed).standard_normal(size, np.float32).astype(float) * deviation + mean
    return np.asarray(ndimage.gaussian_filter(drops, sigma, mode="nearest"))


@pytest.mark.parametrize("which", [("cifar", 5), ("imagenet", 5)])
@pytest.mark.parametrize("size", [(32, 32), (25, 60)])
def test_spatter_of_mud(size: tuple[int, int], which: tuple[str, int]) -> None:
    parameters = SPATTER[which]
    image = pixels(*size)
    for seed in range(3):
        ours = weather.spatter(image[None], [default_rng(seed)], *parameters)[0]
        wet = liquid(size, seed, parameters) > parameters[3]
        mud = ndimage.gaussian_filter(wet.astype(float), parameters[4], mode="nearest")
        mud[mud < 0.8] = 0
        mud = mud[..., None]
        exact = image * (1 - mud) + np.array([63, 42, 20]) * mud
        assert 0.02 < (mud > 0).mean() < 0.9
        agree = (np.floor(exact - 5e-3) <= ours) & (ours <= np.floor(exact + 5e-3))
        assert agree.mean() > 0.99  # a pixel at the threshold may be dry


@pytest.mark.parametrize("which", [("cifar", 3), ("imagenet", 1)])
def test_spatter_of_water_shines_where_there_is_liquid(which: tuple[str, int]) -> None:
    parameters = SPATTER[which]
    size = (64, 48)
    image = np.full((*size, 3), 10, np.uint8)
    wet = False
    for seed in range(3):
        ours = weather.spatter(image[None], [default_rng(seed)], *parameters)[0].astype(int)
        added = ours - image
        dry = liquid(size, seed, parameters) < parameters[3] - 1e-4
        assert not added[dry].any()
        # Pale turquoise: as much blue as green, and less red.
        np.testing.assert_array_equal(added[..., 1], added[..., 2])
        assert abs(added[..., 0] - added[..., 1] * 175 / 238).max() <= 1
        if added.any():
            assert abs(added[..., 1].max() - parameters[4] * 238) <= 1
            wet = True
    assert wet


def test_spatter_leaves_an_image_that_no_drop_falls_on() -> None:
    """The original divides by zero there and makes the image black."""
    image = np.full((3, 4, 3), 77, np.uint8)
    seeds = range(40)
    dry = [seed for seed in seeds if not (liquid((3, 4), seed, (0.62, 0.1, 0.7)) > 0.69).any()]
    assert dry
    for seed in dry:
        ours = weather.spatter(image[None], [default_rng(seed)], 0.62, 0.1, 0.7, 0.7, 0.5, False)
        np.testing.assert_array_equal(ours[0], image)
