"""Timing that compares fairly: everything in one process, in turns, by medians."""

import platform
import statistics
import time
from collections.abc import Callable, Sequence

import torch

__all__ = ["machine", "medians"]


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


def machine(device: str) -> str:
    """Describe where the measurement runs."""
    if device == "cuda":
        where = torch.cuda.get_device_name()
    else:
        where = f"{platform.machine()}, {_processor()}, {torch.get_num_threads()} threads"
    return f"torch {torch.__version__}, Python {platform.python_version()}, {where}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            lines = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        lines = []
    return lines[0] if lines else platform.processor()


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
