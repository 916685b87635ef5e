"""CIFAR-10 from its own archive, unpacked: the Python version, read without running its pickles.

Shapes: N images, 32 rows, 32 columns, 3 channels.
"""

import pickle
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from acclimate.errors import InputError

__all__ = ["CIFAR10_CLASSES", "read_cifar10"]

CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_FOLDER = "cifar-10-batches-py"
_FILES = {"train": [f"data_batch_{part}" for part in range(1, 6)], "test": ["test_batch"]}


def read_cifar10(
    folder: str | Path, split: Literal["train", "test"]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images (N, 32, 32, 3) and labels (N,) in the archive's order.

    Args:
        folder: where ``cifar-10-python.tar.gz`` was unpacked: the folder that holds
            ``cifar-10-batches-py``, or that folder itself.
        split: the 50,000 images to train on or the 10,000 to test with.
    """
    folder = Path(folder)
    if (folder / _FOLDER).is_dir():
        folder = folder / _FOLDER
    parts = [_read_batch(folder / name) for name in _FILES[split]]
    images_N3HW = np.concatenate([pixels for pixels, _ in parts]).reshape(-1, 3, 32, 32)
    labels_N = np.concatenate([labels for _, labels in parts])
    return np.ascontiguousarray(images_N3HW.transpose(0, 2, 3, 1)), labels_N


def _read_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if not path.is_file():
        raise InputError(
            f"CIFAR-10 has a file {path.name} in its folder {_FOLDER}. There is no {path}. "
            "Unpack cifar-10-python.tar.gz and pass the folder it was unpacked in."
        )
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="latin1").load()
        pixels, labels = content["data"], np.asarray(content["labels"], dtype=np.int64)
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not a whole batch of CIFAR-10: {error}.") from error
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), 3072):
        raise InputError(
            f"{path} must hold uint8 rows of 3072 pixels, one for each of its {len(labels)} "
            f"labels. Got {pixels.dtype} of the shape {pixels.shape}."
        )
    return pixels, labels


class _ArraysOnly(pickle.Unpickler):
    """Rebuilds numpy arrays and plain containers, and refuses to name anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray", "numpy"):
            if name == "_reconstruct":
                return np._core.multiarray._reconstruct  # type: ignore[attr-defined]
            if name in ("ndarray", "dtype"):
                return getattr(np, name)
        if (module, name) == ("numpy._core.numeric", "_frombuffer"):
            return _from_buffer
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no image needs")


def _from_buffer(buffer: Any, dtype: Any, shape: Any, order: Any) -> NDArray[Any]:
    array: NDArray[Any] = np.frombuffer(buffer, dtype=dtype).reshape(shape, order=order)
    return array
