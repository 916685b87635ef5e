"""Noise: of the sensor (Gaussian), of the light (shot), of the bits (impulse), and speckle."""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from acclimate.corruptions.pixels import Floats, Pixels, truncate

__all__ = ["gaussian_noise", "impulse_noise", "shot_noise", "speckle_noise"]


def gaussian_noise(
    images_NHWC: Pixels, generators: Sequence[Generator], deviation: float
) -> Pixels:
    """Add Gaussian noise."""
    noise = _normal(images_NHWC, generators)
    noise *= np.float32(255 * deviation)
    noise += images_NHWC
    return truncate(noise)


def speckle_noise(images_NHWC: Pixels, generators: Sequence[Generator], deviation: float) -> Pixels:
    """Multiply by Gaussian noise around 1."""
    noise = _normal(images_NHWC, generators)
    noise *= np.float32(deviation)
    noise += 1
    noise *= images_NHWC
    return truncate(noise)


def shot_noise(images_NHWC: Pixels, generators: Sequence[Generator], photons: float) -> Pixels:
    """Count photons that arrive as a Poisson process."""
    white = int(photons)
    level = (np.arange(white + 1) / photons * 255).astype(np.uint8)
    expected = np.arange(256) / 255 * photons
    counts_NHWC = np.empty(images_NHWC.shape, np.int64)
    for image, generator, counts in zip(images_NHWC, generators, counts_NHWC, strict=True):
        counts[...] = generator.poisson(expected[image])
    noisy: Pixels = level[np.minimum(counts_NHWC, white, out=counts_NHWC)]
    return noisy


def impulse_noise(images_NHWC: Pixels, generators: Sequence[Generator], amount: float) -> Pixels:
    """Set values to black or white, with equal probability."""
    draw_NHWC = np.empty(images_NHWC.shape, np.float32)
    for draw, generator in zip(draw_NHWC, generators, strict=True):
        generator.random(dtype=np.float32, out=draw)
    noisy: Pixels = images_NHWC.copy()
    noisy[draw_NHWC < amount] = 0
    noisy[draw_NHWC < amount / 2] = 255
    return noisy


def _normal(images_NHWC: Pixels, generators: Sequence[Generator]) -> Floats:
    noise_NHWC = np.empty(images_NHWC.shape, np.float32)
    for noise, generator in zip(noise_NHWC, generators, strict=True):
        generator.standard_normal(dtype=np.float32, out=noise)
    return noise_NHWC
