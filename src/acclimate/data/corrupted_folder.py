"""A folder of images, corrupted, in the layout of ImageNet-C.

An image ``<class>/<name>`` becomes ``<corruption>/<severity>/<class>/<name>``.
"""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from acclimate.corruptions import corrupt
from acclimate.data.corruption_run import (
    Listener,
    OnError,
    Recipe,
    Report,
    check_apart,
    check_options,
    left_out,
    source_seen_from,
)
from acclimate.data.image_folder import ImageFolder, PictureError, encode_image, read_image
from acclimate.data.output_folder import open_output, put_file, write_manifest
from acclimate.data.workers import start_workers
from acclimate.errors import OptionError

__all__ = ["write_corrupted_folder"]


@dataclass(frozen=True)
class _Job:
    source: Path
    out: Path
    unfinished: Path
    recipe: Recipe
    quality: int
    on_error: OnError


@dataclass(frozen=True)
class _Done:
    written: int
    there: int
    problem: str | None = None


def write_corrupted_folder(
    images: ImageFolder,
    out: Path,
    recipe: Recipe,
    listener: Listener,
    *,
    quality: int = 85,
    workers: int = 1,
    on_error: OnError = "fail",
) -> Report:
    """Write what is not there yet of the corrupted images; each file is whole or not there.

    A later run may add corruptions, severities and images; everything else must stay. Images
    keep their names and formats.

    Args:
        images: what to corrupt.
        out: the folder to write to, new or written by this function.
        recipe: what to do to each image.
        listener: is told about each image.
        quality: of JPEG and WebP; ImageNet-C has 85.
        workers: processes. What is written does not depend on them.
        on_error: whether an image that cannot be read ends the run or is left out.
    """
    check_options(on_error, workers=workers, quality=quality)
    if quality > 100:
        raise OptionError(f"quality must be at most 100. Got {quality} instead.")
    check_apart(images.root, out)
    begun = {
        "format": "folder",
        "source": source_seen_from(out, images.root),
        "constants": recipe.constants,
        "seed": recipe.seed,
        "quality": quality,
    }
    growing: dict[str, tuple[str | int, ...]] = {
        "corruptions": recipe.corruptions,
        "severities": recipe.severities,
    }
    written, there, problems = 0, 0, []
    with open_output(out) as unfinished:
        write_manifest(out, unfinished, begun, growing)
        work = partial(
            _corrupt_image, _Job(images.root, out, unfinished, recipe, quality, on_error)
        )
        with start_workers(min(workers, len(images.names))) as started:
            listener.begin("images", len(images.names))
            for done in started.map(work, images.names):
                written += done.written
                there += done.there
                if done.problem is not None:
                    problems.append(done.problem)
                    listener.skip(done.problem)
                listener.advance(1)
    return Report(written, there, tuple(problems))


def _corrupt_image(job: _Job, name: str) -> _Done:
    """Read an image once and write all that is missing of it."""
    wanted = {
        (corruption, severity): job.out / corruption / str(severity) / name
        for corruption in job.recipe.corruptions
        for severity in job.recipe.severities
    }
    missing = {made: path for made, path in wanted.items() if not os.path.exists(path)}
    there = len(wanted) - len(missing)
    if not missing:
        return _Done(0, there)
    try:
        image = read_image(job.source / name)
        for (corruption, severity), path in missing.items():
            corrupted = corrupt(
                image,
                corruption,
                severity,
                constants=job.recipe.constants,
                seed=job.recipe.seed,
            )
            put_file(encode_image(corrupted, name, job.quality), path, job.unfinished)
    except PictureError as error:
        return _Done(0, there, problem=left_out(error, job.on_error))
    return _Done(len(missing), there)
