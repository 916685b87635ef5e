"""Errors beside the official implementation's, on the same network and the same images.

    python -m benchmarks.official --cifar FOLDER --weights FILE --reference FILE --records FOLDER

The reference is a JSON file of the official implementation's errors; its ``about`` says how they
were measured, and this does the same: ResNet-20, CIFAR-10-C at severity 5 made from the first
test images in the archive's order, continually without a reset, in batches of 200, with the
paper's options. The corruptions are our own, whose images differ a little from the original
script's; so what is compared is each method's difference to BN-1.

Every run of a method with a seed leaves a record, and runs that have one are not repeated: the
command can be interrupted and continues with what is missing.
"""

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import acclimate
from acclimate.allocator import keep_freed_memory
from acclimate.bench.machine import describe_machine
from acclimate.corruptions import CORRUPTIONS, corrupt
from acclimate.data.cifar import read_cifar10
from acclimate.files import whole_file
from acclimate.models.resnet20 import ResNet20

BATCH, SEVERITY, BOUND = 200, 5, 0.7


@dataclasses.dataclass(frozen=True)
class Case:
    """A method as the reference names it."""

    name: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    chance: bool = True
    """Whether there is chance in it, so that several seeds make sense."""


CASES = {
    "source": Case("source", chance=False),
    "bn1": Case("bn1", chance=False),
    "tent": Case("tent", chance=False),
    "cotta": Case("cotta"),
    "adacontrast": Case("adacontrast"),
    "gtta_mix_4_updates": Case("gtta-mix"),
    "rmt_source_free": Case("rmt"),
    "rmt_replay": Case("rmt", {"lambda_ce": 1.0}),
    "rmt_replay_4_updates": Case("rmt", {"lambda_ce": 1.0, "updates": 4}),
}


class Images:
    """The images that all runs share, made when they are first asked for."""

    def __init__(self, cifar: str, count: int) -> None:
        """Take the first ``count`` test images."""
        self._cifar = cifar
        pixels, labels = read_cifar10(cifar, "test")
        self._pixels, self.labels_N = pixels[:count], torch.from_numpy(labels[:count])
        self._corrupted: dict[str, Tensor] = {}
        self._source: tuple[Tensor, Tensor] | None = None

    def corrupted(self, name: str) -> Tensor:
        """Return the test images under a corruption."""
        if name not in self._corrupted:
            pixels = corrupt(self._pixels, name, SEVERITY, constants="cifar")
            self._corrupted[name] = torch.from_numpy(pixels)
        return _scaled(self._corrupted[name])

    def source(self) -> tuple[Tensor, Tensor]:
        """Return the training images and their labels."""
        if self._source is None:
            pixels, labels = read_cifar10(self._cifar, "train")
            self._source = _scaled(torch.from_numpy(pixels)), torch.from_numpy(labels)
        return self._source


def _scaled(pixels_NHWC: Tensor) -> Tensor:
    return pixels_NHWC.permute(0, 3, 1, 2).contiguous().float() / 255


def load_network(path: str) -> nn.Module:
    """Return the ResNet-20 of a published checkpoint, normalising as it was trained."""
    content = torch.load(path, map_location="cpu", weights_only=True)
    weights = content.get("state_dict", content)
    net = ResNet20()
    net.load_state_dict({name.removeprefix("module."): value for name, value in weights.items()})
    return acclimate.Normalized(net).eval()


def run(
    case: Case, seed: int, network: nn.Module, images: Images, show: Callable[[str], None]
) -> dict[str, float]:
    """Return the error in percent under each corruption, one after the other without a reset."""
    adapter = acclimate.get_method(case.name)(network, seed=seed, **case.options)
    adapter.prepare(images.source() if adapter.needs_source else None)
    errors: dict[str, float] = {}
    for corruption in CORRUPTIONS:
        wrong = 0
        pairs = zip(
            images.corrupted(corruption).split(BATCH), images.labels_N.split(BATCH), strict=True
        )
        for x_NCHW, y_N in pairs:
            wrong += int((adapter(x_NCHW).argmax(1) != y_N).sum())
        errors[corruption] = 100 * wrong / len(images.labels_N)
        show(f"{case.name}, seed {seed}, {corruption}: {errors[corruption]:.2f} %")
    return errors


def read(path: Path, facts: Mapping[str, Any]) -> float | None:
    """Return the mean error of a record, None if there is none, and raise if it is another's."""
    if not path.is_file():
        return None
    record = json.loads(path.read_text())
    if record["facts"] != facts:
        raise SystemExit(
            f"{path} was measured as {record['facts']}, not as {facts}. Use another folder for "
            "records, or delete it."
        )
    return float(record["mean"])


def compare(
    means: Mapping[str, Sequence[float]], reference: Mapping[str, Any]
) -> tuple[Table, bool]:
    """Return the table and whether every difference of differences is within the bound."""
    table = Table(title="Mean error (%) and its difference to BN-1's, ours and the official's")
    for column in ("method", "ours by seed", "ours", "official", "ours - BN-1"):
        table.add_column(column)
    for column in ("official - BN-1", "difference", "bound", "within"):
        table.add_column(column)
    theirs = {
        name: statistics.mean(run["mean"] for run in runs)
        for name, runs in reference["methods"].items()
    }
    good = True
    for name, seeds in means.items():
        ours = statistics.mean(seeds)
        row = [name, " ".join(f"{mean:.2f}" for mean in seeds), f"{ours:.2f}"]
        row.append(f"{theirs[name]:.2f}")
        if "bn1" in means:
            gains = ours - statistics.mean(means["bn1"]), theirs[name] - theirs["bn1"]
            within = abs(gains[0] - gains[1]) <= BOUND
            good &= within
            row += [f"{gain:+.2f}" for gain in (*gains, gains[0] - gains[1])]
            row += [f"{BOUND:.1f}", "yes" if within else "NO"]
        table.add_row(*row)
    return table, good


def main() -> bool:
    """Run what has no record, print the table; return whether all is within the bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cifar", required=True, help="the folder of CIFAR-10's Python version")
    parser.add_argument("--weights", required=True, help="the checkpoint of the ResNet-20")
    parser.add_argument("--reference", required=True, help="the official implementation's errors")
    parser.add_argument("--records", required=True, type=Path, help="where records are kept")
    parser.add_argument("--methods", default=",".join(CASES), help="which, separated by commas")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of methods with chance in them")
    parser.add_argument("--images", type=int, default=2000, help="images of each corruption")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    chosen = arguments.methods.split(",")
    if unknown := set(chosen) - set(CASES):
        parser.error(f"unknown methods {sorted(unknown)}; there are {', '.join(CASES)}")
    arguments.records.mkdir(parents=True, exist_ok=True)
    console = Console(width=140)
    reference = json.loads(Path(arguments.reference).read_text())
    network, images = load_network(arguments.weights), Images(arguments.cifar, arguments.images)
    means: dict[str, list[float]] = {name: [] for name in chosen}
    # All methods with the first seed come first, so that an early look tells something of each.
    for seed in range(1, 1 + arguments.seeds):
        for name in chosen:
            if seed > 1 and not CASES[name].chance:
                continue
            path = arguments.records / f"{name}-seed{seed}.json"
            facts = {"method": name, "seed": seed, "images": arguments.images}
            facts |= {"options": dict(CASES[name].options)}
            mean = read(path, facts)
            if mean is None:
                start = time.perf_counter()
                errors = run(CASES[name], seed, network, images, console.print)
                mean, seconds = statistics.mean(errors.values()), time.perf_counter() - start
                record = {"facts": facts, "mean": mean, "errors": errors}
                record |= {"seconds": round(seconds, 1), "machine": describe_machine()}
                with whole_file(path) as temporary:
                    temporary.write_text(json.dumps(record, indent=1) + "\n")
                console.print(f"{name}, seed {seed}: {mean:.2f} % in {seconds:.0f} s")
            means[name].append(mean)
    table, good = compare(means, reference)
    console.print(table)
    return good


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
