"""Ctrl-C, and the request to end, as one exception that clears up undisturbed."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Stopped", "stopping_once"]


class Stopped(KeyboardInterrupt):
    """The person, or the system, asked this process to end."""

    def __init__(self, number: int) -> None:
        """Remember which signal came."""
        super().__init__(number)
        self.exit_status = 128 + number


@contextmanager
def stopping_once() -> Iterator[None]:
    """Raise ``Stopped`` at the first SIGINT or SIGTERM within, and pass over all later ones.

    They are passed over until the process ends, which is to follow: a second Ctrl-C would end
    the clearing up that the first one began.
    """
    stopped = False
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    heard = [number for number, handler in before.items() if handler is not signal.SIG_IGN]

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True
        for each in heard:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    for number in heard:
        signal.signal(number, stop)
    try:
        yield
    finally:
        if not stopped:
            for number in heard:
                signal.signal(number, before[number])
