"""A folder of images of one size, corrupted, in the layout of CIFAR-10-C.

``<corruption>.npy`` has all images at the lowest severity, then all at the next, shape
(S * N, H, W, 3); ``labels.npy`` has their classes, (S * N,). ``acclimate.json`` names the classes,
the images in order and the severities.

Shapes: N images, S severities, H rows, W columns, 3 colours.
"""

from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np

from acclimate.corruptions import corrupt
from acclimate.data.array_file import ArrayFile
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
from acclimate.data.image_folder import ImageFolder, PictureError, first_size, read_image
from acclimate.data.output_folder import check_begun, open_output, put_file, write_manifest
from acclimate.data.workers import Workers, start_workers
from acclimate.errors import InputError

__all__ = ["write_corrupted_arrays"]

_BATCH = 2**22
"""Values of a batch: 1365 images of 32 × 32 pixels, 27 of 224 × 224."""


def write_corrupted_arrays(
    images: ImageFolder,
    out: Path,
    recipe: Recipe,
    listener: Listener,
    *,
    workers: int = 1,
    on_error: OnError = "fail",
) -> Report:
    """Write the arrays of corruptions that are not there yet; each is whole or not there.

    A later run may add corruptions; everything else must stay, the images too. Images are read
    once, into an array that is removed afterwards.

    Args:
        images: what to corrupt, all of one size.
        out: the folder to write to, new or written by this function.
        recipe: what to do to each image.
        listener: is told about each image, once when it is read and once for each corruption.
        workers: processes. What is written does not depend on them.
        on_error: whether an image that cannot be read ends the run or is left out.
    """
    check_options(on_error, workers=workers)
    check_apart(images.root, out)
    begun = {
        "format": "npy",
        "source": source_seen_from(out, images.root),
        "constants": recipe.constants,
        "seed": recipe.seed,
        "severities": list(recipe.severities),
        "classes": list(images.classes),
    }
    with open_output(out) as unfinished:
        check_begun(out, begun)
        with start_workers(min(workers, len(images.names))) as started:
            clean, problems = _read_all(images, unfinished, started, listener, workers, on_error)
            rows = [row for row in range(len(images.names)) if row not in problems]
            begun["files"] = [images.names[row] for row in rows]
            write_manifest(out, unfinished, begun, {"corruptions": recipe.corruptions})
            if images.classes:
                labels = np.tile(images.labels[rows], len(recipe.severities))
                content = BytesIO()
                np.save(content, labels)
                put_file(content.getvalue(), out / "labels.npy", unfinished)
            missing = [name for name in recipe.corruptions if not (out / f"{name}.npy").exists()]
            for corruption in missing:
                listener.begin(corruption, len(rows))
                shape = (len(rows) * len(recipe.severities), *clean.shape[1:])
                corrupted = ArrayFile.create(unfinished / f"{corruption}.npy", shape)
                work = partial(_corrupt_rows, clean, corrupted, corruption, recipe, len(rows))
                batches = _batches(len(rows), clean.shape, workers)
                tasks = ((batch.start, [rows[place] for place in batch]) for batch in batches)
                for done in started.map(work, tasks):
                    listener.advance(done)
                corrupted.publish(out / f"{corruption}.npy")
    there = len(recipe.corruptions) - len(missing)
    return Report(len(missing), there, tuple(problems.values()))


def _read_all(
    images: ImageFolder,
    unfinished: Path,
    started: Workers,
    listener: Listener,
    workers: int,
    on_error: OnError,
) -> tuple[ArrayFile, dict[int, str]]:
    """Return all images as an array, and what is wrong with those whose row is left empty."""
    size = first_size(images)
    shape = (len(images.names), *(size or (1, 1)), 3)
    clean = ArrayFile.create(unfinished / "images.npy", shape)
    work = partial(_read_rows, images.root, clean, on_error)
    listener.begin("reading", len(images.names))
    batches = _batches(len(images.names), shape, workers)
    tasks = [(batch.start, [images.names[row] for row in batch]) for batch in batches]
    problems: dict[int, str] = {}
    for (_, names), found in zip(tasks, started.map(work, tasks), strict=True):
        for problem in found.values():
            listener.skip(problem)
        problems.update(found)
        listener.advance(len(names))
    if len(problems) == len(images.names):
        raise InputError(f"None of the {len(problems)} images in {images.root} can be read.")
    return clean, problems


def _read_rows(
    root: Path, clean: ArrayFile, on_error: OnError, task: tuple[int, list[str]]
) -> dict[int, str]:
    start, names = task
    problems = {}
    batch = np.zeros((len(names), *clean.shape[1:]), np.uint8)
    for place, name in enumerate(names):
        try:
            image = read_image(root / name)
        except PictureError as error:
            problems[start + place] = left_out(error, on_error)
            continue
        if image.shape != clean.shape[1:]:
            raise InputError(
                "In arrays all images have one size. "
                f"{root / name} has {image.shape[1]} × {image.shape[0]} pixels, those before it "
                f"have {clean.shape[2]} × {clean.shape[1]}. Scale them to one size, or write "
                "files with --format folder."
            )
        batch[place] = image
    clean.write(start, batch)
    return problems


def _corrupt_rows(
    clean: ArrayFile,
    corrupted: ArrayFile,
    corruption: str,
    recipe: Recipe,
    images: int,
    task: tuple[int, list[int]],
) -> int:
    start, rows = task
    batch_NHWC = clean.read(rows)
    for block, severity in enumerate(recipe.severities):
        corrupted_NHWC = corrupt(
            batch_NHWC, corruption, severity, constants=recipe.constants, seed=recipe.seed
        )
        corrupted.write(block * images + start, corrupted_NHWC)
    return len(rows)


def _batches(images: int, shape: tuple[int, ...], workers: int) -> list[range]:
    """Return ranges that cover the images, small enough for memory and for all workers."""
    size = max(1, min(_BATCH // int(np.prod(shape[1:])), -(-images // (4 * workers))))
    return [range(start, min(start + size, images)) for start in range(0, images, size)]
