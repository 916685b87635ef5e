"""An ``.npy`` file of images that several processes write, each its own rows.

Shapes: N images, H rows, W columns, 3 colours.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from acclimate.data.output_folder import unwritable

__all__ = ["ArrayFile"]


@dataclass(frozen=True)
class ArrayFile:
    """Where the rows of images are in a file."""

    path: Path
    offset: int
    shape: tuple[int, int, int, int]

    @classmethod
    def create(cls, path: Path, shape: tuple[int, int, int, int]) -> "ArrayFile":
        """Make a file of the right size, full of zeros."""
        try:
            mapped = np.lib.format.open_memmap(path, "w+", np.dtype(np.uint8), shape)
        except OSError as error:
            raise unwritable(path, error) from error
        return cls(path, mapped.offset, shape)

    def write(self, start: int, images_NHW3: NDArray[np.uint8]) -> None:
        """Write rows, and not into mapped memory, where a full disk kills the process."""
        try:
            with self.path.open("r+b") as file:
                file.seek(self.offset + start * int(np.prod(self.shape[1:])))
                file.write(np.ascontiguousarray(images_NHW3).data)
        except OSError as error:
            raise unwritable(self.path, error) from error

    def read(self, rows: list[int]) -> NDArray[np.uint8]:
        """Return rows, shape (len(rows), H, W, 3)."""
        images_NHW3: NDArray[np.uint8] = np.load(self.path, mmap_mode="r")[rows]
        return images_NHW3

    def publish(self, path: Path) -> None:
        """Put the file, complete now, where it belongs."""
        try:
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(self.path, path)
        except OSError as error:
            raise unwritable(path, error) from error
