"""What the demo promises: time, RMT's lead, and the same numbers again; not part of `make bench`.

Runs the whole demo three times, twice on two threads and once on one.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from acclimate.bench.machine import describe_machine

MINUTES, LEAD, THREADS_MATTER = 4.0, 1.5, 0.3


def run(folder: str, threads: int) -> tuple[dict[str, dict[str, float]], float]:
    """Return the demo's results and its time in minutes."""
    start = time.perf_counter()
    subprocess.run(  # noqa: S603
        [sys.executable, "-m", "acclimate", "demo", "--out", folder],
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    minutes = (time.perf_counter() - start) / 60
    return json.loads((Path(folder) / "results.json").read_text()), minutes


def mean(errors: dict[str, float]) -> float:
    """Return the mean of the corruptions' errors."""
    return sum(errors.values()) / len(errors)


def main() -> bool:
    """Print the table; return whether every promise is kept."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [run(f"{folder}/{index}", threads) for index, threads in enumerate((2, 2, 1))]
    (first, minutes), (second, _), (single, single_minutes) = runs
    table = Table(title="The demo, mean error in percent", caption=describe_machine())
    for column in ("method", "2 threads", "again", "1 thread"):
        table.add_column(column)
    for method in first:
        table.add_row(method, *(f"{mean(one[method]):.2f}" for one, _ in runs))
    lead = min(mean(first["tent"]), mean(first["bn1"])) - mean(first["rmt"])
    apart = max(abs(mean(first[method]) - mean(single[method])) for method in first)
    promises = [
        (f"RMT leads TENT and BN-1 by {lead:.2f} points, at least {LEAD}", lead >= LEAD),
        ("two runs give the same numbers", first == second),
        (
            f"one thread differs by {apart:.2f} points, at most {THREADS_MATTER}",
            apart <= THREADS_MATTER,
        ),
        (
            f"two threads take {minutes:.1f} minutes (one {single_minutes:.1f}), at most {MINUTES}",
            minutes <= MINUTES,
        ),
    ]
    console = Console(width=120)
    console.print(table)
    for promise, kept in promises:
        console.print(f"{promise}: {'yes' if kept else 'NO'}")
    return all(kept for _, kept in promises)


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
