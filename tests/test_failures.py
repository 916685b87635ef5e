"""A call that fails, wherever it fails, leaves the adapter as it was before."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import acclimate
from acclimate.testing import TinyClassifier, tiny_batches, tiny_source
from acclimate.testing.contract import same_state

SHORT: dict[str, Any] = {"batch_size": 8, "warmup_samples": 16}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "source, window": ("source", {"window": 3}),
    "bn1, moving": ("bn1", {"momentum": 0.1}),
    "tent, 3 updates": ("tent", {"updates": 3}),
    "tent, episodic": ("tent", {"episodic": True}),
    "tent, window": ("tent", {"window": 3}),
    "mean teacher": ("mean-teacher", {}),
    "rmt, replay": ("rmt", {**SHORT, "lambda_ce": 1.0}),
    "rmt, window, 2 updates": ("rmt", {**SHORT, "window": 3, "updates": 2}),
    "cotta": ("cotta", {"augmentations": 3}),
    "adacontrast": ("adacontrast", {"refine_after": 4}),
    "gtta": ("gtta-mix", {"batch_size": 8, "updates": 2}),
}


class Fragile(TinyClassifier):
    """Raises when its fuse, shared by all copies, has burnt down."""

    fuse: list[int]

    def forward(self, x_NCHW: Tensor) -> Tensor:
        x_NCHW = super().forward(x_NCHW)
        type(self).fuse[0] -= 1
        if type(self).fuse[0] == 0:
            raise RuntimeError("out of memory")
        return x_NCHW


@pytest.fixture
def fuse() -> list[int]:
    Fragile.fuse = [-1]
    return Fragile.fuse


@pytest.mark.parametrize("case", CASES)
def test_a_forward_pass_that_fails_leaves_no_trace(case: str, fuse: list[int]) -> None:
    name, options = CASES[case]
    method = acclimate.get_method(name)
    adapter, other = (method(Fragile(), **options).prepare(tiny_source()) for _ in "ab")
    first, second, third = tiny_batches(3)
    assert torch.equal(adapter(first), other(first))
    before = adapter.snapshot()
    failures = 0
    while failures < 60:
        fuse[0] = failures + 1
        try:
            adapter(second)
        except RuntimeError:
            failures += 1
            assert same_state(before, adapter.snapshot()), f"forward pass {failures}"
            assert all(parameter.grad is None for parameter in adapter.parameters())
        else:
            break
    assert failures >= 1
    fuse[0] = -1
    other(second)
    assert torch.equal(adapter(third), other(third))


def test_a_faulty_replay_batch_in_a_window_leaves_no_trace() -> None:
    images, labels = tiny_source()
    batches = [(images[i : i + 3].clone(), labels[i : i + 3].clone()) for i in range(0, 30, 3)]
    options = {**SHORT, "lambda_ce": 1.0, "window": 3, "lambda_cl": 0.0, "warmup_samples": 0}
    adapter = acclimate.RMT(TinyClassifier(), **options).prepare(batches)
    batches[1][1][0] = 99
    (batch,) = tiny_batches(1)
    before = adapter.snapshot()
    with pytest.raises(acclimate.InputError, match="class indices"):
        adapter(batch)
    assert same_state(before, adapter.snapshot())
    batches[1][1][0] = 1
    other = acclimate.RMT(TinyClassifier(), **options).prepare(batches)
    assert torch.equal(adapter(batch), other(batch))


def test_source_data_that_fail_once_are_read_again() -> None:
    images, labels = tiny_source()

    class Flaky(torch.utils.data.Dataset[Any]):
        broken = False

        def __len__(self) -> int:
            return len(images)

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            if self.broken:
                raise OSError("the share is gone")
            return images[index], labels[index]

    data = Flaky()
    options = {**SHORT, "lambda_ce": 1.0}
    adapter = acclimate.RMT(TinyClassifier(), **options).prepare(data)
    other = acclimate.RMT(TinyClassifier(), **options).prepare((images, labels))
    first, second = tiny_batches(2)
    assert torch.equal(adapter(first), other(first))
    data.broken = True
    with pytest.raises(OSError, match="the share is gone"):
        adapter(second)
    data.broken = False
    assert torch.equal(adapter(second), other(second))


def test_replay_data_are_looked_at_while_they_can_still_be_refused() -> None:
    images, labels = tiny_source()
    options = {**SHORT, "lambda_ce": 1.0, "lambda_cl": 0.0, "warmup_samples": 0}
    adapter = acclimate.RMT(TinyClassifier(), **options)
    with pytest.raises(acclimate.InputError, match="class indices"):
        adapter.prepare((images, labels + 5))
    other = acclimate.RMT(TinyClassifier(), **options).prepare((images, labels))
    (batch,) = tiny_batches(1)
    assert torch.equal(adapter.prepare((images, labels))(batch), other(batch))


def test_a_refused_size_does_not_change_later_numbers() -> None:
    class OneSize(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = TinyClassifier()
            self.fc = nn.Linear(8 * 8, 5)
            self.fc.load_state_dict(
                {k: torch.ones_like(v) for k, v in self.fc.state_dict().items()}
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x) + self.fc(x.mean(1).flatten(1))

    adapter, other = acclimate.Tent(OneSize()), acclimate.Tent(OneSize())
    with pytest.raises(acclimate.InputError, match="cannot take images of the shape"):
        adapter(tiny_batches(1, side=16)[0])
    layouts = [one.student.body.conv1.weight.stride() for one in (adapter, other)]
    assert layouts[0] == layouts[1]
    for batch in tiny_batches(3):
        assert torch.equal(adapter(batch), other(batch))
