"""Worker processes: the order of results, errors in their turn, and ends that are noticed."""

import os
import signal
import time
from multiprocessing import active_children

import cv2
import pytest

from acclimate.data.workers import start_workers
from acclimate.errors import AcclimateError, InputError


def late_or_wrong(number: int) -> int:
    """The first task takes longest, and the third is the first that is wrong."""
    if number == 0:
        time.sleep(0.2)
    if number in (2, 3):
        time.sleep(0.1 * (3 - number))
        raise InputError(f"{number} is wrong.")
    return number * 10


def thread_and_process(_: int) -> tuple[int, int]:
    return cv2.getNumThreads(), os.getpid()


def end_suddenly(number: int) -> int:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def fail(_: int) -> None:
    raise ZeroDivisionError("a fault of ours")


@pytest.mark.parametrize("count", [1, 2])
def test_results_and_errors_come_in_order_from_one_thread_each(count: int) -> None:
    threads = cv2.getNumThreads()
    with start_workers(count) as workers:
        found = set(workers.map(thread_and_process, range(20)))
        results = workers.map(late_or_wrong, range(6))
        assert [next(results), next(results)] == [0, 10]
        with pytest.raises(InputError, match=r"2 is wrong\."):
            next(results)
    assert {threads for threads, _ in found} == {1}
    assert (os.getpid() in {process for _, process in found}) == (count == 1)
    assert cv2.getNumThreads() == threads
    assert not active_children()


@pytest.mark.slow
def test_a_worker_that_ends_is_noticed(capfd: pytest.CaptureFixture[str]) -> None:
    with start_workers(2) as workers:
        with pytest.raises(AcclimateError, match=r"ended before .* \(exit code -9\)"):
            list(workers.map(end_suddenly, range(4)))
    with start_workers(2) as workers:
        with pytest.raises(AcclimateError, match=r"\(exit code 1\)"):
            list(workers.map(fail, range(1)))
    assert "a fault of ours" in capfd.readouterr().err
