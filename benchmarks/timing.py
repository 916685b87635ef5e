"""Timing that compares fairly: everything in one process, in turns, by medians."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

__all__ = ["count_cpu_time", "medians"]

_clock = time.perf_counter


def count_cpu_time() -> None:
    """Compare CPU time of one thread from now on, as a machine with other work to do asks for."""
    global _clock
    torch.set_num_threads(1)
    _clock = time.process_time


def medians(device: str, rounds: int, runs: Sequence[Callable[[], object]]) -> list[float]:
    """Run all in turns and return the median time of each in milliseconds."""
    times: list[list[float]] = [[] for _ in runs]
    for index in range(rounds + 3):
        for run, into in zip(runs, times, strict=True):
            _wait(device)
            start = _clock()
            run()
            _wait(device)
            if index >= 3:  # the first rounds warm up
                into.append(1000 * (_clock() - start))
    return [statistics.median(one) for one in times]


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
