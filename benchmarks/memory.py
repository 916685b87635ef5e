"""Memory of the process after 2,000 steps over that after 50, for every method."""

import gc
import multiprocessing
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import acclimate
from acclimate.testing import TinyClassifier, tiny_batches, tiny_source

EARLY, LATE, BOUND = 50, 2000, 1.02
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("source", "bn1", "tent", "mean-teacher")},
    "cotta": ("cotta", {"augmentations": 2, "threshold": 1.0}),
    "adacontrast": ("adacontrast", {"capacity": 512}),
    "gtta-mix": ("gtta-mix", {"batch_size": 8}),
    "rmt source-free": ("rmt", {"batch_size": 8, "warmup_samples": 16}),
    "rmt with replay": ("rmt", {"batch_size": 8, "warmup_samples": 16, "lambda_ce": 1.0}),
    "rmt window": ("rmt", {"batch_size": 8, "warmup_samples": 16, "window": 4}),
}


def resident() -> int:
    """Resident memory of this process in KiB."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def run(case: str) -> tuple[int, int]:
    """Return the resident memory after the early and after the late step."""
    torch.set_num_threads(1)
    name, options = METHODS[case]
    adapter = acclimate.get_method(name)(TinyClassifier(), **options).prepare(tiny_source())
    adapter.observe(lambda step: None)
    batches = tiny_batches(8)
    early = 0
    for step in range(LATE):
        adapter(batches[step % len(batches)])
        if step + 1 == EARLY:
            early = resident()
    return early, resident()


def main() -> bool:
    """Print the table; return whether every ratio is within the bound."""
    table = Table(title=f"Resident memory after {LATE} steps over that after {EARLY}")
    for column in ("method", f"after {EARLY} (MiB)", f"after {LATE} (MiB)", "ratio", "bound"):
        table.add_column(column)
    good = True
    # A process each, so that no method profits from memory that another has left.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for case, (early, late) in zip(METHODS, pool.map(run, METHODS, chunksize=1), strict=True):
            good &= late / early <= BOUND
            row = (f"{early / 1024:.1f}", f"{late / 1024:.1f}", f"{late / early:.4f}")
            table.add_row(case, *row, f"{BOUND:.2f}")
    Console(width=120).print(table)
    return good


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
