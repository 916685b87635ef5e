"""How far a work on images is: a bar on a terminal, a line now and then elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

__all__ = ["ImageProgress", "print_line"]

SECONDS_BETWEEN_LINES = 30.0


def print_line(console: Console, line: str) -> None:
    """Print text as it is, brackets and all, without breaking it at the width of the terminal."""
    # A file's name may hold bytes that are no text.
    shown = line.encode("utf-8", "replace").decode()
    console.print(Text(shown), soft_wrap=True)


class ImageProgress:
    """Shows images done, images a second and the time left; use it in a ``with`` statement."""

    def __init__(self, console: Console, announcement: str) -> None:
        """Show it on a console, after saying what is going to be done."""
        self._console = console
        self._announcement = announcement
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = TaskID(0)
        self._last_line = time.monotonic()

    def __enter__(self) -> "ImageProgress":
        """Begin to draw."""
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the bar as it stands."""
        self._bar.stop()

    def begin(self, what: str, images: int) -> None:
        """Begin another bar."""
        if self._announcement:
            print_line(self._console, self._announcement)
            self._announcement = ""
        self._task = self._bar.add_task(what, total=images)

    def advance(self, images: int) -> None:
        """Go on by so many images."""
        self._bar.advance(self._task, images)
        now = time.monotonic()
        if self._bar.disable and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            task = next(task for task in self._bar.tasks if task.id == self._task)
            print_line(
                self._console,
                f"{task.description}: {task.completed:,.0f} of {task.total or 0:,.0f}, "
                f"{task.completed / max(task.elapsed or 0, 1e-9):.1f} a second",
            )

    def skip(self, problem: str) -> None:
        """Tell of an image that is left out."""
        print_line(self._console, f"Left out: {problem}")


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f}/s")
