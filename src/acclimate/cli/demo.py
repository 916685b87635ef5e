"""`acclimate demo`: the bundled benchmark with a live table, and what it leaves behind."""

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from acclimate.allocator import keep_freed_memory
from acclimate.bench.mini import IMAGES, MiniDemo
from acclimate.bench.record import Comparison
from acclimate.corruptions import CORRUPTIONS
from acclimate.errors import OutputError
from acclimate.report import error_table, spoken, write_reports

__all__ = ["demo"]

DEFAULT_OUT = Path("acclimate-demo")
DEFAULT_IMAGES = 1000  # ends well within four minutes on two cores


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for results.json and report.html.")
    ] = DEFAULT_OUT,
    images: Annotated[
        int, typer.Option(help=f"Test images under each corruption, at most {IMAGES}.")
    ] = DEFAULT_IMAGES,
) -> None:
    """Compare source, BN-1, TENT and RMT on bundled images, in minutes and without a download.

    A ResNet-20 trained on clean CIFAR-10 meets 15 corruptions, one after the other, and each
    method adapts to them as they come. Prints the table; writes results.json (method, corruption,
    error in percent) and a report to open in a browser.
    """
    benchmark = MiniDemo(images)
    _make_folder(out)
    keep_freed_memory()
    console = Console()
    comparison = _run(benchmark, _command(out, images), console)
    results, report = write_reports(comparison, benchmark.examples(), out)
    console.print(f"Numbers: {results}\nReport:  {report}", markup=False, highlight=False)


def _make_folder(out: Path) -> None:
    """Make the folder now: whoever waits for the numbers should not lose them at the end."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{out} cannot be made a folder: {error.strerror}. Choose another one with --out."
        ) from error
    if not os.access(out, os.W_OK):
        raise OutputError(f"{out} cannot be written to. Choose another folder with --out.")


def _command(out: Path, images: int) -> str:
    """What a person types to run the same again."""
    options = [] if images == DEFAULT_IMAGES else ["--images", str(images)]
    options += [] if out == DEFAULT_OUT else ["--out", str(out)]
    return shlex.join(["acclimate", "demo", *options])


def _run(benchmark: MiniDemo, command: str, console: Console) -> Comparison:
    """Run with a live table on a terminal, and a line as each corruption begins elsewhere."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("gone, left:"),
        TimeRemainingColumn(),
        console=console,
    )
    task = bar.add_task("loading", total=len(benchmark))
    domain = ""
    with Live(bar, console=console, refresh_per_second=4, transient=True) as live:
        for comparison in benchmark.run(command):
            last, domain = domain, comparison.runs[0].batches[-1].domain
            bar.update(task, advance=1, description=spoken(domain))
            if console.is_terminal:
                live.update(Group(error_table(comparison, CORRUPTIONS), bar))
            elif domain != last:
                console.print(
                    f"{spoken(domain)} ({CORRUPTIONS.index(domain) + 1} of {len(CORRUPTIONS)})"
                )
    console.print(error_table(comparison, CORRUPTIONS))
    return comparison
