import pytest

from tests.comparisons import two_runs


def test_errors_count_images_not_batches() -> None:
    source, rmt = two_runs().runs
    assert source.errors() == {"snow": 60.0, "jpeg_compression": 10.0}
    assert rmt.errors() == {"snow": 20.0, "jpeg_compression": 20.0}


def test_mean_error_weighs_domains_alike_however_large() -> None:
    assert [one.mean_error() for one in two_runs().runs] == [35.0, 20.0]


def test_seconds_add_up() -> None:
    assert two_runs().runs[0].seconds() == pytest.approx(1.5)
