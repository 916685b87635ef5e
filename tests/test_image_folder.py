"""Folders of images: what is found, in which order, and what is read and written."""

import os
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from acclimate.data.image_folder import (
    FORMATS,
    PictureError,
    encode_image,
    find_images,
    first_size,
    read_image,
)
from acclimate.errors import InputError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def torchvision_order(root: Path) -> list[tuple[str, int]]:
    """What ``torchvision.datasets.ImageFolder`` lists, as it stands in its make_dataset."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    return [
        (Path(folder, file).relative_to(root).as_posix(), label)
        for label, name in enumerate(classes)
        for folder, _, files in sorted(os.walk(root / name, followlinks=True))
        for file in sorted(files)
    ]


def test_class_folders_stand_in_the_order_of_torchvision(tmp_path: Path) -> None:
    touch(tmp_path, "b/2.png", "b/10.png", "a b/ü.JPG", "a/x/1.png", "a/x-y/1.png", "a/z.png")
    touch(tmp_path, "a/x/b/1.webp", "B/1.jpeg", "a/1.png", "a/1.jpg")
    images = find_images(tmp_path)
    expected = torchvision_order(tmp_path)
    assert [(name, label) for name, label in zip(images.names, images.labels, strict=True)] == (
        expected
    )
    assert images.classes == ("B", "a", "a b", "b")


def test_a_flat_folder_has_no_classes(tmp_path: Path) -> None:
    touch(tmp_path, "b.png", "a.PNG", "a.jpg")
    assert find_images(str(tmp_path)).names == ("a.PNG", "a.jpg", "b.png")
    assert find_images(tmp_path).classes == ()


def test_what_is_no_image_or_hidden_is_passed_over(tmp_path: Path) -> None:
    touch(tmp_path, "cat/1.png", "README.md", "labels.csv", "cat/Thumbs.db", "cat/.DS_Store")
    touch(tmp_path, ".git/x.png", "cat/._1.png", "notes/read.txt", "noending")
    (tmp_path / "empty").mkdir()
    images = find_images(tmp_path)
    assert images.names == ("cat/1.png",)
    assert images.classes == ("cat",)


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    touch(tmp_path, "elsewhere/1.png", "images/cat/2.png")
    (tmp_path / "images/dog").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "images/cat/up").symlink_to(tmp_path / "images")
    (tmp_path / "images/cat/self").symlink_to("self")
    assert find_images(tmp_path / "images").names == ("cat/2.png", "dog/1.png")


@pytest.mark.parametrize(
    ("names", "folder", "words"),
    [
        ([], "nowhere", "nowhere does not exist"),
        (["a.png"], "a.png", "a.png is a file, not a folder"),
        (["a/read.me"], ".", r"no image in .*\.jpg, .* in the folder itself or in one folder"),
        (["a/1.png", "2.png"], ".", "all in class folders or all in the folder .*'2.png'"),
    ],
)
def test_folders_that_do_not_serve(
    tmp_path: Path, names: list[str], folder: str, words: str
) -> None:
    touch(tmp_path, *names)
    with pytest.raises(InputError, match=words):
        find_images(tmp_path / folder)


def test_a_folder_that_cannot_be_listed(tmp_path: Path, monkeypatch: Any) -> None:
    touch(tmp_path, "cat/1.png")

    def refuse(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(InputError, match="cannot be listed: Permission denied"):
        find_images(tmp_path)


@pytest.mark.parametrize(
    ("mode", "ending"),
    [(mode, "png") for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")]
    + [("CMYK", "jpg"), ("F", "tif"), ("P", "bmp"), ("RGBA", "webp")],
)
def test_everything_becomes_rgb_as_pillow_has_it(tmp_path: Path, mode: str, ending: str) -> None:
    if mode == "I;16":
        picture = Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 3)
    else:
        picture = Image.fromarray(PIXELS).convert(mode)
    assert picture.mode == mode
    picture.save(tmp_path / f"x.{ending}")
    expected = np.asarray(Image.open(tmp_path / f"x.{ending}").convert("RGB"))
    image = read_image(tmp_path / f"x.{ending}")
    assert image.dtype == np.uint8
    assert np.array_equal(image, expected)


def test_orientation_is_not_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(PIXELS).save(tmp_path / "x.png", exif=exif)
    assert np.array_equal(read_image(tmp_path / "x.png"), PIXELS)


def png(pixels: Any = PIXELS) -> bytes:
    return encode_image(pixels, "x.png", 85)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.png", b"", "x.png cannot be read: the file is empty"),
        ("x.png", b"not an image", "damaged, or no image"),
        ("x.png", png()[:-30], "it is damaged"),
        ("x.jpg", encode_image(np.tile(PIXELS, (9, 9, 1)), "x.jpg", 85)[:-200], "truncated"),
        ("x.gif", b"GIF89a", r"\.gif is none of the formats that are read and written"),
        ("x [bold].heic", b"", r"x \[bold\]\.heic cannot be corrupted"),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PictureError, match=words):
        read_image(tmp_path / name)


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone.png").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(PictureError, match="cannot be read: No such file"):
        read_image(tmp_path / "gone.png")
    with pytest.raises(PictureError, match="it is not a regular file"):
        read_image(tmp_path / "pipe.png")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied"), "x.png cannot be read: Permission denied"),
        (MemoryError(), "not enough memory"),
        (IndexError(), "it is damaged"),
    ],
)
def test_other_reasons(tmp_path: Path, monkeypatch: Any, error: Exception, words: str) -> None:
    (tmp_path / "x.png").write_bytes(png())

    def refuse(path: Path) -> None:
        raise error

    monkeypatch.setattr(Image, "open", refuse)
    with pytest.raises(PictureError, match=words):
        read_image(tmp_path / "x.png")


def test_decompression_bombs_are_not_decoded(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "x.png").write_bytes(png())
    for limit in (PIXELS.size // 4, 10):  # Pillow warns, and refuses what is twice too large
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(PictureError, match="too many to be decoded safely"):
            read_image(tmp_path / "x.png")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_files_are_read_or_named(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    ending = data.draw(st.sampled_from([".jpg", ".png", ".bmp", ".ppm", ".tif", ".webp"]))
    content = bytearray(encode_image(PIXELS, "x" + ending, 85))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    for _ in range(data.draw(st.integers(0, 4)) if content else 0):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / f"damaged{ending}"
    path.write_bytes(content)
    try:
        assert read_image(path).shape[2] == 3
    except PictureError:
        pass


def test_the_first_size_is_that_of_the_first_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    assert first_size(find_images(tmp_path)) is None
    (tmp_path / "b.png").write_bytes(png())
    (tmp_path / "c.png").write_bytes(png(PIXELS[:2]))
    assert first_size(find_images(tmp_path)) == (6, 8)


@pytest.mark.parametrize("ending", FORMATS)
def test_formats_come_back(tmp_path: Path, ending: str) -> None:
    content = encode_image(PIXELS, f"x{ending.upper()}", 85)
    (tmp_path / f"x{ending}").write_bytes(content)
    image = read_image(tmp_path / f"x{ending}")
    assert Image.open(BytesIO(content)).format == FORMATS[ending]
    if FORMATS[ending] in ("JPEG", "WEBP"):
        assert image.shape == PIXELS.shape
        assert len(encode_image(PIXELS, f"x{ending}", 20)) < len(content)
    else:
        assert np.array_equal(image, PIXELS)


def test_jpeg_is_what_imagenet_c_stores() -> None:
    expected = BytesIO()
    Image.fromarray(PIXELS).save(expected, "JPEG", quality=85, optimize=True)
    assert encode_image(PIXELS, "x.JPEG", 85) == expected.getvalue()


def test_what_a_format_cannot_hold_is_named() -> None:
    wide = np.zeros((1, 20_000, 3), np.uint8)
    with pytest.raises(PictureError, match=r"x\.webp cannot be written as WEBP with its 20000 × 1"):
        encode_image(wide, "x.webp", 85)
