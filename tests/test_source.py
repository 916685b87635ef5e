"""Source data: order, position, share, and what is accepted."""

import copy
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import acclimate
from acclimate.source import SourceBatches
from acclimate.testing import TinyClassifier, tiny_batches, tiny_source

SIZE, BATCH = 23, 5
ORDER = [[5, 17, 8, 19, 9], [0, 11, 13, 14, 10], [22, 18, 2, 3, 1], [12, 7, 4, 15, 6]]


class Items(Dataset[Any]):
    """A data set of single images whose first pixel is their index."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not 0 <= index < SIZE:
            raise IndexError(index)
        return torch.full((3, 2, 2), index / SIZE), index


def tensors() -> tuple[Tensor, Tensor]:
    items = [Items()[i] for i in range(SIZE)]
    return torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items])


def batches() -> list[tuple[Tensor, Tensor]]:
    images, labels = tensors()
    return list(zip(images.split(BATCH), labels.split(BATCH), strict=True))


KINDS: dict[str, Any] = {
    "tensors": tensors,
    "data set": Items,
    "tensor data set": lambda: TensorDataset(*tensors()),
    "loader": lambda: DataLoader(Items(), batch_size=2, shuffle=True),
    "loader with a worker": lambda: DataLoader(Items(), batch_size=2, num_workers=1),
}


def labels(source: SourceBatches, count: int) -> list[list[int]]:
    found = []
    for _ in range(count):
        images, targets = source.next()
        assert torch.equal(images[:, 0, 0, 0], targets / SIZE)
        found.append(targets.tolist())
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_are_shuffled_and_whole(kind: str) -> None:
    random = torch.get_rng_state()
    drawn = labels(SourceBatches(KINDS[kind](), BATCH, seed=3), 8)
    epochs = [list(chain(*drawn[:4])), list(chain(*drawn[4:]))]
    assert all(len(set(epoch)) == 20 for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert epochs[0] != sorted(epochs[0])
    assert torch.equal(random, torch.get_rng_state())
    assert drawn == labels(SourceBatches(KINDS["tensors"](), BATCH, seed=3), 8)
    assert drawn != labels(SourceBatches(KINDS[kind](), BATCH, seed=4), 8)


def test_the_order_of_a_seed_is_for_ever() -> None:
    """State files hold a position in it and no more, so another order would spoil them."""
    assert labels(SourceBatches(tensors(), BATCH, seed=3), 4) == ORDER


@pytest.mark.parametrize("method", [acclimate.RMT, acclimate.GTTA])
def test_the_adapters_seed_orders_what_it_takes(method: Any) -> None:
    def taken_with(seed: int) -> dict[str, list[list[float]]]:
        taken: list[list[float]] = []

        class Listening(method):  # type: ignore[misc]
            def take_source(self, batch: Any) -> Any:
                taken.append(batch[0][:, 0, 0, 0].tolist())
                return super().take_source(batch)

        options: dict[str, Any] = {"batch_size": 8, "updates": 5, "seed": seed}
        if method is acclimate.RMT:
            options |= {"warmup_samples": 16, "prototype_samples": 16, "lambda_ce": 1.0}
        adapter = Listening(TinyClassifier(), **options).prepare(tiny_source(40))
        adapter(tiny_batches(1)[0])
        replayed = taken[-5:]
        assert len(set(chain(*replayed))) == 40
        if method is acclimate.RMT:
            return {"prototypes": taken[:2], "warm-up": taken[2:4], "replay": replayed}
        return {"replay": replayed}

    first, again, other = taken_with(0), taken_with(0), taken_with(1)
    assert first == again
    for stage in first:
        assert first[stage] != other[stage], stage


@pytest.mark.parametrize("kind", [*KINDS, "batches"])
def test_any_position_continues_alike(kind: str) -> None:
    make = batches if kind == "batches" else KINDS[kind]
    whole = labels(SourceBatches(make(), BATCH, seed=3), 12)
    source = SourceBatches(make(), BATCH, seed=3)
    for position in (7, 3, 11, 0):
        source.position = position
        assert labels(source, 1) == whole[position : position + 1]
        assert source.position == position + 1


def test_batches_are_taken_as_they_come() -> None:
    expected = [targets.tolist() for _, targets in batches()]
    assert labels(SourceBatches(batches(), 99, seed=0), 10) == expected * 2


@pytest.mark.parametrize("kind", KINDS)
def test_once_gives_everything_or_a_choice(kind: str) -> None:
    source = SourceBatches(KINDS[kind](), BATCH, seed=0)
    everything = [y for _, targets in source.once(100) for y in targets.tolist()]
    assert everything == list(range(SIZE))
    some = [y for _, targets in source.once(9) for y in targets.tolist()]
    assert len(some) == 9
    assert some == sorted(set(some))
    assert some != list(range(9))


def test_share_keeps_a_part() -> None:
    for share, count in ((0.5, 12), (0.01, 1), (1.0, 23)):
        source = SourceBatches(tensors(), BATCH, seed=0, share=share)
        assert len(source) == count
        seen = {label for batch in labels(source, 40) for label in batch}
        assert len(seen) == count
    half = SourceBatches(batches(), BATCH, seed=0, share=0.4)
    assert len({tuple(batch) for batch in labels(half, 10)}) == 2


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, "needs labelled source data"),
        (7, "pair of tensors"),
        ([], "at least one image"),
        ((torch.rand(4, 3, 8, 8), torch.zeros(3, dtype=torch.long)), "one label for each"),
        ((torch.rand(4, 3, 8), torch.zeros(4, dtype=torch.long)), "one label for each"),
        ((torch.rand(0, 3, 8, 8), torch.zeros(0, dtype=torch.long)), "one label for each"),
        ((torch.rand(4, 3, 8, 8), torch.zeros(4)), "class indices"),
        ([(torch.rand(4, 3, 8, 8), torch.zeros(4, 1).long())], r"shape \(4,\)"),
        ([(torch.rand(4, 3, 8, 8) * 255, torch.zeros(4).long())], r"in \[0, 1\]"),
        ([(torch.rand(4, 1, 8, 8), torch.zeros(4).long())], "channels"),
        ([torch.rand(4, 3, 8, 8)], r"\(images, labels\)"),
        ((torch.rand(6, 3, 8, 8), torch.arange(6)), "from 0 to 4, .* Got labels from 0 to 5"),
        ((torch.linspace(0, 1.01, 960).view(5, 3, 8, 8), torch.arange(5)), r"from 0 to 1\.0"),
        ((torch.rand(9, 3, 8, 8), torch.full((9,), 2)), r"none of the classes \[0, 1, 3, 4\]"),
    ],
)
def test_wrong_source_data_are_explained(source: Any, words: str) -> None:
    adapter = acclimate.RMT(TinyClassifier(), batch_size=8, warmup_samples=8)
    with pytest.raises(acclimate.InputError, match=words):
        adapter.prepare(source)
    adapter.prepare(tiny_source())


def test_iterable_data_sets_are_refused() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(batches())

    with pytest.raises(acclimate.InputError, match="IterableDataset"):
        SourceBatches(DataLoader(Stream()), BATCH, seed=0)


def test_a_faulty_batch_in_replay_changes_nothing() -> None:
    images, targets = tiny_source(40)
    source = list(zip(images.split(8), targets.split(8), strict=True))
    options: dict[str, Any] = {"warmup_samples": 8, "batch_size": 8, "lambda_ce": 1, "updates": 3}
    adapter = acclimate.RMT(TinyClassifier(), **options).prepare(source)
    (batch,) = tiny_batches(1)
    adapter(batch)
    before = adapter.snapshot()
    good = source[4]
    source[4] = (good[0], good[1] + 90)
    with pytest.raises(acclimate.InputError, match="class indices from 0 to 4"):
        adapter(batch)
    after = adapter.snapshot()
    assert after.counters == before.counters
    assert all(torch.equal(after.tensors[name], before.tensors[name]) for name in before.tensors)
    source[4] = good
    adapter(batch)
    assert adapter.snapshot().counters["source_position"] == 6


def test_a_loader_that_leaves_images_out_is_refused() -> None:
    images, labels = tiny_source()
    data = torch.utils.data.TensorDataset(images, labels)
    sampler = torch.utils.data.SubsetRandomSampler(range(20))
    with pytest.raises(acclimate.InputError, match="sampler of its own"):
        SourceBatches(torch.utils.data.DataLoader(data, sampler=sampler), 8, seed=0)
    subset = torch.utils.data.Subset(data, range(20))
    assert len(SourceBatches(torch.utils.data.DataLoader(subset, shuffle=True), 8, seed=0)) == 20


def test_a_pair_of_arrays_is_refused_with_what_to_do() -> None:
    images, labels = (part.numpy() for part in tiny_source())
    with pytest.raises(acclimate.InputError, match=r"torch\.from_numpy"):
        SourceBatches((images, labels), 8, seed=0)


def test_an_adapter_that_replays_can_be_copied() -> None:
    options = {"batch_size": 8, "warmup_samples": 16, "lambda_ce": 1.0}
    adapter = acclimate.RMT(TinyClassifier(), **options).prepare(tiny_source())
    first, second = tiny_batches(2)
    adapter(first)
    twin = copy.deepcopy(adapter)
    assert torch.equal(twin(second), adapter(second))
