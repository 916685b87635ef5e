"""Corrupting images: arguments checked, randomness drawn for each image, batches in chunks."""

import difflib
from collections.abc import Callable
from hashlib import blake2b
from typing import TypeGuard

import numpy as np
from numpy.random import Generator, Philox

from acclimate.corruptions import blur, digital, noise, weather
from acclimate.corruptions.constants import CORRUPTIONS, EXTRA_CORRUPTIONS, TABLE
from acclimate.corruptions.pixels import Pixels
from acclimate.errors import InputError, OptionError

__all__ = ["corrupt"]

_RANDOM: dict[str, Callable[..., Pixels]] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "elastic_transform": digital.elastic_transform,
    "speckle_noise": noise.speckle_noise,
    "spatter": weather.spatter,
}
_DETERMINISTIC: dict[str, Callable[..., Pixels]] = {
    "defocus_blur": blur.defocus_blur,
    "zoom_blur": blur.zoom_blur,
    "brightness": digital.brightness,
    "contrast": digital.contrast,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
    "gaussian_blur": blur.gaussian_blur,
    "saturate": digital.saturate,
}
# Values of a chunk: as floats they and their intermediate results stay in the cache.
_CHUNK = 2**18
# OpenCV maps no image that is larger.
_LARGEST_SIDE = 2**15 - 2


def corrupt(
    images: Pixels, name: str, severity: int, *, constants: str = "cifar", seed: int = 0
) -> Pixels:
    """Return corrupted copies of images.

    The randomness of an image follows from the seed, the corruption, the severity and the image
    itself. So an image always comes out the same, alone or in any batch, at any position; and
    equal images come out equal. Nothing is drawn from a global generator.

    Args:
        images: one image (H, W, 3) or a batch (N, H, W, 3), uint8, RGB, of any size up to
            32,766 pixels a side.
        name: one of ``CORRUPTIONS`` or ``EXTRA_CORRUPTIONS``.
        severity: from 1 to 5.
        constants: "cifar" for the severities of CIFAR-10-C, made for 32×32 pixels, "imagenet"
            for those of ImageNet-C, made for 224×224.
        seed: another seed gives other noise; at least 0.

    Returns:
        A new array of the same shape, uint8.

    >>> images = np.zeros((2, 32, 32, 3), np.uint8)
    >>> corrupt(images, "brightness", 3).max()
    np.uint8(38)
    """
    _check_images(images)
    _check_options(name, severity, constants, seed)
    parameters = TABLE[name][constants][severity - 1]
    batch_NHWC = np.asarray(images if images.ndim == 4 else images[None])
    height, width = batch_NHWC.shape[1:3]
    drawn_from = blake2b(f"{seed} {name} {severity} {height} {width} ".encode(), digest_size=16)
    corrupted = np.empty(batch_NHWC.shape, np.uint8)
    chunk = max(1, _CHUNK // (height * width * 3))
    for start in range(0, len(batch_NHWC), chunk):
        part = np.ascontiguousarray(batch_NHWC[start : start + chunk])
        if name in _RANDOM:
            generators = [_generator(drawn_from, image) for image in part]
            into = _RANDOM[name](part, generators, *parameters)
        else:
            into = _DETERMINISTIC[name](part, *parameters)
        corrupted[start : start + chunk] = into
    return corrupted.reshape(images.shape)


def _generator(drawn_from: blake2b, image: Pixels) -> Generator:
    digest = drawn_from.copy()
    digest.update(image.data)
    return Generator(Philox(key=int.from_bytes(digest.digest(), "little")))


def _check_images(images: object) -> None:
    wanted = "images must be a uint8 array (H, W, 3) or (N, H, W, 3) of RGB pixels from 0 to 255"
    if not isinstance(images, np.ndarray):
        raise InputError(
            f"{wanted}. Got {type(images).__name__} instead. Convert with numpy.asarray(images)."
        )
    if images.dtype != np.uint8:
        hint = ""
        if np.issubdtype(images.dtype, np.floating):
            hint = " If they lie in [0, 1], convert with (255 * images).round().astype('uint8')."
        raise InputError(f"{wanted}. Got {images.dtype} instead.{hint}")
    if images.ndim not in (3, 4) or images.shape[-1] != 3:
        raise InputError(f"{wanted}. Got the shape {images.shape} instead.{_shape_hint(images)}")
    if images.size == 0:
        raise InputError(
            f"images must hold at least one image and one pixel. Got the shape {images.shape}."
        )
    if max(images.shape[-3:-1]) > _LARGEST_SIDE:
        raise InputError(
            f"images must have at most {_LARGEST_SIDE} rows and columns. Got the shape "
            f"{images.shape}. Cut them in parts."
        )


def _shape_hint(images: Pixels) -> str:
    if images.ndim == 2 or images.shape[-1:] == (1,):
        return " Repeat a gray channel three times: numpy.repeat(gray, 3, axis=-1)."
    if images.ndim in (3, 4) and images.shape[-1] == 4:
        return " Drop the alpha channel with images[..., :3]."
    if images.ndim in (3, 4) and images.shape[-3] == 3:
        return " Put the channels last with numpy.moveaxis(images, -3, -1)."
    return ""


def _check_options(name: object, severity: object, constants: object, seed: object) -> None:
    known = CORRUPTIONS + EXTRA_CORRUPTIONS
    if not isinstance(name, str) or name not in known:
        wanted = str(name).lower()
        near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.5)
        near = near or [one for one in known if wanted and wanted in one]
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise OptionError(
            f"There is no corruption {name!r}.{hint} The corruptions are: {', '.join(known)}."
        )
    if not _is_int(severity) or not 1 <= severity <= 5:
        raise OptionError(f"severity must be an int from 1 to 5. Got {severity!r} instead.")
    if not isinstance(constants, str) or constants not in ("cifar", "imagenet"):
        raise OptionError(f"constants must be 'cifar' or 'imagenet'. Got {constants!r} instead.")
    if not _is_int(seed) or seed < 0:
        raise OptionError(f"seed must be an int >= 0. Got {seed!r} instead.")


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
