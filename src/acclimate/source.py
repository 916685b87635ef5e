"""Labelled source data as an endless sequence of batches with a position.

The position is all that a saved state needs to continue: the order of the images follows from
the seed, so a run that continues from a file sees the batches that the uninterrupted run sees.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from acclimate.errors import InputError

__all__ = ["Batch", "Dataset", "Source", "SourceBatches"]

Batch = tuple[Tensor, Tensor]


class Dataset(Protocol):
    """A map-style data set: a length, and an image (C, H, W) with its label at every index."""

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """Return an image and its label."""
        ...


Source = Batch | Dataset | Sequence[Batch] | DataLoader[Any]
"""What ``prepare`` takes: a tuple of all images and all labels, a data set of single images, a
sequence of batches, or a loader over a data set, whose workers and collation are then used."""


class SourceBatches:
    """Batches of source data, for ever, from any position on.

    Single images are shuffled anew each epoch, and an epoch's last partial batch is dropped.
    Batches that the caller made are taken as they come.
    """

    def __init__(self, source: Source, batch_size: int, seed: int, share: float = 1.0) -> None:
        """Read sizes only; ``share`` is the part of the data to keep, chosen at random."""
        self.position = 0
        self._reader = _Reader(source)
        kept = max(1, round(share * self._reader.size))
        chosen = torch.randperm(self._reader.size, generator=_generator(seed, 0))[:kept]
        indices = chosen.sort().values.tolist()
        self._order = _Order(indices, min(batch_size, kept), seed, not self._reader.batched)
        # It must not refer to this object: in a cycle, workers would outlive their last use.
        self._iterator: Iterator[Batch] | None = None
        self._iterator_position = 0

    def next(self) -> Batch:
        """Return the batch at the position and advance."""
        if self._iterator is None or self._iterator_position != self.position:
            self._iterator = self._reader.read(self._order.starting_at(self.position))
        try:
            batch = next(self._iterator)
        except BaseException:
            self._iterator = None  # it has ended, and the next call may find the data in order
            raise
        self.position += 1
        self._iterator_position = self.position
        return batch

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs: an iterator cannot be copied, and is made anew."""
        return {**vars(self), "_iterator": None}

    def once(self, limit: int) -> Iterator[Batch]:
        """Iterate once, in order, over the samples, or over ``limit`` chosen at random."""
        if not self._reader.batched:
            yield from self._reader.read(self._order.once(limit))
            return
        seen = 0
        for images, labels in self._reader.read([index] for index in self._order.indices):
            yield images, labels
            seen += len(images)
            if seen >= limit:
                return

    def __len__(self) -> int:
        """Return the number of samples; of batches, as if all were as large as the first."""
        return len(self._order.indices) * self._reader.samples_per_index


class _Order:
    """Which indices make which batch, as a function of the seed and the batch's number."""

    def __init__(self, indices: list[int], batch_size: int, seed: int, shuffled: bool) -> None:
        self.indices = indices
        self._batch_size = batch_size if shuffled else 1
        self._seed = seed
        self._shuffled = shuffled

    def starting_at(self, position: int) -> Iterator[list[int]]:
        """Yield batches without end from a position on."""
        per_epoch = len(self.indices) // self._batch_size
        first, start = divmod(position, per_epoch)
        for epoch in itertools.count(first):
            yield from itertools.islice(self._epoch(epoch), start, per_epoch)
            start = 0

    def once(self, limit: int) -> Iterator[list[int]]:
        """Yield batches of all indices, or of ``limit`` at random, in their order."""
        chosen = torch.randperm(len(self.indices), generator=_generator(self._seed, 1))[:limit]
        return _chunks([self.indices[i] for i in chosen.sort().values.tolist()], self._batch_size)

    def _epoch(self, epoch: int) -> Iterator[list[int]]:
        if not self._shuffled:
            return _chunks(self.indices, self._batch_size)
        order = torch.randperm(len(self.indices), generator=_generator(self._seed, 2 + epoch))
        return _chunks([self.indices[i] for i in order.tolist()], self._batch_size)


class _Reader:
    """Reads batches of indices from whichever kind of source data."""

    def __init__(self, source: Source) -> None:
        self._workers = 0
        self._collate: Callable[[list[Any]], Any] = default_collate
        self._data: Any = source
        if isinstance(source, DataLoader):
            if isinstance(source.dataset, IterableDataset):
                raise InputError(
                    "Source data must have a length and an index. Got a loader over an "
                    "IterableDataset. Give a map-style data set or a list of batches instead."
                )
            if not isinstance(source.sampler, (SequentialSampler, RandomSampler)) or (
                type(source.batch_sampler) not in (BatchSampler, type(None))
            ):
                raise InputError(
                    "Of a loader, the data set, workers and collation are used, and the order is "
                    "acclimate's. Got a loader with a sampler of its own, which may leave images "
                    "out. Give a loader over torch.utils.data.Subset(data_set, indices) instead."
                )
            self._data = source.dataset
            self._workers = source.num_workers
            self._collate = source.collate_fn
        if isinstance(self._data, TensorDataset):
            self._data = self._data.tensors
        self._tensors = _is_pair_of_tensors(self._data)
        self.size = _pair_length(*self._data) if self._tensors else _length(self._data)
        self.batched = not self._tensors and _is_batch(self._data[0])
        self.samples_per_index = len(self._data[0][0]) if self.batched else 1

    def read(self, index_batches: Iterable[list[int]]) -> Iterator[Batch]:
        """Yield a batch of images and labels for each batch of indices."""
        if self._tensors:
            images, labels = self._data
            for indices in index_batches:
                yield images[indices], labels[indices]
        elif self.batched:
            for (index,) in index_batches:
                yield _pair(self._data[index])
        else:
            loader = DataLoader(
                self._data,
                batch_sampler=index_batches,  # any iterable will do
                collate_fn=self._collate,
                num_workers=self._workers,
                generator=torch.Generator(),  # so that it does not draw on the process's own
            )
            yield from map(_pair, loader)


def _generator(seed: int, stream: int) -> torch.Generator:
    """A generator for one purpose: choosing the share, a sample, or an epoch's order."""
    return torch.Generator().manual_seed((seed << 24) + stream)


def _chunks(indices: list[int], size: int) -> Iterator[list[int]]:
    return (indices[i : i + size] for i in range(0, len(indices), size))


def _is_pair_of_tensors(item: Any) -> bool:
    return (
        isinstance(item, (tuple, list))
        and len(item) == 2
        and all(isinstance(part, Tensor) for part in item)
    )


def _is_batch(item: Any) -> bool:
    return _is_pair_of_tensors(item) and bool(item[0].ndim == 4)


def _pair_length(images: Tensor, labels: Tensor) -> int:
    if images.ndim != 4 or labels.ndim != 1 or not 0 < len(images) == len(labels):
        raise InputError(
            "A pair of source tensors must be images (N, C, H, W) and one label for each. "
            f"Got the shapes {tuple(images.shape)} and {tuple(labels.shape)} instead."
        )
    return len(images)


def _pair(batch: Any) -> Batch:
    if not (isinstance(batch, (tuple, list)) and len(batch) == 2):
        raise InputError(
            f"Source data must give (images, labels). Got {type(batch).__name__} instead."
        )
    images, labels = batch
    return images, labels


def _is_array_like(item: Any) -> bool:
    return isinstance(item, (Tensor, np.ndarray))


def _length(data: Any) -> int:
    if isinstance(data, (tuple, list)) and len(data) == 2 and _is_array_like(data[0]):
        raise InputError(
            "A pair of source data must be two tensors, images and labels. Got a "
            f"{type(data[0]).__name__} and a {type(data[1]).__name__}. Convert arrays with "
            "torch.from_numpy."
        )
    try:
        size = len(data)
        data[0]
    except (TypeError, KeyError, IndexError, AttributeError) as error:
        raise InputError(
            "Source data must be a pair of tensors (images, labels), a data set with a length "
            "and an index, a sequence of batches or a loader over a data set, and hold at least "
            f"one image. Got {type(data).__name__} instead ({error})."
        ) from error
    return size
