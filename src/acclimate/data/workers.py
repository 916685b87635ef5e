"""Worker processes that end when their parent does, and leave Ctrl-C to it.

The standard pools are not used because their workers answer Ctrl-C themselves, each with a
traceback, outlive a parent that is killed, or let it wait forever when one of them is killed.
"""

import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

import cv2

from acclimate.errors import AcclimateError

__all__ = ["Workers", "start_workers"]

T = TypeVar("T")
R = TypeVar("R")


class Workers:
    """Started worker processes; none of them means that the calling process does the work."""

    def __init__(self) -> None:
        """Begin without processes."""
        self._processes: dict[Connection, SpawnProcess] = {}
        self._busy: dict[Connection, int] = {}

    def map(self, work: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """Yield ``work(task)`` of each task, in the order of the tasks.

        An error of ours is raised in its turn too, so that the first one is the same however many
        workers there are. Each worker has one task at a time, so that nothing piles up but what
        was done ahead of its turn. Only after the last result may another map begin.
        """
        assert not self._busy, "an earlier map was not followed to its end"
        if not self._processes:
            yield from map(work, tasks)
            return
        waiting = enumerate(tasks)
        idle = list(self._processes)
        busy = self._busy
        done: dict[int, R | AcclimateError] = {}
        turn = 0
        while True:
            while idle and (numbered := next(waiting, None)) is not None:
                connection = idle.pop()
                self._send(connection, (work, numbered[1]))
                busy[connection] = numbered[0]
            while turn in done:
                result = done.pop(turn)
                if isinstance(result, AcclimateError):
                    raise result
                yield result
                turn += 1
            if not busy:
                return
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                done[busy.pop(ready)] = self._receive(ready)
                idle.append(ready)

    def start(self, count: int) -> None:
        """Start processes, which Ctrl-C does not reach."""
        context = get_context("spawn")
        with _interrupts_held():
            for _ in range(count):
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs,), daemon=True)
                self._processes[ours] = process
                process.start()
                theirs.close()

    def kill(self) -> None:
        """End the processes at once, whatever they are doing."""
        for process in self._processes.values():
            if process.pid is not None:
                process.kill()
        for connection, process in self._processes.items():
            if process.pid is not None:
                process.join()
            process.close()
            connection.close()
        self._processes.clear()

    def _send(self, connection: Connection, message: Any) -> None:
        try:
            connection.send(message)
        except ConnectionError as error:
            raise self._ended(connection) from error

    def _receive(self, connection: Connection) -> Any:
        try:
            return connection.recv()
        except (EOFError, ConnectionError) as error:
            raise self._ended(connection) from error

    def _ended(self, connection: Connection) -> AcclimateError:
        process = self._processes[connection]
        process.join()
        return AcclimateError(
            f"A worker process ended before its work was done (exit code {process.exitcode}). "
            "If nothing is printed above, memory ran out, perhaps: fewer workers need less."
        )


@contextmanager
def start_workers(count: int) -> Iterator[Workers]:
    """Yield that many worker processes, each with one thread; they are gone afterwards.

    With one worker, the calling process works, with one thread as well. Processes are spawned,
    so a script that calls this needs ``if __name__ == "__main__":``.
    """
    workers = Workers()
    threads = cv2.getNumThreads()
    try:
        if count == 1:
            cv2.setNumThreads(1)
        else:
            workers.start(count)
        yield workers
    finally:
        workers.kill()
        cv2.setNumThreads(threads)


def _serve(connection: Connection) -> None:
    # Only where processes do not inherit what is held: elsewhere Ctrl-C cannot come this far.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cv2.setNumThreads(1)
    with suppress(EOFError, ConnectionError):  # the parent is gone
        while True:
            work, task = connection.recv()
            try:
                result = work(task)
            except AcclimateError as error:
                result = error
            connection.send(result)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back, for this process until the end and for the ones it starts forever."""
    if sys.platform == "win32":
        yield
        return
    # Starting the tracker, which spawned processes share, would let go of what is held.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
