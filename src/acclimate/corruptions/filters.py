"""The linear filters below the corruptions: Gaussian, disk, motion, and zoom.

Each takes one image, rows × columns with or without channels, as floats of 32 bits. OpenCV works
on it alone, so that an image comes out the same whatever else is in its batch.
"""

import math
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from acclimate.corruptions.pixels import Floats

__all__ = ["ZoomGrid", "disk_kernel", "gaussian_blur", "gaussian_kernel", "motion_blur"]


def gaussian_blur(
    image: Floats, sigma: float, *, truncate: float = 4.0, border: int = cv2.BORDER_REPLICATE
) -> Floats:
    """Blur with a Gaussian that is cut off at ``truncate`` standard deviations."""
    kernel = gaussian_kernel(sigma, truncate)
    if len(kernel) == 1:
        return image
    blurred = cv2.sepFilter2D(image, -1, kernel, kernel, borderType=border)
    return np.asarray(blurred, np.float32).reshape(image.shape)


@lru_cache(maxsize=64)
def gaussian_kernel(sigma: float, truncate: float) -> NDArray[np.float32]:
    """Return the samples of a Gaussian, with the sum 1."""
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return np.ones(1, np.float32)
    offsets = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (offsets / sigma) ** 2)
    return np.asarray(kernel / kernel.sum(), np.float32)


@lru_cache(maxsize=64)
def disk_kernel(radius: float, sigma: float) -> NDArray[np.float32]:
    """Return a disk with an edge smoothed by a small Gaussian, with the sum 1."""
    reach = max(8, int(radius))
    offsets = np.arange(-reach, reach + 1)
    disk = (offsets[:, None] ** 2 + offsets**2 <= radius**2).astype(np.float32)
    size = (3, 3) if radius <= 8 else (5, 5)
    kernel = np.asarray(cv2.GaussianBlur(disk / disk.sum(), size, sigmaX=sigma), np.float32)
    # Zeros cost OpenCV time, and the tails of the small Gaussian cost it more.
    kernel[kernel < 1e-9] = 0
    margin = int(np.flatnonzero(kernel.any(1))[0])
    inner = slice(margin, len(kernel) - margin)
    return np.ascontiguousarray(kernel[inner, inner])


def motion_blur(image: Floats, radius: float, sigma: float, degrees: float) -> Floats:
    """Blur along a line on one side of each pixel, as ImageMagick does.

    Half a Gaussian of ``2 * radius + 1`` samples lies along the angle, each at the nearest whole
    pixel; beyond the border the edge's pixels repeat.
    """
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-0.5 * (steps / sigma) ** 2)
    weights /= weights.sum()
    angle = math.radians(degrees)
    columns = np.ceil(steps * math.cos(angle) - 0.5).astype(int)
    rows = np.ceil(steps * math.sin(angle) - 0.5).astype(int)
    top, left = max(0, -int(rows.min())), max(0, -int(columns.min()))
    bottom, right = max(0, int(rows.max())), max(0, int(columns.max()))
    padded = cv2.copyMakeBorder(image, top, bottom, left, right, cv2.BORDER_REPLICATE)
    height, width = image.shape[:2]
    blurred = np.zeros_like(image)
    for weight, row, column in zip(
        weights.tolist(), (rows + top).tolist(), (columns + left).tolist(), strict=True
    ):
        window = padded[row : row + height, column : column + width]
        cv2.scaleAdd(window, weight, blurred, blurred)
    return blurred


class ZoomGrid:
    """Where the pixels of a zoomed image come from: its centre enlarged, linearly interpolated.

    The grid is that of ``scipy.ndimage.zoom``: corners fall on corners and the size is rounded. At
    a few sizes SciPy's last row or column is black, as it lies beyond the corner by a rounding
    error; at 32 and 224 pixels it never does, and here it is the corner's.
    """

    def __init__(self, height: int, width: int, factor: float) -> None:
        """Make the grid for images of a size."""
        self.columns_HW, self.rows_HW = np.meshgrid(_zoomed(width, factor), _zoomed(height, factor))

    def zoom(self, image: Floats) -> Floats:
        """Return the zoomed image, in the size of the image."""
        zoomed = cv2.remap(
            image, self.columns_HW, self.rows_HW, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
        )
        return np.asarray(zoomed, np.float32).reshape(image.shape)


def _zoomed(size: int, factor: float) -> NDArray[np.float32]:
    """Return the coordinates along one axis."""
    crop = math.ceil(size / factor)
    enlarged = round(crop * factor)
    step = (crop - 1) / (enlarged - 1) if enlarged > 1 else 1.0
    trim = (enlarged - size) // 2
    inside = np.minimum(np.arange(trim, trim + size) * step, crop - 1)
    return np.asarray(inside + (size - crop) // 2, np.float32)
