"""The table of errors on a terminal."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from acclimate.bench.record import Comparison
from acclimate.report.words import spoken

__all__ = ["error_table"]


def error_table(comparison: Comparison, domains: Sequence[str]) -> Table:
    """Return the error of each method in each domain, as far as the runs have come.

    Args:
        comparison: the runs.
        domains: the rows, those that no run has reached yet included.
    """
    table = Table(
        title=f"Error in percent, {comparison.benchmark}", box=box.SIMPLE_HEAD, title_justify="left"
    )
    table.add_column("")
    for run in comparison.runs:
        table.add_column(run.label, justify="right", min_width=6)
    errors = [run.errors() for run in comparison.runs]
    for domain in domains:
        cells = [error.get(domain) for error in errors]
        table.add_row(spoken(domain), *_lowest_in_bold(cells), end_section=domain == domains[-1])
    means = [run.mean_error() if run.batches else None for run in comparison.runs]
    table.add_row("mean", *_lowest_in_bold(means))
    return table


def _lowest_in_bold(errors: Sequence[float | None]) -> list[str]:
    texts = ["" if error is None else f"{error:.1f}" for error in errors]
    lowest = min((error for error in errors if error is not None), default=None)
    return [
        f"[bold green]{text}[/]" if error is not None and error == lowest else text
        for text, error in zip(texts, errors, strict=True)
    ]
