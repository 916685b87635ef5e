"""The bundled benchmark `cifar10-mini-c`: what a person can run without a download.

2,000 CIFAR-10 test images under each of the 15 corruptions, the bundled ResNet-20, and the state
of RMT prepared on the full training set (`training/` made them). Every option is the paper's.
"""

from collections.abc import Iterator, Mapping
from importlib.resources import as_file, files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acclimate.adapter import Adapter
from acclimate.bench.compare import compare
from acclimate.bench.machine import describe_machine
from acclimate.bench.record import Comparison
from acclimate.corruptions import CORRUPTIONS, corrupt
from acclimate.data.mini import read_mini
from acclimate.data.streams import Domain, continual
from acclimate.errors import OptionError
from acclimate.methods import BN1, RMT, Source, Tent
from acclimate.models import load_model

__all__ = ["BATCH_SIZE", "IMAGES", "RMT_STATE", "MiniDemo"]

IMAGES = 2000
"""Test images there are; fewer can be taken."""
BATCH_SIZE = 200
SEVERITY = 5
MODEL = "cifar10/resnet20"
RMT_STATE = files("acclimate.bench") / "prepared" / "cifar10-resnet20-rmt.safetensors"


class MiniDemo:
    """Source, BN-1, TENT and source-free RMT over the 15 corruptions at severity 5."""

    def __init__(self, images: int = IMAGES) -> None:
        """Take the first ``images`` of the test images under each corruption."""
        if not 1 <= images <= IMAGES:
            raise OptionError(
                f"The bundled benchmark has {IMAGES} test images. Got {images} for each "
                f"corruption; choose from 1 to {IMAGES}."
            )
        pixels, labels = read_mini("test")
        self.images_NHWC, self.labels_N = pixels[:images], labels[:images]

    def __len__(self) -> int:
        """Return how many batches all methods together predict."""
        return len(self.methods()) * len(CORRUPTIONS) * -(-len(self.labels_N) // BATCH_SIZE)

    def methods(self) -> dict[str, Adapter[Any]]:
        """Return fresh adapters by their label."""
        model = load_model(MODEL)
        with as_file(RMT_STATE) as state:
            rmt = RMT(model).load(state)
        return {
            "source": Source(model),
            "BN-1": BN1(model),
            "TENT": Tent(model),
            "RMT": rmt,
        }

    def domains(self) -> Iterator[Domain]:
        """Yield the corrupted test images, made one corruption at a time."""
        for name in CORRUPTIONS:
            yield Domain(name, corrupt(self.images_NHWC, name, SEVERITY), self.labels_N)

    def run(self, command: str) -> Iterator[Comparison]:
        """Run; yield the comparison so far after every batch of every method."""
        facts = {
            "images": f"{len(self.labels_N)} test images under each corruption, "
            f"in batches of {BATCH_SIZE}",
            "corruptions": f"severity {SEVERITY}, with the constants of CIFAR-10-C",
            "methods": "the paper's options for CIFAR10-C; RMT source-free, prepared on the "
            "50,000 training images",
            "seed": "0",
            "machine": describe_machine(),
        }
        for runs in compare(self.methods(), continual(self.domains(), BATCH_SIZE)):
            yield Comparison(
                benchmark="cifar10-mini-c",
                model=MODEL,
                setting="continual: the corruptions one after the other, no reset in between",
                runs=runs,
                facts=facts,
                command=command,
            )

    def examples(self, count: int = 4) -> Mapping[str, NDArray[np.uint8]]:
        """Return a few test images, clean and under each corruption."""
        few = self.images_NHWC[:count]
        return {"clean": few} | {name: corrupt(few, name, SEVERITY) for name in CORRUPTIONS}
