"""Corrupting a folder of images, as files and as arrays."""

import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from acclimate.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
from acclimate.data.corrupted_arrays import write_corrupted_arrays
from acclimate.data.corrupted_folder import write_corrupted_folder
from acclimate.data.corruption_run import Recipe, Report, suitable_constants, suitable_workers
from acclimate.data.image_folder import PictureError, find_images, read_image
from acclimate.data.output_folder import MANIFEST, open_output
from acclimate.errors import InputError, OptionError, OutputError

NAMES = ("cat/a.png", "cat/b.png", "cat/c.png", "cat/d.png", "dog/e [x].png", "dog/deep/a.png")
RECIPE = Recipe(corruptions=("snow", "fog"), severities=(5, 1), constants="cifar")
LAYOUTS = ["folder", "npy"]


class Told:
    """What a listener was told, and a listener that may fail at an image."""

    def __init__(self, fail_at: int = -1) -> None:
        self.begun: list[tuple[str, int]] = []
        self.done: list[int] = []
        self.problems: list[str] = []
        self.fail_at = fail_at

    def begin(self, what: str, images: int) -> None:
        self.begun.append((what, images))
        self.done.append(0)

    def advance(self, images: int) -> None:
        self.done[-1] += images
        if sum(self.done) >= self.fail_at >= 0:
            raise KeyboardInterrupt

    def skip(self, problem: str) -> None:
        self.problems.append(problem)


def write_picture(path: Path, seed: int, shape: tuple[int, int] = (16, 20)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*shape, 3), np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for seed, name in enumerate(NAMES):
        write_picture(tmp_path / "images" / name, seed)
    return tmp_path / "images"


def run(
    layout: str, source: Path, recipe: Recipe = RECIPE, told: Any = None, **options: Any
) -> Report:
    write: Callable[..., Report] = (
        write_corrupted_folder if layout == "folder" else write_corrupted_arrays
    )
    out = options.pop("out", source.with_name("out"))
    return write(find_images(source), out, recipe, told or Told(), **options)


def pixels(source: Path, names: tuple[str, ...] = NAMES) -> NDArray[np.uint8]:
    return np.stack([np.asarray(Image.open(source / name)) for name in names])


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_files_stand_as_in_imagenet_c(source: Path, tmp_path: Path) -> None:
    told = Told()
    report = run("folder", source, told=told)
    assert report == Report(written=24, there=0, problems=())
    assert (told.begun, told.done) == ([("images", 6)], [6])
    wanted = {f"{name}/{severity}" for name in ("fog", "snow") for severity in (1, 5)}
    assert set(content(tmp_path / "out")) == {MANIFEST} | {
        f"{made}/{name}" for made in wanted for name in NAMES
    }
    for made in wanted:
        corruption, severity = made.split("/")
        expected = corrupt(pixels(source), corruption, int(severity), constants="cifar")
        assert np.array_equal(pixels(tmp_path / "out" / made), expected)


def test_arrays_stand_as_in_cifar_10_c(source: Path, tmp_path: Path) -> None:
    told = Told()
    report = run("npy", source, told=told)
    assert report == Report(written=2, there=0, problems=())
    assert told.begun == [("reading", 6), ("snow", 6), ("fog", 6)]
    assert told.done == [6, 6, 6]
    out = tmp_path / "out"
    assert set(content(out)) == {MANIFEST, "fog.npy", "snow.npy", "labels.npy"}
    for corruption in ("fog", "snow"):
        found = np.load(out / f"{corruption}.npy")
        expected = [corrupt(pixels(source), corruption, s, constants="cifar") for s in (1, 5)]
        assert found.dtype == np.uint8
        assert np.array_equal(found, np.concatenate(expected))
    assert np.load(out / "labels.npy").tolist() == [0, 0, 0, 0, 1, 1] * 2
    manifest = json.loads((out / MANIFEST).read_text())
    assert manifest["files"] == list(NAMES)
    assert manifest["classes"] == ["cat", "dog"]
    assert manifest["severities"] == [1, 5]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_images_without_classes(tmp_path: Path, layout: str) -> None:
    for seed, name in enumerate(("b.jpg", "a.png", "b.png")):
        write_picture(tmp_path / "images" / name, seed)
    run(layout, tmp_path / "images", Recipe(corruptions=("fog",), severities=(3,)))
    expected = {"fog/3/a.png", "fog/3/b.jpg", "fog/3/b.png"} if layout == "folder" else {"fog.npy"}
    assert set(content(tmp_path / "out")) == {MANIFEST} | expected


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_workers_change_nothing(source: Path, tmp_path: Path, layout: str) -> None:
    (source / "cat/broken.png").write_bytes(b"")
    for workers in (1, 2):
        told = Told()
        out = tmp_path / str(workers)
        run(layout, source, told=told, workers=workers, on_error="skip", out=out)
        assert sum(told.done) == (7 if layout == "folder" else 7 + 2 * 6)
        assert len(told.problems) == 1
    assert content(tmp_path / "1") == content(tmp_path / "2")
    for name in ("cat/a.png", "dog/e [x].png"):
        (source / name).write_bytes(b"")
    with pytest.raises(PictureError, match=r"cat/a\.png"):
        run(layout, source, workers=2, out=tmp_path / "3")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_second_run_writes_what_is_missing(source: Path, tmp_path: Path, layout: str) -> None:
    run(layout, source)
    before = content(tmp_path / "out")
    lost = next(name for name in before if "snow" in name)
    (tmp_path / "out" / lost).unlink()
    there = 23 if layout == "folder" else 1
    assert run(layout, source) == Report(written=1, there=there, problems=())
    assert content(tmp_path / "out") == before
    more = Recipe(corruptions=("brightness", "fog"), severities=(1, 5), constants="cifar")
    report = run(layout, source, more)
    assert (report.written, report.there) == ((12, 12) if layout == "folder" else (1, 1))
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert manifest["corruptions"] == ["brightness", "fog", "snow"]


def test_folders_grow_by_severities_and_images(source: Path, tmp_path: Path) -> None:
    run("folder", source)
    write_picture(source / "eel/new.png", 9, (5, 5))
    recipe = Recipe(corruptions=("fog",), severities=(2, 5), constants="cifar")
    assert run("folder", source, recipe) == Report(written=7 + 1, there=6, problems=())
    assert json.loads((tmp_path / "out" / MANIFEST).read_text())["severities"] == [1, 2, 5]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("done", [1, 5, 8])
def test_what_is_interrupted_is_whole_and_continues(
    source: Path, tmp_path: Path, layout: str, done: int
) -> None:
    run(layout, source, out=tmp_path / "whole")
    whole = content(tmp_path / "whole")
    if layout == "folder":
        done = min(done, 5)
    with pytest.raises(KeyboardInterrupt):
        run(layout, source, told=Told(fail_at=done))
    part = content(tmp_path / "out")
    assert part.items() < whole.items()
    if layout == "folder":
        assert len(part) == 1 + 4 * done
    run(layout, source)
    assert content(tmp_path / "out") == whole


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_killed_run_left_is_removed(source: Path, tmp_path: Path, layout: str) -> None:
    left = tmp_path / "out" / ".acclimate-unfinished-x"
    left.mkdir(parents=True)
    (left / "123").write_bytes(b"half")
    (tmp_path / "out" / ".acclimate-lock").touch()
    run(layout, source)
    assert not [name for name in content(tmp_path / "out") if name.startswith(".")]


@pytest.mark.parametrize(
    ("layout", "change", "words"),
    [
        ("folder", {"seed": 1}, "begun with seed 0, and this run has 1"),
        ("npy", {"seed": 1}, "run with seed 0"),
        ("folder", {"constants": "imagenet"}, "constants cifar, and this run has imagenet"),
        ("npy", {"severities": (1, 2)}, "severities 1, 5, and this run has 1, 2"),
    ],
)
def test_another_recipe_is_refused(
    source: Path, tmp_path: Path, layout: str, change: dict[str, Any], words: str
) -> None:
    run(layout, source)
    before = content(tmp_path / "out")
    recipe = Recipe(**{**vars(RECIPE), **change})
    with pytest.raises(OptionError, match=words):
        run(layout, source, recipe)
    assert content(tmp_path / "out") == before


def test_other_ways_are_refused(source: Path, tmp_path: Path) -> None:
    run("folder", source)
    with pytest.raises(OptionError, match="quality 85, and this run has 90"):
        run("folder", source, quality=90)
    with pytest.raises(OptionError, match="format folder, and this run has npy"):
        run("npy", source)
    write_picture(tmp_path / "others/cat/a.png", 0)
    with pytest.raises(OptionError, match=r"from the folder '\.\./images' .* correct 'source'"):
        run("folder", tmp_path / "others")


def test_arrays_keep_their_images(source: Path) -> None:
    run("npy", source)
    write_picture(source / "cat/bb.png", 7)
    with pytest.raises(
        OptionError, match=r"6 images .* now .* 7; .* 'cat/c\.png' .* 'cat/bb\.png'"
    ):
        run("npy", source)
    (source / "cat/bb.png").unlink()
    (source / "dog/deep/a.png").unlink()
    with pytest.raises(OptionError, match=r"'dog/deep/a\.png' there and none now"):
        run("npy", source)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_image_that_cannot_be_read(source: Path, tmp_path: Path, layout: str) -> None:
    whole = (source / "cat/b.png").read_bytes()
    (source / "cat/b.png").write_bytes(whole[:-40])
    with pytest.raises(PictureError, match=r"images/cat/b\.png .* damaged .* --on-error skip"):
        run(layout, source)
    assert not [name for name in content(tmp_path / "out") if name.startswith(".")]
    told = Told()
    report = run(layout, source, told=told, on_error="skip")
    assert told.problems == list(report.problems)
    assert len(told.problems) == 1
    assert sum(told.done) == (6 if layout == "folder" else 6 + 5 + 5)
    left = tuple(name for name in NAMES if name != "cat/b.png")
    expected = corrupt(pixels(source, left), "snow", 5, constants="cifar")
    if layout == "folder":
        assert not (tmp_path / "out/snow/5/cat/b.png").exists()
        assert np.array_equal(pixels(tmp_path / "out/snow/5", left), expected)
        (source / "cat/b.png").write_bytes(whole)
        assert run(layout, source) == Report(written=4, there=20, problems=())
    else:
        assert np.array_equal(np.load(tmp_path / "out/snow.npy")[5:], expected)
        assert np.load(tmp_path / "out/labels.npy").tolist() == [0, 0, 0, 1, 1] * 2
        assert run(layout, source, on_error="skip").problems == report.problems
        (source / "cat/b.png").write_bytes(whole)
        with pytest.raises(OptionError, match="5 images that can be read, now there are 6"):
            run(layout, source)


def test_no_image_can_be_read(source: Path) -> None:
    for name in NAMES:
        (source / name).write_bytes(b"")
    assert run("folder", source, on_error="skip").written == 0
    with pytest.raises(InputError, match="None of the 6 images"):
        run("npy", source, on_error="skip", out=source.with_name("arrays"))
    assert suitable_constants(find_images(source), source / "x")[0] == "imagenet"


def test_arrays_need_one_size(source: Path, tmp_path: Path) -> None:
    write_picture(source / "cat/c.png", 7, (20, 16))
    write_picture(source / "dog/deep/a.png", 7, (2, 2))
    with pytest.raises(InputError, match=r"cat/c\.png has 16 × 20 pixels, those before .* 20 × 16"):
        run("npy", source, on_error="skip")
    assert content(tmp_path / "out") == {}


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """What a full disk does, for one process: writing beyond the size fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("layout", "size"), [("folder", 600), ("npy", 600), ("npy", 6000)])
def test_a_full_disk(source: Path, tmp_path: Path, layout: str, size: int) -> None:
    with files_of_at_most(size), pytest.raises(OutputError, match="cannot be written: File too"):
        run(layout, source)
    assert set(content(tmp_path / "out")) <= {MANIFEST, "labels.npy"}
    run(layout, source)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_folders_that_cannot_be_written_to(source: Path, tmp_path: Path, layout: str) -> None:
    for out in (source, source / "cat", tmp_path / "images/../images/x"):
        with pytest.raises(InputError, match=r"or lies in it.* images-c"):
            run(layout, source, out=out)
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="file is a file"):
        run(layout, source, out=tmp_path / "file")
    with pytest.raises(OutputError, match=r"file/x cannot be written to: Not a directory"):
        run(layout, source, out=tmp_path / "file/x")
    with pytest.raises(InputError, match=r"is not empty, .* holds 'file'"):
        run(layout, source, out=tmp_path)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / MANIFEST).write_text("{")
    with pytest.raises(InputError, match="says how the files beside it were made"):
        run(layout, source, out=tmp_path / "damaged")
    (tmp_path / "damaged" / MANIFEST).write_text("[]")
    with pytest.raises(InputError, match="is of something else"):
        run(layout, source, out=tmp_path / "damaged")


def test_a_place_that_is_taken(source: Path, tmp_path: Path) -> None:
    run("folder", source, Recipe(corruptions=("fog",), constants="cifar"))
    (tmp_path / "out/snow").touch()
    with pytest.raises(OutputError, match=r"out/snow/1/cat/a\.png cannot be written: Not a dir"):
        run("folder", source)


def test_two_runs_do_not_write_to_one_folder(source: Path, tmp_path: Path) -> None:
    with open_output(tmp_path / "out"):
        with pytest.raises(InputError, match="Another run is writing to"):
            run("folder", source)
    run("folder", source)


def test_a_moved_pair_of_folders_still_belongs_together(source: Path, tmp_path: Path) -> None:
    run("folder", source)
    (tmp_path / "elsewhere").mkdir()
    for name in ("images", "out"):
        (tmp_path / name).rename(tmp_path / "elsewhere" / name)
    assert run("folder", tmp_path / "elsewhere/images").written == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "workers must be an int >= 1. Got 0"),
        ({"quality": 101}, "quality must be at most 100. Got 101"),
        ({"on_error": "ignore"}, "on_error must be 'fail' or 'skip'. Got 'ignore'"),
    ],
)
def test_options_are_checked(source: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        run("folder", source, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"corruptions": ("fogg",)}, "Did you mean 'fog'"),
        ({"corruptions": ()}, "At least one corruption"),
        ({"severities": (1, 6)}, "severity must be an int from 1 to 5. Got 6"),
        ({"constants": "mnist"}, "constants must be"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_a_recipe_is_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        Recipe(**options)


def test_a_recipe_is_put_in_order() -> None:
    recipe = Recipe(corruptions=("saturate", "fog", "snow", "fog"), severities=(5, 1, 5))
    assert recipe.corruptions == ("snow", "fog", "saturate")
    assert recipe.severities == (1, 5)
    everything = CORRUPTIONS + EXTRA_CORRUPTIONS
    assert Recipe(corruptions=everything).corruptions == everything


def test_constants_follow_from_the_size_and_stay(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert suitable_constants(find_images(source), out) == (
        "cifar",
        "as the first image has 20 × 16 pixels",
    )
    write_picture(source / "cat/a.png", 0, (16, 65))
    assert suitable_constants(find_images(source), out)[0] == "imagenet"
    run("folder", source)
    assert suitable_constants(find_images(source), out)[0] == "cifar"


def test_few_images_need_no_processes(monkeypatch: Any) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    assert [suitable_workers(images) for images in (1, 7, 8, 1000)] == [1, 1, 2, 16]


def test_randomness_follows_from_the_image_not_its_name(source: Path, tmp_path: Path) -> None:
    (source / "dog/copy.png").write_bytes((source / "cat/a.png").read_bytes())
    run("folder", source)
    made = [read_image(tmp_path / "out/snow/5" / name) for name in ("cat/a.png", "dog/copy.png")]
    assert np.array_equal(*made)
