"""What every corruption keeps: shapes, repeatable noise, order of severity, clear refusals."""

import random
import tracemalloc
from hashlib import sha256

import cv2
import numpy as np
import pytest
import torch
from numpy.random import default_rng
from numpy.typing import NDArray

from acclimate.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
from acclimate.corruptions.constants import TABLE
from acclimate.data.mini import read_mini
from acclimate.errors import InputError, OptionError

Pixels = NDArray[np.uint8]
ALL = CORRUPTIONS + EXTRA_CORRUPTIONS
RANDOM = {
    *("gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "motion_blur", "snow"),
    *("frost", "fog", "elastic_transform", "speckle_noise", "spatter"),
}
CASES = [(constants, severity) for constants in ("cifar", "imagenet") for severity in range(1, 6)]
each = pytest.mark.parametrize("name", ALL)


BUNDLED, _ = read_mini("test")


def pictures(n: int, height: int = 32, width: int = 32) -> Pixels:
    """Natural images."""
    return np.stack([cv2.resize(image, (width, height)) for image in BUNDLED[:n]]).astype(np.uint8)


def test_names_are_those_of_the_benchmarks_in_their_order() -> None:
    assert " ".join(CORRUPTIONS) == (
        "gaussian_noise shot_noise impulse_noise defocus_blur glass_blur motion_blur zoom_blur "
        "snow frost fog brightness contrast elastic_transform pixelate jpeg_compression"
    )
    assert EXTRA_CORRUPTIONS == ("speckle_noise", "gaussian_blur", "spatter", "saturate")


def test_parameters_that_no_other_test_measures() -> None:
    """Of the original's make_cifar_c.py and make_imagenet_c.py, as they stand there."""
    imsize = 32
    published = {
        ("glass_blur", "cifar"): [
            (0.05, 1, 1),
            (0.25, 1, 1),
            (0.4, 1, 1),
            (0.25, 1, 2),
            (0.4, 1, 2),
        ],
        ("glass_blur", "imagenet"): [(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)],
        ("motion_blur", "cifar"): [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
        ("motion_blur", "imagenet"): [(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)],
        ("snow", "cifar"): [
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ],
        ("snow", "imagenet"): [
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ],
        ("fog", "cifar"): [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)],
        ("fog", "imagenet"): [(1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)],
        ("elastic_transform", "cifar"): [
            (imsize * 0, imsize * 0, imsize * 0.08),
            (imsize * 0.05, imsize * 0.2, imsize * 0.07),
            (imsize * 0.08, imsize * 0.06, imsize * 0.06),
            (imsize * 0.1, imsize * 0.04, imsize * 0.05),
            (imsize * 0.1, imsize * 0.03, imsize * 0.03),
        ],
        ("elastic_transform", "imagenet"): [
            (488, 244 * 0.7, 24.4),
            (488, 244 * 0.08, 48.8),
            (12.2, 2.44, 4.88),
            (244 * 0.07, 2.44, 4.88),
            (29.28, 2.44, 4.88),
        ],
        ("spatter", "cifar"): [
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ],
        ("spatter", "imagenet"): [
            (0.65, 0.3, 4, 0.69, 0.6, 0),
            (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ],
    }
    for (name, constants), rows in published.items():
        np.testing.assert_allclose(TABLE[name][constants], rows)
    # Weights of image and frost; CIFAR's photographs are a fifth as large.
    frost = [(1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)]
    assert [(*row, 0.2) for row in frost] == [*TABLE["frost"]["cifar"]]
    frost = [(1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)]
    assert [(*row, 1) for row in frost] == [*TABLE["frost"]["imagenet"]]


@each
@pytest.mark.parametrize("size", [(1, 1), (3, 5), (33, 18)])
def test_an_image_comes_out_the_same_alone_and_in_any_batch(
    name: str, size: tuple[int, int]
) -> None:
    images = default_rng(0).integers(0, 256, (4, *size, 3), np.uint8)
    kept = images.copy()
    for constants, severity in CASES:
        batch = corrupt(images, name, severity, constants=constants)
        assert batch.dtype == np.uint8
        assert batch.shape == images.shape
        assert not np.shares_memory(batch, images)
        order = [2, 0, 3]
        part = corrupt(images[order], name, severity, constants=constants)
        np.testing.assert_array_equal(part, batch[order])
        alone = corrupt(images[1], name, severity, constants=constants)
        assert alone.shape == (*size, 3)
        np.testing.assert_array_equal(alone, batch[1])
    np.testing.assert_array_equal(images, kept)


@each
def test_a_batch_larger_than_a_chunk(name: str) -> None:
    images = pictures(90)
    batch = corrupt(images, name, 4)
    for index in (0, 84, 85, 89):
        np.testing.assert_array_equal(batch[index], corrupt(images[index], name, 4))


@each
def test_randomness_follows_from_the_seed_and_the_image_alone(name: str) -> None:
    images = pictures(3)
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    first = corrupt(images, name, 5, seed=7)
    assert random.getstate() == states[0]
    np.testing.assert_array_equal(np.random.get_state()[1], states[1][1])  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[2])
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    np.testing.assert_array_equal(corrupt(images, name, 5, seed=7), first)
    other = corrupt(images, name, 5, seed=8)
    differs = (first != other).any((1, 2, 3))
    assert differs.all() if name in RANDOM else not differs.any()


@pytest.mark.parametrize("name", ["gaussian_noise", "impulse_noise", "shot_noise"])
def test_images_severities_and_corruptions_have_noise_of_their_own(name: str) -> None:
    """Where two share their noise, it shows in the sign or place of what it does."""
    gray = np.full((2, 64, 64, 3), 128, np.uint8)
    gray[1, 0, 0, 0] = 129
    noise = [corrupt(gray, name, severity).astype(float) - 128 for severity in (4, 5)]
    others = "speckle_noise" if name == "gaussian_noise" else "gaussian_noise"
    pairs = [
        (noise[0][0], noise[0][1]),
        (noise[0][0], noise[1][0]),
        (noise[1][0], corrupt(gray[0], others, 5).astype(float) - 128),
        (noise[1][0], corrupt(gray[0], name, 5, seed=1).astype(float) - 128),
    ]
    for one, other in pairs:
        assert abs(np.corrcoef(one.reshape(-1), other.reshape(-1))[0, 1]) < 0.05


def test_noise_stays_the_same_from_release_to_release() -> None:
    """Published results depend on it. What else draws, draws from the same generator."""
    image = np.arange(27, dtype=np.uint8).reshape(3, 3, 3) * 9
    expected = [
        *(40, 22, 0, 44, 27, 24, 6, 113, 67, 105, 66, 75, 108, 157),
        *(97, 131, 136, 154, 137, 143, 205, 185, 203, 207, 233, 231, 205),
    ]
    assert corrupt(image, "gaussian_noise", 5).reshape(-1).tolist() == expected
    noisy = corrupt(np.tile(image, (20, 20, 1)), "impulse_noise", 5, constants="imagenet", seed=3)
    assert sha256(noisy).hexdigest()[:16] == "d684678c9117af9d"


# The published parameters of these trade one effect for another from severity to severity.
UNORDERED = {
    "cifar": ("glass_blur", "motion_blur", "frost", "elastic_transform", "spatter", "saturate"),
    "imagenet": ("glass_blur", "frost", "elastic_transform", "spatter", "snow", "fog"),
}


@pytest.mark.parametrize(
    ("name", "constants"),
    [
        (name, constants)
        for constants in ("cifar", "imagenet")
        for name in ALL
        if name not in UNORDERED[constants]
    ],
)
def test_a_higher_severity_changes_more(name: str, constants: str) -> None:
    images = pictures(40) if constants == "cifar" else pictures(4, 96, 96)
    changes = [
        abs(corrupt(images, name, severity, constants=constants).astype(float) - images).mean()
        for severity in range(1, 6)
    ]
    assert (np.diff(changes) > 0).all()


@pytest.mark.parametrize("name", ["frost", "fog", "snow", "zoom_blur", "glass_blur"])
def test_an_image_larger_than_every_photograph_of_frost(name: str) -> None:
    image = pictures(1, 700, 1000)[0]
    for constants in ("cifar", "imagenet"):
        ours = corrupt(image, name, 5, constants=constants)
        assert ours.shape == image.shape
        # No part is left out.
        changed = (ours != image).reshape(7, 100, 10, 100, 3).mean((1, 3, 4))
        assert changed.min() > 0.2


@each
def test_any_layout_of_the_array_will_do(name: str) -> None:
    images = pictures(3)
    expected = corrupt(images, name, 5)
    views = {
        "Fortran's order": np.asfortranarray(images),
        "negative strides": images[::-1, ::-1].copy()[::-1, ::-1],
        "every other column": np.repeat(images, 2, 2)[:, :, ::2],
        "from channels first": images.transpose(0, 3, 1, 2).copy().transpose(0, 2, 3, 1),
        "memory map": images.view(np.memmap),
    }
    for view in views.values():
        view.setflags(write=False)
        ours = corrupt(view, name, 5)
        assert type(ours) is np.ndarray
        assert ours.flags.writeable
        np.testing.assert_array_equal(ours, expected)


@each
def test_the_number_of_threads_changes_nothing(name: str) -> None:
    images = pictures(1, 224, 224)
    threads = cv2.getNumThreads()
    results = []
    try:
        for number in (1, 4):
            cv2.setNumThreads(number)
            results.append(corrupt(images, name, 5, constants="imagenet"))
    finally:
        cv2.setNumThreads(threads)
    np.testing.assert_array_equal(*results)


@each
def test_no_arithmetic_warning_whatever_numpy_is_told(name: str) -> None:
    images = np.concatenate([np.zeros((1, 9, 9, 3), np.uint8), pictures(1, 9, 9)])
    images = np.concatenate([images, np.full((1, 9, 9, 3), 255, np.uint8)])
    with np.errstate(all="raise"):
        for constants, severity in CASES:
            corrupt(images, name, severity, constants=constants)


@each
def test_memory_is_a_small_multiple_of_the_images(name: str) -> None:
    image = pictures(1, 300, 400)[0]
    for constants in ("cifar", "imagenet"):
        corrupt(image[:32, :32], name, 5, constants=constants)  # reads what is read once
        tracemalloc.start()
        try:
            corrupt(image, name, 5, constants=constants)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 30 * image.size


def test_integers_of_numpy_are_integers() -> None:
    image = pictures(1)[0]
    expected = corrupt(image, "fog", 3, seed=2)
    ours = corrupt(image, "fog", np.int64(3), seed=np.uint8(2))
    np.testing.assert_array_equal(ours, expected)


IMAGE = np.zeros((8, 9, 3), np.uint8)


@pytest.mark.parametrize(
    ("images", "parts"),
    [
        (IMAGE / 255, ["Got float64", "round().astype('uint8')"]),
        (IMAGE.astype(np.int64), ["Got int64"]),
        (IMAGE.astype(bool), ["Got bool"]),
        (IMAGE.tolist(), ["Got list", "numpy.asarray"]),
        (torch.zeros(8, 9, 3, dtype=torch.uint8), ["Got Tensor", "numpy.asarray"]),
        (None, ["Got NoneType"]),
        (IMAGE[..., 0], ["(8, 9)", "numpy.repeat(gray, 3, axis=-1)"]),
        (IMAGE[..., :1], ["(8, 9, 1)", "numpy.repeat(gray, 3, axis=-1)"]),
        (np.zeros((2, 8, 9, 1), np.uint8), ["(2, 8, 9, 1)", "numpy.repeat"]),
        (np.zeros((8, 9, 4), np.uint8), ["(8, 9, 4)", "images[..., :3]"]),
        (np.zeros((2, 8, 9, 4), np.uint8), ["(2, 8, 9, 4)", "images[..., :3]"]),
        (np.zeros((3, 8, 9), np.uint8), ["(3, 8, 9)", "numpy.moveaxis(images, -3, -1)"]),
        (np.zeros((2, 3, 8, 9), np.uint8), ["(2, 3, 8, 9)", "numpy.moveaxis(images, -3, -1)"]),
        (np.zeros((8, 9, 2), np.uint8), ["(8, 9, 2)"]),
        (np.zeros((1, 1, 8, 9, 3), np.uint8), ["(1, 1, 8, 9, 3)"]),
        (np.zeros(3, np.uint8), ["(3,)"]),
        (np.uint8(3), ["Got uint8"]),
        (np.zeros((0, 8, 9, 3), np.uint8), ["at least one image", "(0, 8, 9, 3)"]),
        (np.zeros((2, 0, 9, 3), np.uint8), ["at least one image", "(2, 0, 9, 3)"]),
        (np.zeros((1, 32767, 3), np.uint8), ["at most 32766", "(1, 32767, 3)", "Cut"]),
    ],
)
def test_refused_images(images: object, parts: list[str]) -> None:
    with pytest.raises(InputError, match="images must") as caught:
        corrupt(images, "fog", 1)  # type: ignore[arg-type]
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "name", ["zoom_blur", "motion_blur", "snow", "frost", "elastic_transform", "jpeg_compression"]
)
def test_the_largest_side_there_may_be(name: str) -> None:
    image = np.zeros((1, 32766, 3), np.uint8)
    assert corrupt(image, name, 5).shape == image.shape


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("gausian_noise", ["'gausian_noise'", "Did you mean 'gaussian_noise'?"]),
        ("jpeg", ["Did you mean 'jpeg_compression'?"]),
        ("Fog", ["Did you mean 'fog'?"]),
        ("xyzzy", ["'xyzzy'. The corruptions are: gaussian_noise, ", ", saturate."]),
        (3, ["no corruption 3. The corruptions are"]),
        (["fog"], ["no corruption ['fog']"]),
    ],
)
def test_unknown_corruptions(name: object, parts: list[str]) -> None:
    with pytest.raises(OptionError, match="There is no corruption") as caught:
        corrupt(IMAGE, name, 1)  # type: ignore[arg-type]
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("severity", [0, 6, -1, "3", True, np.True_, 2.0, None, (1, 2)])
def test_refused_severities(severity: object) -> None:
    with pytest.raises(OptionError, match="severity must be an int from 1 to 5") as caught:
        corrupt(IMAGE, "fog", severity)  # type: ignore[arg-type]
    assert repr(severity) in str(caught.value)


@pytest.mark.parametrize("constants", ["ImageNet", "cifar10", None, 0])
def test_refused_constants(constants: object) -> None:
    with pytest.raises(OptionError, match="constants must be 'cifar' or 'imagenet'") as caught:
        corrupt(IMAGE, "fog", 1, constants=constants)  # type: ignore[arg-type]
    assert repr(constants) in str(caught.value)


@pytest.mark.parametrize("seed", [-1, 1.0, "0", None, True])
def test_refused_seeds(seed: object) -> None:
    with pytest.raises(OptionError, match="seed must be an int >= 0") as caught:
        corrupt(IMAGE, "fog", 1, seed=seed)  # type: ignore[arg-type]
    assert repr(seed) in str(caught.value)
