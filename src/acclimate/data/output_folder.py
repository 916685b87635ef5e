"""A folder that is written whole file by whole file, may be left at any time, and is continued.

What was decided when it was begun stands in ``acclimate.json``, and what a later run decides must
fit. While a run writes, two more entries are there: a lock, and a folder of unfinished files.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

from acclimate.errors import InputError, OptionError, OutputError

__all__ = [
    "MANIFEST",
    "check_begun",
    "open_output",
    "put_file",
    "read_manifest",
    "unwritable",
    "write_manifest",
]

MANIFEST = "acclimate.json"
_KIND = "acclimate corrupted images"
_LOCK = ".acclimate-lock"
_UNFINISHED = ".acclimate-unfinished-"


def unwritable(path: Path, error: OSError) -> OutputError:
    """Return the error to raise when the system says that a path cannot be written."""
    return OutputError(
        f"{path} cannot be written: {error.strerror or error}. Files that are there are whole; "
        "the same run continues when this is mended."
    )


@contextmanager
def open_output(out: Path) -> Iterator[Path]:
    """Make the folder, keep other runs out of it and yield a folder in it for unfinished files.

    The latter is gone afterwards. What a killed run left is removed.
    """
    if os.path.exists(out) and not out.is_dir():
        raise OutputError(f"{out} is a file. Choose a folder to write to.")
    with ExitStack() as opened:
        try:
            out.mkdir(parents=True, exist_ok=True)
            if not (out / MANIFEST).exists():
                _check_empty(out)
            opened.enter_context(_lock(out))
            for left in out.glob(f"{_UNFINISHED}*"):
                shutil.rmtree(left)
            unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=out))
        except OSError as error:
            raise OutputError(
                f"{out} cannot be written to: {error.strerror or error}. Choose another folder."
            ) from error
        opened.callback(shutil.rmtree, unfinished, ignore_errors=True)
        yield unfinished


def put_file(content: bytes, path: Path, unfinished: Path) -> None:
    """Write a file that appears whole or not at all, and the folders above it."""
    # One process writes one file at a time.
    temporary = unfinished / str(os.getpid())
    try:
        temporary.write_bytes(content)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(temporary, path)
    except OSError as error:
        raise unwritable(path, error) from error


def read_manifest(out: Path) -> dict[str, Any] | None:
    """Return what was decided when the folder was begun, or None if it was not."""
    path = out / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read ({error}). It says how the files beside it were made. Put "
            "it back, or choose another folder to write to."
        ) from error
    if not isinstance(manifest, dict) or manifest.get("kind") != _KIND:
        raise InputError(f"{path} is of something else. Choose another folder to write to.")
    return manifest


def check_begun(out: Path, fixed: Mapping[str, Any]) -> None:
    """Raise if the folder was begun with something else than this."""
    begun = read_manifest(out)
    if begun is not None:
        for name, ours in fixed.items():
            if begun.get(name) != ours:
                raise OptionError(_difference(out, name, begun.get(name), ours))


def write_manifest(
    out: Path, unfinished: Path, fixed: Mapping[str, Any], growing: Mapping[str, Sequence[Any]]
) -> None:
    """Write down what was decided, if it goes together with what was decided before.

    Args:
        out: the folder.
        unfinished: where unfinished files are.
        fixed: what must stay the same from run to run.
        growing: lists that a later run may add to.
    """
    check_begun(out, fixed)
    begun = read_manifest(out) or {}
    grown = {
        name: sorted({*begun.get(name, []), *values}, key=str) for name, values in growing.items()
    }
    content = json.dumps({"kind": _KIND, "version": 1, **fixed, **grown}, indent=1) + "\n"
    put_file(content.encode(), out / MANIFEST, unfinished)


def _difference(out: Path, name: str, theirs: Any, ours: Any) -> str:
    remedy = "Choose another folder to write to"
    if name == "files" and isinstance(theirs, list):
        first = next(pair for pair in zip_longest(theirs, ours) if pair[0] != pair[1])
        was, now = ("none" if file is None else repr(file) for file in first)
        return (
            f"{out} was begun with {len(theirs)} images that can be read, now there are "
            f"{len(ours)}; the first that differs is {was} there and {now} now. In arrays a place "
            f"belongs to an image, so the images must stay. {remedy}."
        )
    if name == "source":
        return (
            f"{out} was begun from the folder {theirs!r} (seen from there), not from {ours!r}. "
            f"{remedy}; if the folder was only moved, correct 'source' in {out / MANIFEST}."
        )
    return (
        f"{out} was begun with {name} {_told(theirs)}, and this run has {_told(ours)}; the two do "
        f"not go together. {remedy}, or run with {name} {_told(theirs)}."
    )


def _told(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _check_empty(out: Path) -> None:
    there = sorted(entry for entry in os.listdir(out) if not entry.startswith("."))
    if there:
        raise InputError(
            f"{out} is not empty, and it was not written by this command: it holds {there[0]!r} "
            f"but no {MANIFEST}. Choose a new folder to write to."
        )


@contextmanager
def _lock(out: Path) -> Iterator[None]:
    """Keep a second run out of the folder, where the system has locks that end with a process."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    path = out / _LOCK
    with path.open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"Another run is writing to {out}. Let it finish, or choose another folder."
            ) from error
        except OSError:
            pass  # some network file systems have no locks
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()
