"""``acclimate corrupt``: a folder of images, corrupted."""

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from acclimate.cli.image_progress import ImageProgress, print_line
from acclimate.cli.stopping import Stopped, stopping_once
from acclimate.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from acclimate.data.corrupted_arrays import write_corrupted_arrays
from acclimate.data.corrupted_folder import write_corrupted_folder
from acclimate.data.corruption_run import Recipe, Report, suitable_constants, suitable_workers
from acclimate.data.image_folder import ImageFolder, find_images
from acclimate.errors import OptionError

__all__ = ["corrupt"]

LEFT_OUT = 3
"""Exit status when all is done but for images that were left out."""


class Layout(str, Enum):
    """What is written."""

    folder = "folder"
    npy = "npy"


class Constants(str, Enum):
    """Whose severities."""

    cifar = "cifar"
    imagenet = "imagenet"


class OnError(str, Enum):
    """What becomes of an image that cannot be read."""

    fail = "fail"
    skip = "skip"


def corrupt(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="Images in class folders, or all in the folder itself.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="Folder to write to, new or begun by this command; not within FOLDER.",
            show_default=False,
        ),
    ],
    corruption: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="One or several, with commas or repeated; 'all' adds the 4 extra ones.",
            show_default="the 15 of the benchmarks",
        ),
    ] = None,
    severity: Annotated[
        list[str] | None,
        typer.Option(metavar="N", help="One or several from 1 to 5.", show_default="1,2,3,4,5"),
    ] = None,
    constants: Annotated[
        Constants | None,
        typer.Option(
            help="How strong a severity is: as in CIFAR-10-C, made for 32 × 32 pixels, or as in "
            "ImageNet-C, made for 224 × 224.",
            show_default="cifar if the first image has at most 64 × 64 pixels, else imagenet",
        ),
    ] = None,
    layout: Annotated[
        Layout,
        typer.Option(
            "--format",
            help="folder: files as in ImageNet-C. npy: arrays as in CIFAR-10-C, for images of "
            "one size.",
        ),
    ] = Layout.folder,
    seed: Annotated[int, typer.Option(metavar="N", help="Another seed gives other noise.")] = 0,
    quality: Annotated[
        int | None,
        typer.Option(
            metavar="1..100",
            help="Of the JPEG and WebP files written.",
            show_default="85, as ImageNet-C",
        ),
    ] = None,
    on_error: Annotated[
        OnError,
        typer.Option(help="An image that cannot be read ends the run, or is left out and named."),
    ] = OnError.fail,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Processes; the result does not depend on them.",
            show_default="one a processor",
        ),
    ] = None,
) -> None:
    """Corrupt images with noise, blur, weather and digital damage, as ImageNet-C.

    Writes OUT/<corruption>/<severity>/<class>/<name>, each image in its own
    size and format; PNG, BMP, PPM and TIFF lose nothing. With --format npy
    writes OUT/<corruption>.npy, all images at one severity after the other,
    and labels.npy. OUT/acclimate.json says how everything was made.

    Images are read as torchvision's ImageFolder reads them: everything becomes
    RGB, and an EXIF orientation is not applied.

    Every file that is there is whole. After Ctrl-C the same command continues;
    it may also add corruptions, and in folders severities and new images.

    Exit status: 0 all is there; 1 an error; 2 a wrong option; 3 all is there
    but the images that were left out; 130 stopped by Ctrl-C.
    """
    if layout is Layout.npy and quality is not None:
        raise OptionError("--quality is of JPEG and WebP files. With --format npy leave it out.")
    names = _listed(corruption) if corruption else list(CORRUPTIONS)
    if "all" in names:
        names = [*CORRUPTIONS, *EXTRA_CORRUPTIONS, *(name for name in names if name != "all")]
    severities = [_number(text) for text in _listed(severity)] if severity else [1, 2, 3, 4, 5]
    console = Console(stderr=True, highlight=False)
    try:
        with stopping_once():
            images = find_images(folder)
            chosen, why = suitable_constants(images, out)
            if constants is not None:
                chosen, why = constants.value, "as asked"
            recipe = Recipe(
                corruptions=tuple(names), severities=tuple(severities), constants=chosen, seed=seed
            )
            run: dict[str, Any] = {
                "workers": suitable_workers(len(images.names)) if workers is None else workers,
                "on_error": on_error.value,
            }
            with ImageProgress(console, _announcement(images, recipe, why)) as progress:
                if layout is Layout.npy:
                    report = write_corrupted_arrays(images, out, recipe, progress, **run)
                else:
                    run["quality"] = 85 if quality is None else quality
                    report = write_corrupted_folder(images, out, recipe, progress, **run)
    except Stopped as stopped:
        print_line(console, f"Stopped. Every file in {out} is whole; the same command continues.")
        raise typer.Exit(stopped.exit_status) from None
    print_line(console, _summary(report, out, "array" if layout is Layout.npy else "image"))
    if report.problems:
        raise typer.Exit(LEFT_OUT)


def _listed(values: list[str]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"severity must be an int from 1 to 5. Got {text!r} instead.") from None


def _announcement(images: ImageFolder, recipe: Recipe, why: str) -> str:
    classes = f" in {_count(len(images.classes), 'class folder')}" if images.classes else ""
    severities = ", ".join(map(str, recipe.severities))
    return (
        f"{_count(len(images.names), 'image')}{classes} of {images.root}\n"
        f"{_count(len(recipe.corruptions), 'corruption')}, severity {severities}\n"
        f"constants: {recipe.constants}, {why}"
    )


def _summary(report: Report, out: Path, what: str) -> str:
    there = f"; {report.there:,} there before" if report.there else ""
    left_out = _count(len(report.problems), "image")
    problems = f"; {left_out} left out" if report.problems else ""
    return f"{_count(report.written, what)} written to {out}{there}{problems}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
