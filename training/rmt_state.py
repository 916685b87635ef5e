"""Prepare the bundled RMT state: prototypes and warm-up on CIFAR-10's 50,000 training images.

    python -m training.rmt_state --cifar FOLDER

Source-free RMT with its default options, the paper's for CIFAR10-C, on the bundled network. Takes
about two minutes on two CPU cores.
"""

import argparse
from importlib.resources import as_file

import torch
from rich.progress import Progress as Bar

import acclimate
from acclimate.allocator import keep_freed_memory
from acclimate.bench.mini import RMT_STATE
from acclimate.data.cifar import read_cifar10


def main() -> None:
    """Prepare and write the state."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cifar", required=True, help="the folder of CIFAR-10's Python version")
    arguments = parser.parse_args()
    keep_freed_memory()
    images, labels = read_cifar10(arguments.cifar, "train")
    x_NCHW = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    adapter = acclimate.RMT(acclimate.load_model("cifar10/resnet20"))
    with Bar() as bar:
        tasks = {stage: bar.add_task(stage) for stage in ("prototypes", "warm-up")}

        def show(progress: acclimate.Progress) -> None:
            bar.update(tasks[progress.stage], completed=progress.done, total=progress.total)

        adapter.prepare((x_NCHW, torch.from_numpy(labels)), progress=show)
    with as_file(RMT_STATE) as path:
        adapter.save(path)


if __name__ == "__main__":
    main()
