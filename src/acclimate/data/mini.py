"""The bundled images: 2,000 test and 2,000 training images of CIFAR-10, 200 of each class.

Which they are and where they come from stands in ``cifar10_mini/README.md``.
"""

import json
from importlib.resources import files
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["COLUMNS", "read_mini"]

COLUMNS = 50
"""How many images stand side by side in a picture of a split."""


def read_mini(split: Literal["train", "test"]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images (2000, 32, 32, 3) and labels (2000,)."""
    folder = files("acclimate.data") / "cifar10_mini"
    labels_N = json.loads((folder / "index.json").read_text())[split]["labels"]
    with (folder / f"{split}.webp").open("rb") as file:
        sheet = np.asarray(Image.open(file).convert("RGB"))
    rows = sheet.reshape(-1, 32, COLUMNS, 32, 3).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(rows.reshape(-1, 32, 32, 3)), np.array(labels_N, np.int64)
