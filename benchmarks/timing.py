"""Timing that compares fairly: everything in one process, in turns, by medians."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

__all__ = ["medians"]


def medians(device: str, rounds: int, runs: Sequence[Callable[[], object]]) -> list[float]:
    """Run all in turns and return the median time of each in milliseconds."""
    times: list[list[float]] = [[] for _ in runs]
    for index in range(rounds + 3):
        for run, into in zip(runs, times, strict=True):
            _wait(device)
            start = time.perf_counter()
            run()
            _wait(device)
            if index >= 3:  # the first rounds warm up
                into.append(1000 * (time.perf_counter() - start))
    return [statistics.median(one) for one in times]


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
