"""Arrays of pixels, and the way back from real numbers to them.

Shapes: N images, H rows, W columns, C channels (red, green, blue).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Floats", "Pixels", "truncate"]

Pixels = NDArray[np.uint8]
Floats = NDArray[np.floating[Any]]


def truncate(values: Floats) -> Pixels:
    """Clip values to 0..255 and drop their fraction, in place where that is possible.

    The original casts without rounding, which darkens every corruption by half a level.
    """
    pixels: Pixels = np.clip(values, 0, 255, out=values).astype(np.uint8)
    return pixels
