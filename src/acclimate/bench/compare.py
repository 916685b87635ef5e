"""Several methods over the same stream, batch by batch."""

import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from acclimate.adapter import Adapter
from acclimate.bench.record import BatchResult, Run
from acclimate.data.streams import StreamBatch

__all__ = ["compare"]


def compare(
    adapters: Mapping[str, Adapter[Any]], stream: Iterable[StreamBatch]
) -> Iterator[tuple[Run, ...]]:
    """Let every adapter see the stream; yield the runs so far after each of its batches.

    Args:
        adapters: by the label of their row; they are prepared and adapt from where they are.
        stream: the batches; each is given to all adapters before the next is taken.
    """
    results: dict[str, list[BatchResult]] = {label: [] for label in adapters}
    for batch in stream:
        for label, adapter in adapters.items():
            start = time.perf_counter()
            predicted_N = adapter(batch.x_NCHW).argmax(1)
            wrong = torch.count_nonzero(predicted_N != batch.y_N).item()
            seconds = time.perf_counter() - start
            results[label].append(
                BatchResult(
                    domain=batch.domain, images=len(batch.y_N), wrong=int(wrong), seconds=seconds
                )
            )
            yield tuple(_run(label, adapters[label], results[label]) for label in adapters)


def _run(label: str, adapter: Adapter[Any], batches: list[BatchResult]) -> Run:
    options = dataclasses.asdict(adapter.config)
    return Run(method=adapter.name, label=label, options=options, batches=tuple(batches))
