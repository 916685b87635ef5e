"""Choose the bundled images: 2,000 of CIFAR-10's test images and 2,000 of its training images.

    python -m training.images --cifar FOLDER

Each class gives 200 of a split, chosen by a seed; they stay in the archive's order. They are
stored without loss as one WebP picture a split, and `index.json` says which image is which.
"""

import argparse
import json
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

import acclimate.data
from acclimate.data.cifar import CIFAR10_CLASSES, read_cifar10
from acclimate.data.mini import COLUMNS

SEED = 2023
PER_CLASS = 200
OUT = Path(acclimate.data.__file__).parent / "cifar10_mini"


def choose(cifar: str, split: Literal["train", "test"]) -> dict[str, list[int]]:
    """Write the pictures of a split; return the indices in the archive and the labels."""
    images, labels = read_cifar10(cifar, split)
    rng = np.random.default_rng(SEED)
    of_class = [np.flatnonzero(labels == label) for label in range(len(CIFAR10_CLASSES))]
    chosen = np.sort(np.concatenate([rng.choice(of, PER_CLASS, replace=False) for of in of_class]))
    rows = images[chosen].reshape(-1, COLUMNS, 32, 32, 3)
    sheet = rows.transpose(0, 2, 1, 3, 4).reshape(-1, COLUMNS * 32, 3)
    Image.fromarray(sheet).save(OUT / f"{split}.webp", lossless=True, quality=100, method=6)
    return {"indices": chosen.tolist(), "labels": labels[chosen].tolist()}


def main() -> None:
    """Write both splits and their index."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cifar", required=True, help="the folder of CIFAR-10's Python version")
    arguments = parser.parse_args()
    splits = {split: choose(arguments.cifar, split) for split in ("test", "train")}
    (OUT / "index.json").write_text(json.dumps({"seed": SEED, **splits}) + "\n")


if __name__ == "__main__":
    main()
