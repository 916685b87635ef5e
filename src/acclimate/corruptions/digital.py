"""Colours, compression and geometry: what a camera's processing or a bad link does."""

from collections.abc import Sequence
from io import BytesIO

import cv2
import numpy as np
from numpy.random import Generator
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from acclimate.corruptions import filters
from acclimate.corruptions.pixels import Pixels, truncate

__all__ = [
    "brightness",
    "contrast",
    "elastic_transform",
    "jpeg_compression",
    "pixelate",
    "saturate",
]


def brightness(images_NHWC: Pixels, added: float) -> Pixels:
    """Add to the value of HSV, which is a pixel's largest channel.

    Hue and saturation stay when all channels keep their ratio to the largest, so that the result
    is a table of the channel and the largest channel. Black has no ratios and becomes gray.
    """
    channel, largest = np.arange(256)[:, None], np.arange(256)
    ratio = np.where(largest > 0, channel / np.maximum(largest, 1), 1.0)
    table = truncate(np.minimum(largest / 255 + added, 1) * ratio * 255)
    brighter: Pixels = table[images_NHWC, images_NHWC.max(3, keepdims=True)]
    return brighter


def saturate(images_NHWC: Pixels, factor: float, added: float) -> Pixels:
    """Multiply the saturation of HSV and add to it; a gray pixel counts as red."""
    images = images_NHWC.astype(np.float32)
    value = images.max(3, keepdims=True)
    chroma = value - images.min(3, keepdims=True)
    saturation = np.clip(
        chroma / np.maximum(value, 1) * np.float32(factor) + np.float32(added), 0, 1
    )
    # How far a channel is from the largest: 0 for the largest itself, 1 for the smallest.
    distance = (value - images) / np.maximum(chroma, 1)
    distance[..., 1:] += chroma == 0
    return truncate(value * (1 - saturation * distance))


def contrast(images_NHWC: Pixels, factor: float) -> Pixels:
    """Pull all values towards their channel's mean."""
    height, width = images_NHWC.shape[1:3]
    total = images_NHWC.sum((1, 2), dtype=np.int64, keepdims=True)
    mean = (total / (height * width)).astype(np.float32)
    return truncate((images_NHWC - mean) * np.float32(factor) + mean)


def pixelate(images_NHWC: Pixels, scale: float) -> Pixels:
    """Make the image smaller and large again, both by averaging areas."""
    height, width = images_NHWC.shape[1:3]
    small = max(1, int(width * scale)), max(1, int(height * scale))
    pixelated = np.empty_like(images_NHWC)
    for image, into in zip(images_NHWC, pixelated, strict=True):
        reduced = Image.fromarray(image).resize(small, Image.Resampling.BOX)
        into[...] = reduced.resize((width, height), Image.Resampling.BOX)
    return pixelated


def jpeg_compression(images_NHWC: Pixels, quality: int) -> Pixels:
    """Write the image as JPEG and read it again."""
    compressed = np.empty_like(images_NHWC)
    for image, into in zip(images_NHWC, compressed, strict=True):
        file = BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=quality)
        # Image.open refuses files that unpack to a large image; this one is our own.
        file.seek(0)
        into[...] = JpegImageFile(file)
    return compressed


def elastic_transform(
    images_NHWC: Pixels,
    generators: Sequence[Generator],
    amplitude: float,
    sigma: float,
    reach: float,
) -> Pixels:
    """Map the image affinely at random and displace its pixels by a smooth random field."""
    height, width = images_NHWC.shape[1:3]
    # The original's points, x from the rows' axis and y from the columns', which only matters
    # for images that are not square.
    centre = np.array([height // 2, width // 2], np.float32)
    arm = max(1, min(height, width) // 3)
    points = centre + np.array([[arm, arm], [arm, -arm], [-arm, -arm]], np.float32)
    rows_HW, columns_HW = np.indices((height, width), np.float32)
    images = images_NHWC.astype(np.float32)
    images /= 255
    for image, generator in zip(images, generators, strict=True):
        moved = points + generator.uniform(-reach, reach, points.shape).astype(np.float32)
        affine = cv2.getAffineTransform(points, moved)
        mapped = cv2.warpAffine(image, affine, (width, height), borderMode=cv2.BORDER_REFLECT_101)
        if amplitude:
            field = generator.random((2, height, width), np.float32) * 2 - 1
            across, down = (
                filters.gaussian_blur(axis, sigma, truncate=3, border=cv2.BORDER_REFLECT)
                * np.float32(amplitude)
                for axis in field
            )
            mapped = cv2.remap(
                mapped,
                columns_HW + across,
                rows_HW + down,
                cv2.INTER_LINEAR,
                borderMode=cv2.BORDER_REFLECT,
            )
        image[...] = mapped
    images *= 255
    return truncate(images)
