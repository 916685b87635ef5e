"""Our CIFAR-10-C against statistics of the one that the original script makes.

    python -m benchmarks.generator --cifar FOLDER --weights FILE.th --reference FILE.json

The reference says, for each corruption and severity, how a ResNet-20 errs on the original's images
and how far their pixels are from the clean ones. Ours are made here, from the same test images. The
error may differ by 1.5 points or two standard errors, whichever is larger, and the mean absolute
difference and the median PSNR of the pixels by 3 %. The exit status says whether none differs more.

Both sides drew their noise once, so that chance is a part of every difference. With --seeds K the
means of K draws of ours are compared, which takes our share of chance away.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import acclimate
from acclimate.allocator import keep_freed_memory
from acclimate.corruptions import corrupt
from acclimate.data.cifar import read_cifar10
from acclimate.models.resnet20 import ResNet20

POINTS, STANDARD_ERRORS, PIXELS = 1.5, 2, 0.03
# How the published weights want their pixels.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]


def load(path: Path) -> acclimate.Normalized:
    """Return the ResNet-20 with published weights, which may come from a ``DataParallel``."""
    weights = torch.load(path, map_location="cpu", weights_only=True)
    weights = weights.get("state_dict", weights)
    network = ResNet20()
    network.load_state_dict({key.removeprefix("module."): weights[key] for key in weights})
    return acclimate.Normalized(network, MEAN, STD).eval()


@torch.inference_mode()
def error(net: torch.nn.Module, images_NHWC: Pixels, labels_N: Labels) -> float:
    """Return the classification error in percent."""
    x_NCHW = torch.from_numpy(images_NHWC).permute(0, 3, 1, 2)
    predicted: list[Tensor] = [net(part.float() / 255).argmax(1) for part in x_NCHW.split(500)]
    return 100 * float(np.mean(torch.cat(predicted).numpy() != labels_N))


def distances(clean_NHWC: Pixels, corrupted_NHWC: Pixels) -> tuple[float, float]:
    """Return the mean absolute difference of the pixels and the images' median PSNR."""
    difference = corrupted_NHWC.astype(np.float32) - clean_NHWC
    with np.errstate(divide="ignore"):  # an image without any difference
        psnr_N = 10 * np.log10(255**2 / (difference**2).mean((1, 2, 3)))
    return float(np.abs(difference).mean(dtype=np.float64)), float(np.median(psnr_N))


def measure(
    net: torch.nn.Module, images_NHWC: Pixels, labels_N: Labels, entry: str, seeds: int
) -> tuple[float, float, float]:
    """Return error, mean absolute difference and median PSNR of a corruption at a severity."""
    name, severity = entry.split("/")
    draws: list[tuple[float, float, float]] = []
    first = corrupt(images_NHWC, name, int(severity), seed=0)
    for seed in range(seeds):
        corrupted = first if seed == 0 else corrupt(images_NHWC, name, int(severity), seed=seed)
        if seed and np.array_equal(corrupted, first):
            break  # nothing in it is random
        draws.append((error(net, corrupted, labels_N), *distances(images_NHWC, corrupted)))
    ours, difference, psnr = np.mean(draws, 0).tolist()
    return ours, difference, psnr


def main() -> bool:
    """Print the comparison; return whether everything is within its bounds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cifar", required=True, help="the folder of CIFAR-10's Python version")
    parser.add_argument("--weights", required=True, type=Path, help="the ResNet-20's weights")
    parser.add_argument("--reference", required=True, type=Path, help="the original's statistics")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these corruptions alone")
    parser.add_argument("--seeds", type=int, default=1, metavar="K", help="seeds 0 to K - 1")
    arguments = parser.parse_args()
    keep_freed_memory()
    net = load(arguments.weights)
    images_NHWC, labels_N = read_cifar10(arguments.cifar, "test")
    reference = json.loads(arguments.reference.read_text())["corruptions"]
    if arguments.only:
        reference = {
            entry: theirs
            for entry, theirs in reference.items()
            if entry.split("/")[0] in arguments.only
        }

    table = Table(
        title="Our CIFAR-10-C and the original's",
        caption=f"Pixels: ours over the original's, allowed {1 - PIXELS} to {1 + PIXELS}",
    )
    table.add_column("corruption", no_wrap=True)
    for column in ("images", "error", "original's", "difference", "allowed"):
        table.add_column(column, justify="right")
    for column in ("mean |difference|", "median PSNR", "within"):
        table.add_column(column, justify="right")
    failed, points, pixels = [], [0.0], [0.0]
    for entry in track(list(reference), "Corrupting", console=Console(stderr=True), transient=True):
        theirs, n = reference[entry], reference[entry]["n"]
        ours, *values = measure(net, images_NHWC[:n], labels_N[:n], entry, arguments.seeds)
        expected = theirs["resnet20_error"]
        allowed = max(POINTS, STANDARD_ERRORS * math.sqrt(expected * (100 - expected) / n))
        ratios = (values[0] / theirs["mean_abs_diff"], values[1] / theirs["psnr_median"])
        points.append(abs(ours - expected))
        pixels.append(max(abs(ratio - 1) for ratio in ratios))
        within = points[-1] <= allowed and pixels[-1] <= PIXELS
        if not within:
            failed.append(entry)
        table.add_row(
            entry,
            str(n),
            f"{ours:.2f}",
            f"{expected:.2f}",
            f"{ours - expected:+.2f}",
            f"{allowed:.2f}",
            *(f"{ratio:.4f}" for ratio in ratios),
            "yes" if within else "NO",
        )
    console = Console(width=120)
    console.print(table)
    console.print(
        f"Error on clean images: {error(net, images_NHWC, labels_N):.2f} %. Within the bounds: "
        f"{len(reference) - len(failed)} of {len(reference)} entries. Largest difference of an "
        f"error: {max(points):.2f} points; of pixels: {100 * max(pixels):.2f} %."
    )
    if failed:
        console.print(f"Not within: {', '.join(failed)}")
    return not failed


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
