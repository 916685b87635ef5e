"""Weather: snow, frost on the lens, fog, and spatters of water or mud."""

from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files

import cv2
import numpy as np
from numpy.random import Generator

from acclimate.corruptions import filters
from acclimate.corruptions.pixels import Floats, Pixels, truncate

__all__ = ["fog", "frost", "snow", "spatter"]

# The original's third photograph has the pixels of the second.
_FROST = ("frost1.png", "frost2.png", "frost2.png", "frost4.jpg", "frost5.jpg")
# The side of the largest map of fog, which takes 128 MiB.
_LARGEST_MAP = 4096
_WATER = np.array([175, 238, 238], np.float32)
_MUD = np.array([63, 42, 20], np.float32)


def snow(
    images_NHWC: Pixels,
    generators: Sequence[Generator],
    mean: float,
    deviation: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    kept: float,
) -> Pixels:
    """Whiten the image and let flakes fall over it."""
    height, width = images_NHWC.shape[1:3]
    grid = filters.ZoomGrid(height, width, zoom)
    snowy = images_NHWC.astype(np.float32)
    for image, generator in zip(snowy, generators, strict=True):
        flakes = generator.standard_normal((height, width), np.float32)
        flakes *= np.float32(deviation)
        flakes += np.float32(mean)
        flakes = grid.zoom(flakes)
        flakes[flakes < threshold] = 0
        falling = truncate(flakes * 255).astype(np.float32)
        angle = generator.uniform(-135, -45)
        layer = truncate(filters.motion_blur(falling, radius, sigma, angle)).astype(np.float32)
        gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).reshape(height, width, 1)
        white = np.maximum(image, gray * 1.5 + 127.5)
        image *= np.float32(kept)
        image += white * np.float32(1 - kept)
        image += (layer + layer[::-1, ::-1])[..., None]
    return truncate(snowy)


def frost(
    images_NHWC: Pixels,
    generators: Sequence[Generator],
    weight: float,
    frost_weight: float,
    scale: float,
) -> Pixels:
    """Mix the image with a part of a photograph of frost."""
    height, width = images_NHWC.shape[1:3]
    frosty = images_NHWC * np.float64(weight)
    for image, generator in zip(frosty, generators, strict=True):
        image += _part_of_photograph(generator, scale, height, width) * frost_weight
    return truncate(frosty)


def _part_of_photograph(generator: Generator, scale: float, height: int, width: int) -> Pixels:
    """Return a random part of a random photograph, which is scaled as needed to hold it."""
    which, down, right = generator.random(3).tolist()
    name = _FROST[int(which * len(_FROST))]
    photograph = _photograph(name, scale)
    rows, columns = photograph.shape[:2]
    if height < rows and width < columns:
        top, left = int(down * (rows - height)), int(right * (columns - width))
        return photograph[top : top + height, left : left + width]
    # Cut first: a long and narrow image would need a huge photograph.
    photograph = _photograph(name, 1)
    rows, columns = photograph.shape[:2]
    enlarged = max(height / rows, width / columns, scale)
    part_rows, part_columns = (max(1, int(size / enlarged)) for size in (height, width))
    top, left = int(down * (rows - part_rows + 1)), int(right * (columns - part_columns + 1))
    part = photograph[top : top + part_rows, left : left + part_columns]
    return np.asarray(cv2.resize(part, (width, height)), np.uint8)


@lru_cache
def _photograph(name: str, scale: float) -> Pixels:
    """Return a photograph, scaled."""
    file = files("acclimate.corruptions") / "frost" / name
    photograph = cv2.imdecode(np.frombuffer(file.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
    assert photograph is not None
    if scale != 1:
        photograph = cv2.resize(photograph, None, fx=scale, fy=scale)
    return np.ascontiguousarray(photograph[..., ::-1], np.uint8)


def fog(
    images_NHWC: Pixels, generators: Sequence[Generator], density: float, decay: float
) -> Pixels:
    """Add fog and darken the image so that its brightest value stays."""
    height, width = images_NHWC.shape[1:3]
    fog_NMM = _plasma(generators, min(max(height, width), _LARGEST_MAP), decay)
    side = fog_NMM.shape[1]
    if side < max(height, width):
        beyond = [(0, 0), (0, max(0, height - side)), (0, max(0, width - side))]
        fog_NMM = np.pad(fog_NMM, beyond, mode="wrap")
    foggy = images_NHWC.astype(np.float32)
    foggy += np.float32(255 * density) * fog_NMM[:, :height, :width, None]
    brightest = images_NHWC.max((1, 2, 3), keepdims=True) / np.float32(255)
    foggy *= brightest / (brightest + np.float32(density))
    return truncate(foggy)


def _plasma(generators: Sequence[Generator], size: int, decay: float) -> Floats:
    """Return random height maps in [0, 1] by the diamond-square algorithm, shape (N, M, M).

    M is the power of two from ``size`` upwards, and the maps wrap around at their borders. Each
    point is the mean of four known ones plus noise, whose amplitude falls by ``decay`` squared
    from one scale to the next.
    """
    side = max(2, 1 << (size - 1).bit_length())
    noise = np.empty((len(generators), side, side), np.float32)
    for into, generator in zip(noise, generators, strict=True):
        generator.random(dtype=np.float32, out=into)
    noise *= 2
    noise -= 1
    heights = np.zeros_like(noise)
    step, amplitude = side, 1.0
    while step >= 2:
        corners = slice(0, side, step)
        centres = slice(step // 2, side, step)

        def fill(rows: slice, columns: slice, total: Floats, amplitude: float = amplitude) -> None:
            heights[:, rows, columns] = total / 4 + noise[:, rows, columns] * np.float32(amplitude)

        corner = heights[:, corners, corners]
        pair = corner + np.roll(corner, -1, 1)
        fill(centres, centres, pair + np.roll(pair, -1, 2))
        centre = heights[:, centres, centres]
        across = corner + np.roll(corner, -1, 2) + centre + np.roll(centre, 1, 1)
        fill(corners, centres, across)
        down = corner + np.roll(corner, -1, 1) + centre + np.roll(centre, 1, 2)
        fill(centres, corners, down)
        step //= 2
        amplitude /= decay**2
    heights -= heights.min((1, 2), keepdims=True)
    heights /= heights.max((1, 2), keepdims=True)
    return heights


def spatter(
    images_NHWC: Pixels,
    generators: Sequence[Generator],
    mean: float,
    deviation: float,
    sigma: float,
    threshold: float,
    strength: float,
    is_mud: bool,
) -> Pixels:
    """Spatter water, which shines, or mud, which covers."""
    height, width = images_NHWC.shape[1:3]
    spattered = images_NHWC.astype(np.float32)
    for image, generator in zip(spattered, generators, strict=True):
        liquid = generator.standard_normal((height, width), np.float32)
        liquid = filters.gaussian_blur(liquid * np.float32(deviation) + np.float32(mean), sigma)
        if is_mud:
            mud = filters.gaussian_blur((liquid > threshold).astype(np.float32), strength)
            mud[mud < 0.8] = 0
            image += mud[..., None] * (_MUD - image)
        else:
            liquid[liquid < threshold] = 0
            water = _water(truncate(liquid * 255))
            image += (water * np.float32(strength))[..., None] * _WATER
    return truncate(spattered)


def _water(liquid_HW: Pixels) -> Floats:
    """Return how strongly each pixel shines, at most 1; 0 everywhere if there is no liquid."""
    edges = cv2.Canny(liquid_HW, 50, 150)
    distance = cv2.distanceTransform(255 - edges, cv2.DIST_L2, 5)
    relief = cv2.equalizeHist(cv2.blur(np.minimum(distance, 20), (3, 3)).astype(np.uint8))
    light_from_above = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float32)
    lit = cv2.blur(cv2.filter2D(relief, cv2.CV_8U, light_from_above), (3, 3))
    shine = np.asarray(lit, np.float32) * liquid_HW
    return np.asarray(shine / max(shine.max(), 1), np.float32)
