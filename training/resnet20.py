"""Train the bundled ResNet-20 on CIFAR-10's 50,000 training images.

    python -m training.resnet20 --cifar FOLDER --out FILE      trains and writes the weights
    python -m training.resnet20 --cifar FOLDER --check FILE    prints the error of written weights

SGD with Nesterov momentum, a one-cycle learning rate, crops and flips: a recipe of the textbooks,
chosen beforehand. Training does not read the test images. It took 6 minutes on an H200, and takes
some hours on two CPU cores.
"""

import argparse
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor
from torch.nn import functional as F

from acclimate.data.cifar import read_cifar10
from acclimate.models.load import CIFAR10_MEAN, CIFAR10_STD
from acclimate.models.resnet20 import ResNet20
from acclimate.network import Normalized

BATCH = 128


def load(folder: str, split: str, device: str) -> tuple[Tensor, Tensor]:
    """Return images (N, 3, 32, 32) in [0, 1] and labels."""
    images, labels = read_cifar10(folder, split)  # type: ignore[arg-type]
    x_NCHW = torch.from_numpy(images).to(device).permute(0, 3, 1, 2).float() / 255
    return x_NCHW.contiguous(), torch.from_numpy(labels).to(device)


def cropped_and_flipped(x_NCHW: Tensor, generator: Generator) -> Tensor:
    """Shift every image by up to four pixels, filling with black, and flip half of them."""
    n = len(x_NCHW)
    device = x_NCHW.device
    padded = F.pad(x_NCHW, (4, 4, 4, 4))
    top, left = torch.randint(0, 9, (2, n, 1), generator=generator, device=device)
    offsets = torch.arange(32, device=device)
    flip = torch.rand(n, 1, generator=generator, device=device) < 0.5
    rows_N1H1 = (top + offsets)[:, None, :, None]
    columns_N11W = (left + torch.where(flip, 31 - offsets, offsets))[:, None, None, :]
    samples_N111 = torch.arange(n, device=device)[:, None, None, None]
    channels_1C11 = torch.arange(3, device=device)[None, :, None, None]
    return padded[samples_N111, channels_1C11, rows_N1H1, columns_N11W]


@torch.no_grad()
def error(net: torch.nn.Module, x_NCHW: Tensor, y_N: Tensor) -> float:
    """Return the classification error in percent."""
    wrong: float = sum(
        (net(x).argmax(1) != y).sum().item()
        for x, y in zip(x_NCHW.split(1000), y_N.split(1000), strict=True)
    )
    return 100 * wrong / len(y_N)


def train(folder: str, epochs: int, seed: int, device: str) -> Normalized:
    """Return the trained network."""
    x_NCHW, y_N = load(folder, "train", device)
    net = Normalized(ResNet20(seed=seed), CIFAR10_MEAN, CIFAR10_STD).to(device).train()
    generator = Generator(device).manual_seed(seed)
    if device == "cuda":
        # So small a network spends its time on launching kernels; a graph launches them at once.
        torch.cuda.make_graphed_callables(net, (x_NCHW[:BATCH].clone(),))
    optimizer = torch.optim.SGD(
        net.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, nesterov=True, fused=True
    )
    steps = epochs * (len(x_NCHW) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.2, steps, pct_start=0.1, cycle_momentum=False
    )
    start = time.perf_counter()
    for epoch in range(epochs):
        order = torch.randperm(len(x_NCHW), generator=generator, device=device)
        for batch in order[: len(order) // BATCH * BATCH].split(BATCH):
            logits = net(cropped_and_flipped(x_NCHW[batch], generator))
            loss = F.cross_entropy(logits, y_N[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        if epoch % 10 == 0 or epoch == epochs - 1:
            passed = time.perf_counter() - start
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}, {passed:.0f} s", flush=True)  # noqa: T201
    return net.eval()


def save(net: Normalized, path: Path, **facts: object) -> None:
    """Write the weights and, as metadata, how they came about."""
    weights = {name: value.contiguous().cpu() for name, value in net.model.state_dict().items()}
    save_file(weights, path, {name: str(fact) for name, fact in facts.items()})


def check(folder: str, path: Path, device: str) -> None:
    """Print the error of written weights on both splits."""
    net = Normalized(ResNet20(), CIFAR10_MEAN, CIFAR10_STD).eval()
    net.model.load_state_dict(load_file(path))
    for split in ("train", "test"):
        print(f"{split} error: {error(net.to(device), *load(folder, split, device)):.2f} %")  # noqa: T201


def main() -> None:
    """Train or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cifar", required=True, help="the folder of CIFAR-10's Python version")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--out", type=Path, help="train, and write the weights here")
    task.add_argument("--check", type=Path, help="weights to check")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    if arguments.check:
        check(arguments.cifar, arguments.check, arguments.device)
        return
    net = train(arguments.cifar, arguments.epochs, arguments.seed, arguments.device)
    save(net, arguments.out, epochs=arguments.epochs, seed=arguments.seed)


if __name__ == "__main__":
    main()
