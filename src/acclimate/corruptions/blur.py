"""Blur: of the lens (defocus, Gaussian), of frosted glass, of motion, and of zooming in."""

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from acclimate.corruptions import filters
from acclimate.corruptions.pixels import Pixels, truncate

__all__ = ["defocus_blur", "gaussian_blur", "glass_blur", "motion_blur", "zoom_blur"]


def gaussian_blur(images_NHWC: Pixels, sigma: float) -> Pixels:
    """Blur with a Gaussian."""
    blurred = images_NHWC.astype(np.float32)
    for image in blurred:
        image[...] = filters.gaussian_blur(image, sigma)
    return truncate(blurred)


def defocus_blur(images_NHWC: Pixels, radius: float, sigma: float) -> Pixels:
    """Blur with a disk."""
    kernel = filters.disk_kernel(radius, sigma)
    blurred = images_NHWC.astype(np.float32)
    for image in blurred:
        image[...] = cv2.filter2D(image, -1, kernel)
    return truncate(blurred)


def motion_blur(
    images_NHWC: Pixels, generators: Sequence[Generator], radius: float, sigma: float
) -> Pixels:
    """Blur along a line of a random angle, at most 45 degrees from the horizontal."""
    blurred = images_NHWC.astype(np.float32)
    for image, generator in zip(blurred, generators, strict=True):
        image[...] = filters.motion_blur(image, radius, sigma, generator.uniform(-45, 45))
    return truncate(blurred)


def zoom_blur(images_NHWC: Pixels, stop: float, step: float) -> Pixels:
    """Average the image with enlarged copies of its centre."""
    height, width = images_NHWC.shape[1:3]
    factors = np.arange(1, stop, step).tolist()
    images = images_NHWC.astype(np.float32)
    blurred = images.copy()
    # A grid of a large image takes as much memory as the image: only one at a time.
    for factor in factors:
        grid = filters.ZoomGrid(height, width, factor)
        for image, total in zip(images, blurred, strict=True):
            total += grid.zoom(image)
    blurred /= len(factors) + 1
    return truncate(blurred)


def glass_blur(
    images_NHWC: Pixels, generators: Sequence[Generator], sigma: float, reach: int, sweeps: int
) -> Pixels:
    """Blur, replace each pixel by one nearby, and blur again."""
    shape = images_NHWC.shape
    pixels_PC = gaussian_blur(images_NHWC, sigma).reshape(-1, 3)
    rows, columns = (max(0, size - 2 * reach) for size in shape[1:3])
    for _ in range(sweeps):
        shifts_N = [
            generator.integers(-reach, reach, (rows, columns, 2), np.int8)
            for generator in generators
        ]
        source_P = _sweep_sources(np.stack(shifts_N), shape[1], shape[2], reach)
        pixels_PC = pixels_PC.take(source_P, 0)
    return gaussian_blur(pixels_PC.reshape(shape), sigma)


def _sweep_sources(
    shifts: NDArray[np.int8], height: int, width: int, reach: int
) -> NDArray[np.int64]:
    """Return for each pixel the one whose value it has after one sweep over the images.

    The original goes through the pixels from the last to the first and means to exchange each
    with a neighbour, but exchanges views of one array, which only copies the neighbour. A
    neighbour that comes later in the image was itself replaced before; then the value is the one
    of its own source, and so on. Each round here goes twice as far along these chains.

    Args:
        shifts: rows and columns to the neighbour, for the inner pixels,
            shape ``(N, height - 2 * reach, width - 2 * reach, 2)``.
        height: rows of an image.
        width: columns of an image.
        reach: largest shift.

    Returns:
        Indices into the flattened images, shape ``(N * height * width,)``.
    """
    n, rows, columns, _ = shifts.shape
    itself_P = np.arange(n * height * width)
    # The border is one pixel wider above and on the left, as in the original's loops.
    inner = np.s_[:, reach + 1 : reach + 1 + rows, reach + 1 : reach + 1 + columns]
    source_NHW = itself_P.reshape(n, height, width).copy()
    source_NHW[inner] += shifts[..., 0].astype(np.int64) * width + shifts[..., 1]
    source_P: NDArray[np.int64] = source_NHW.reshape(-1)
    is_inner_NHW = np.zeros((n, height, width), bool)
    is_inner_NHW[inner] = True
    replaced_before_P = is_inner_NHW.reshape(-1)[source_P] & (source_P > itself_P)
    chained = np.flatnonzero(replaced_before_P)
    while len(chained):
        via = source_P[chained]
        source_P[chained] = source_P[via]
        goes_on = replaced_before_P[via]
        replaced_before_P[chained] = goes_on
        chained = chained[goes_on]
    return source_P
