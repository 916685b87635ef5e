"""Streams: the order in which images arrive.

Shapes: N images, H rows, W columns, C channels.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Domain", "StreamBatch", "continual"]


@dataclass(frozen=True)
class Domain:
    """Labelled images of one condition: a corruption at a severity, a style, a place."""

    name: str
    images_NHWC: NDArray[np.uint8]
    labels_N: NDArray[np.int64]


@dataclass(frozen=True)
class StreamBatch:
    """Images that arrive together, ready for an adapter, and the labels it does not see."""

    domain: str
    x_NCHW: Tensor
    y_N: Tensor


def continual(domains: Iterable[Domain], batch_size: int) -> Iterator[StreamBatch]:
    """Yield one domain after the other in batches; a domain's last one may be smaller."""
    for domain in domains:
        for start in range(0, len(domain.images_NHWC), batch_size):
            rows = slice(start, start + batch_size)
            pixels_NHWC = torch.from_numpy(domain.images_NHWC[rows])
            x_NCHW = pixels_NHWC.permute(0, 3, 1, 2).float().div_(255)
            yield StreamBatch(domain.name, x_NCHW, torch.from_numpy(domain.labels_N[rows]))
