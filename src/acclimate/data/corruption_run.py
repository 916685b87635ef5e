"""What the two ways of corrupting a folder of images share: what is done, told and returned."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from acclimate.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
from acclimate.data.image_folder import ImageFolder, PictureError, first_size
from acclimate.data.output_folder import read_manifest
from acclimate.errors import InputError, OptionError

__all__ = [
    "Listener",
    "OnError",
    "Recipe",
    "Report",
    "check_apart",
    "check_options",
    "left_out",
    "source_seen_from",
    "suitable_constants",
    "suitable_workers",
]

OnError = Literal["fail", "skip"]
SMALL = 64
"""Sides in pixels up to which the constants of CIFAR-10-C suit an image better."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is done to every image; ``acclimate.corruptions.corrupt`` says what each option is."""

    corruptions: tuple[str, ...] = CORRUPTIONS
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    constants: str = "imagenet"
    seed: int = 0

    def __post_init__(self) -> None:
        """Check, and put what was named in any order, or twice, in its order."""
        if not self.corruptions or not self.severities:
            raise OptionError("At least one corruption and one severity are needed. Got none.")
        pixel = np.zeros((1, 1, 3), np.uint8)
        for name in self.corruptions:
            corrupt(pixel, name, 1, constants=self.constants, seed=self.seed)
        for severity in self.severities:
            corrupt(pixel, self.corruptions[0], severity)
        known = CORRUPTIONS + EXTRA_CORRUPTIONS
        ordered = tuple(sorted(set(self.corruptions), key=known.index))
        object.__setattr__(self, "corruptions", ordered)
        object.__setattr__(self, "severities", tuple(sorted(set(self.severities))))


class Listener(Protocol):
    """Is told how far the work is."""

    def begin(self, what: str, images: int) -> None:
        """Another part of the work begins, with that many images."""

    def advance(self, images: int) -> None:
        """So many more images are done, or needed nothing."""

    def skip(self, problem: str) -> None:
        """An image is left out."""


@dataclass(frozen=True)
class Report:
    """What a run did."""

    written: int
    """Files written: images, or arrays of them."""
    there: int
    """Files that earlier runs had written."""
    problems: tuple[str, ...]
    """What was wrong with each image that was left out."""


def suitable_constants(images: ImageFolder, out: Path) -> tuple[str, str]:
    """Return the constants that suit the images, and why: for those who do not choose.

    They are the ones ``out`` was begun with, or else follow from the size of the first image.
    """
    manifest = read_manifest(out)
    if manifest is not None and "constants" in manifest:
        return str(manifest["constants"]), f"as {out} was begun with them"
    size = first_size(images)
    if size is None:
        return "imagenet", "as no image tells its size"
    height, width = size
    constants = "cifar" if max(size) <= SMALL else "imagenet"
    return constants, f"as the first image has {width} × {height} pixels"


def suitable_workers(images: int) -> int:
    """Return how many workers to start: one for each processor, if there is enough to do."""
    processors = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
    # A process takes as long to start as a few images take.
    return min(len(processors), 1 + images // 8)


def check_apart(source: Path, out: Path) -> None:
    """Raise if ``out`` lies in the folder of images, where a second run would find its files."""
    if source.resolve() in (out.resolve(), *out.resolve().parents):
        raise InputError(
            f"{out} is the folder of images {source}, or lies in it. Choose a folder beside it, "
            f"such as {source.resolve().name}-c."
        )


def check_options(on_error: object, **at_least_one: object) -> None:
    """Raise if an option of a run is not what it can be."""
    if on_error not in ("fail", "skip"):
        raise OptionError(f"on_error must be 'fail' or 'skip'. Got {on_error!r} instead.")
    for name, value in at_least_one.items():
        if type(value) is not int or value < 1:
            raise OptionError(f"{name} must be an int >= 1. Got {value!r} instead.")


def left_out(error: PictureError, on_error: OnError) -> str:
    """Return what is wrong with an image that is left out, or raise if that ends the run."""
    if on_error == "fail":
        raise PictureError(
            f"{error} Convert, repair or remove it, or leave such images out with --on-error skip."
        ) from error
    return str(error)


def source_seen_from(out: Path, source: Path) -> str:
    """Return the path to the images from ``out``, which stays when both are moved together."""
    try:
        return Path(os.path.relpath(source.resolve(), out.resolve())).as_posix()
    except ValueError:  # on another drive
        return source.resolve().as_posix()
