"""What a comparison leaves in a folder: the numbers for programs and the report for people."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from acclimate.bench.record import Comparison
from acclimate.files import whole_file
from acclimate.report.html import render

__all__ = ["write_reports"]


def write_reports(
    comparison: Comparison, examples: Mapping[str, NDArray[np.uint8]], folder: Path
) -> tuple[Path, Path]:
    """Write ``results.json`` and ``report.html``; each appears whole or not at all.

    Args:
        comparison: the runs.
        examples: images (N, H, W, 3) by what they went through.
        folder: an existing folder.

    Returns:
        Both paths.
    """
    errors = {run.method: run.errors() for run in comparison.runs}
    contents = {
        folder / "results.json": json.dumps(errors, indent=2) + "\n",
        folder / "report.html": render(comparison, examples),
    }
    for path, content in contents.items():
        with whole_file(path) as temporary:
            temporary.write_text(content, encoding="utf-8")
    results, report = contents
    return results, report
