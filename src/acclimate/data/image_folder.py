"""Folders of images: one folder for each class, or all images in one folder.

What counts as an image, the order of images and the colours that are read are those of
torchvision's ``ImageFolder``, so that a row of an array belongs to the same image there.
"""

import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from acclimate.errors import InputError

__all__ = [
    "FORMATS",
    "ImageFolder",
    "PictureError",
    "encode_image",
    "find_images",
    "first_size",
    "read_image",
]

FORMATS = {
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".png": "PNG",
    ".bmp": "BMP",
    ".ppm": "PPM",
    ".pgm": "PPM",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".webp": "WEBP",
}
"""The formats that are read and written, by the ending of a file's name in lower case."""

# Photographs all the same, so that to pass over them in silence would be a surprise.
_OTHER_PICTURES = frozenset(
    ".arw .avif .cr2 .dng .gif .heic .heif .jfif .jp2 .jpe .jxl .nef".split()
)


class PictureError(InputError):
    """A picture that cannot be read, or not be written in the format of its name."""


@dataclass(frozen=True)
class ImageFolder:
    """The images of a folder."""

    root: Path
    names: tuple[str, ...]
    """Where each image is, from ``root``, with "/" between folders."""
    classes: tuple[str, ...]
    """The class folders in order; none if the images are not in class folders."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """The class of each image, as its index among the classes."""
        index = {name: label for label, name in enumerate(self.classes)}
        return np.array([index[name.split("/")[0]] for name in self.names], np.int64)


def find_images(folder: str | Path) -> ImageFolder:
    """Return the images of class folders, or of a folder that has its images at the top.

    Images in folders within a class folder are of that class. Whatever is not an image by its
    name is passed over, and so is what is hidden. Links are followed, but not in circles.
    """
    root = Path(folder)
    if not os.path.isdir(root):
        what = "is a file, not a folder" if os.path.exists(root) else "does not exist"
        raise InputError(f"The folder of images {root} {what}. Check its path.")
    found = sorted(_walk(root, "", (root.resolve(),)), key=_order)
    in_classes = [name for name in found if "/" in name]
    if not found:
        raise InputError(
            f"There is no image in {root}. Images are the files that end in "
            f"{', '.join(FORMATS)}, in the folder itself or in one folder for each class."
        )
    if 0 < len(in_classes) < len(found):
        at_the_top = next(name for name in found if "/" not in name)
        raise InputError(
            f"The images of {root} must be either all in class folders or all in the folder "
            f"itself. Got {in_classes[0]!r} and {at_the_top!r}. Move the latter into the folder "
            "of its class, or elsewhere."
        )
    classes = dict.fromkeys(name.split("/")[0] for name in in_classes)
    return ImageFolder(root, tuple(found), tuple(classes))


def read_image(path: Path) -> NDArray[np.uint8]:
    """Return an image as RGB, shape (H, W, 3).

    Gray, palette, transparent, CMYK and 16-bit images become RGB as Pillow's ``convert`` has it,
    which is what torchvision's loader feeds to a network; 16-bit gray above 255 is white there.
    Pixels stay where they are stored: an EXIF orientation is not applied.
    """
    if path.suffix.lower() not in FORMATS:
        raise PictureError(
            f"{path} cannot be corrupted: {path.suffix} is none of the formats that are read and "
            f"written ({', '.join(FORMATS)})."
        )
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait for ever
            raise OSError(0, "it is not a regular file")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as picture:
                return np.asarray(picture.convert("RGB"))
    # Pillow's decoders raise whatever a damaged file makes them stumble over.
    except Exception as error:
        raise PictureError(f"{path} cannot be read: {_reason(path, error)}.") from error


def first_size(images: ImageFolder) -> tuple[int, int] | None:
    """Return height and width of the first image that can be read, or None if none can."""
    for name in images.names:
        with suppress(PictureError):
            height, width, _ = read_image(images.root / name).shape
            return height, width
    return None


def encode_image(image: NDArray[np.uint8], name: str, quality: int) -> bytes:
    """Return the content of an image file, in the format that the name ends in.

    Args:
        image: RGB, shape (H, W, 3).
        name: the name of the file.
        quality: of JPEG and WebP, from 1 to 100; other formats lose nothing.
    """
    kind = FORMATS[Path(name).suffix.lower()]
    options = {
        "JPEG": {"quality": quality, "optimize": True},  # as ImageNet-C
        "PNG": {"compress_level": 1},  # about 10 % larger than at 6, in under half the time
        "WEBP": {"quality": quality},
    }
    content = BytesIO()
    try:
        Image.fromarray(image).save(content, kind, **options.get(kind, {}))
    except (OSError, ValueError) as error:
        height, width = image.shape[:2]
        raise PictureError(
            f"{name} cannot be written as {kind} with its {width} × {height} pixels: {error}."
        ) from error
    return content.getvalue()


def _walk(folder: Path, prefix: str, above: tuple[Path, ...]) -> Iterator[str]:
    try:
        entries = sorted(os.listdir(folder))
    except OSError as error:
        raise InputError(f"The folder {folder} cannot be listed: {error.strerror}.") from error
    for entry in entries:
        path = folder / entry
        if entry.startswith("."):
            continue
        if os.path.isdir(path):
            real = path.resolve()
            if real not in above:
                yield from _walk(path, f"{prefix}{entry}/", (*above, real))
        elif path.suffix.lower() in FORMATS or path.suffix.lower() in _OTHER_PICTURES:
            yield prefix + entry


def _order(name: str) -> tuple[str, str, str]:
    folder, _, file = name.rpartition("/")
    return folder.split("/")[0], folder, file


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        limit = Image.MAX_IMAGE_PIXELS or 0
        return f"it has more than {limit / 1e6:.0f} million pixels, too many to be decoded safely"
    if isinstance(error, MemoryError):
        return "there is not enough memory for it"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if path.stat().st_size == 0:
        return "the file is empty"
    if isinstance(error, UnidentifiedImageError):
        return "it is damaged, or no image"
    return f"it is damaged ({error})" if str(error) else "it is damaged"
