"""Noise against the distributions it is drawn from."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from acclimate.corruptions import corrupt

SEVERITIES = range(1, 6)
# As in the original scripts, severity 1 to 5.
GAUSSIAN = {"cifar": (0.04, 0.06, 0.08, 0.09, 0.10), "imagenet": (0.08, 0.12, 0.18, 0.26, 0.38)}
SPECKLE = {"cifar": (0.06, 0.1, 0.12, 0.16, 0.2), "imagenet": (0.15, 0.2, 0.35, 0.45, 0.6)}
PHOTONS = {"cifar": (500, 250, 100, 75, 50), "imagenet": (60, 25, 12, 5, 3)}
IMPULSES = {"cifar": (0.01, 0.02, 0.03, 0.05, 0.07), "imagenet": (0.03, 0.06, 0.09, 0.17, 0.27)}
TABLES = pytest.mark.parametrize("constants", ["cifar", "imagenet"])


def plain(value: int, side: int = 100) -> NDArray[np.uint8]:
    return np.full((side, side, 3), value, np.uint8)


def assert_drawn_from(noisy: NDArray[np.uint8], expected_256: NDArray[np.float64]) -> None:
    """Compare the histogram with the probability of each value, and the first two moments."""
    values, n = np.arange(256), noisy.size
    counts = np.bincount(noisy.reshape(-1), minlength=256)
    assert counts[expected_256 == 0].sum() == 0
    assert counts == pytest.approx(n * expected_256, abs=6 * (n * expected_256).max() ** 0.5)
    mean = expected_256 @ values
    squared_deviation = (values - mean) ** 2
    variance = expected_256 @ squared_deviation
    spread = expected_256 @ (squared_deviation - variance) ** 2
    assert abs(noisy.mean() - mean) < 5 * (variance / n) ** 0.5
    assert abs(((noisy - mean) ** 2).mean() - variance) < 5 * (spread / n) ** 0.5


def truncated_normal(mean: float, deviation: float) -> NDArray[np.float64]:
    """The probabilities of a normal value that is clipped and loses its fraction."""
    below = stats.norm.cdf(np.arange(1, 256), mean, deviation)
    return np.diff(below, prepend=0, append=1)


@TABLES
@pytest.mark.parametrize("value", [20, 128, 250])
def test_gaussian_noise(constants: str, value: int) -> None:
    for severity, deviation in zip(SEVERITIES, GAUSSIAN[constants], strict=True):
        noisy = corrupt(plain(value), "gaussian_noise", severity, constants=constants)
        assert_drawn_from(noisy, truncated_normal(value, 255 * deviation))


@TABLES
@pytest.mark.parametrize("value", [20, 128, 250])
def test_speckle_noise(constants: str, value: int) -> None:
    for severity, deviation in zip(SEVERITIES, SPECKLE[constants], strict=True):
        noisy = corrupt(plain(value), "speckle_noise", severity, constants=constants)
        assert_drawn_from(noisy, truncated_normal(value, value * deviation))


@TABLES
@pytest.mark.parametrize("value", [20, 128, 255])
def test_shot_noise(constants: str, value: int) -> None:
    for severity, photons in zip(SEVERITIES, PHOTONS[constants], strict=True):
        noisy = corrupt(plain(value), "shot_noise", severity, constants=constants)
        expected = np.zeros(256)
        for count in range(2 * photons + 100):
            seen = int(min(count / photons, 1) * 255)
            expected[seen] += stats.poisson.pmf(count, value / 255 * photons)
        assert_drawn_from(noisy, expected)


@pytest.mark.parametrize("name", ["shot_noise", "speckle_noise"])
def test_black_stays_black(name: str) -> None:
    assert not corrupt(plain(0), name, 5).any()


@TABLES
def test_impulse_noise(constants: str) -> None:
    for severity, amount in zip(SEVERITIES, IMPULSES[constants], strict=True):
        noisy = corrupt(plain(100), "impulse_noise", severity, constants=constants)
        expected = np.zeros(256)
        expected[[0, 100, 255]] = amount / 2, 1 - amount, amount / 2
        assert_drawn_from(noisy, expected)


@pytest.mark.parametrize("name", ["gaussian_noise", "shot_noise", "speckle_noise", "impulse_noise"])
def test_noise_is_independent_from_value_to_value(name: str) -> None:
    noise = corrupt(plain(128), name, 5).astype(float)
    noise -= noise.mean()
    neighbours = {
        "channels": (noise[..., 0], noise[..., 1]),
        "columns": (noise[:, 1:], noise[:, :-1]),
        "rows": (noise[1:], noise[:-1]),
        "halves": (noise[:50], noise[50:]),
    }
    for one, other in neighbours.values():
        assert abs((one * other).mean()) < 5 * noise.var() / one.size**0.5
