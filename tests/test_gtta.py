"""GTTA-MIX: confident pseudo-labels, mixtures of source and test images, its state."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import acclimate
from acclimate.testing import TinyClassifier, tiny_batches, tiny_source

BATCHES = tiny_batches(4)
SMALL: dict[str, Any] = {"batch_size": 8}


def with_batch_statistics(model: TinyClassifier) -> TinyClassifier:
    for norm in (model.norm1, model.norm2):
        norm.track_running_stats = False
        norm.train()
    return model


def softmax(logits: Tensor) -> Tensor:
    exponents = logits.detach().double().exp()
    return exponents / exponents.sum(1, keepdim=True)


def sure_of_some() -> TinyClassifier:
    """A classifier with some predictions above the square root of the mean and some below."""
    model = TinyClassifier()
    with torch.no_grad():
        model.fc.weight.mul_(20)
    return model


def test_steps_against_plain_ones() -> None:
    """Two batches of two steps, written out sample by sample."""
    images, labels = tiny_source(48)
    source = list(zip(images.split(8), labels.split(8), strict=True))
    options = {"optimizer": "sgd", "lr": 0.01, "updates": 2, "confidence_momentum": 0.5}
    adapter = acclimate.GTTA(sure_of_some(), **SMALL, **options).prepare(source)
    reports: list[acclimate.StepReport] = []
    adapter.observe(reports.append)

    student = with_batch_statistics(sure_of_some())
    running, batches = 0.9, iter(source)
    optimizer = torch.optim.SGD(student.parameters(), 0.01, momentum=0.9, nesterov=True)

    def step(loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for x in BATCHES[:2]:
        p = softmax(student(x))
        running = 0.5 * running + 0.5 * float(p.max(1).values.mean())
        kept = [i for i in range(8) if float(p[i].max()) >= running**0.5]
        assert 0 < len(kept) < 8
        losses = []
        for _ in range(2):
            x_source, y = next(batches)
            test, origin = softmax(student(x)), softmax(student(x_source))
            mixed = []
            for i in range(8):
                similar = [float((origin[i] * test[j]).sum()) for j in range(8)]
                mixed.append(2 / 3 * x_source[i] + 1 / 3 * x[similar.index(max(similar))])
            first = F.cross_entropy(student(torch.stack(mixed)), y)
            step(first)
            logits = student(x)
            second = 0 * logits.sum()
            for i in kept:
                second = second + F.cross_entropy(logits[i], p[i].argmax()) / len(kept)
            step(second)
            losses.append(first.item() + second.item())
        torch.testing.assert_close(adapter(x), logits.detach(), rtol=1e-4, atol=1e-5)
        assert [report.loss for report in reports[-2:]] == pytest.approx(losses, rel=1e-4)
        assert float(adapter.confidence) == pytest.approx(running, rel=1e-5)
    for ours, plain in zip(adapter.student.parameters(), student.parameters(), strict=True):
        torch.testing.assert_close(ours.detach(), plain.detach(), rtol=1e-4, atol=1e-5)


def test_the_running_confidence_is_updated_before_samples_are_filtered() -> None:
    model = sure_of_some()
    adapter = acclimate.GTTA(model, **SMALL).prepare(tiny_source())
    first = softmax(acclimate.BN1(model)(BATCHES[0])).max(1).values
    running = 0.9 * 0.9 + 0.1 * float(first.mean())
    adapter.begin(BATCHES[0])
    assert adapter.kept_N.tolist() == (first >= running**0.5).tolist()
    assert 0 < int(adapter.kept_N.sum()) < 8


def test_no_confident_sample_gives_a_step_without_its_gradient() -> None:
    adapter = acclimate.GTTA(TinyClassifier(), **SMALL, optimizer="sgd", lr=0.1, updates=1)
    adapter.prepare(tiny_source())
    losses: list[Tensor] = []
    steps: list[bool] = []
    update, step = adapter.update, adapter.optimizer.step

    def watch(loss: Tensor) -> None:
        losses.append(loss.detach())
        update(loss)

    def count() -> None:
        parameters = adapter.student.parameters()
        steps.append(any(bool(p.grad.any()) for p in parameters))
        step()

    adapter.update, adapter.optimizer.step = watch, count
    logits = adapter(BATCHES[0])
    assert int(adapter.kept_N.sum()) == 0
    assert logits.isfinite().all()
    assert losses[0] > 0
    assert losses[1] == 0
    # The second step has no gradient and is taken all the same, on momentum.
    assert steps == [True, False]
    assert all(bool(p.isfinite().all()) for p in adapter.student.parameters())


def test_a_whole_source_or_test_image_at_the_ends_of_the_mixing_share() -> None:
    images, labels = tiny_source(8)
    for share, expected in ((0.0, images), (1.0, None)):
        adapter = acclimate.GTTA(TinyClassifier(), **SMALL, test_share=share)
        adapter.prepare([(images, labels)])
        adapter.begin(BATCHES[0])
        mixed = adapter.mix(images, BATCHES[0])
        if expected is not None:
            assert torch.equal(mixed, expected)
        else:
            assert all(any(torch.equal(one, x) for x in BATCHES[0]) for one in mixed)


def test_running_confidence_and_source_position_are_state() -> None:
    adapter = acclimate.GTTA(sure_of_some(), **SMALL, updates=3).prepare(tiny_source())
    assert adapter.snapshot().tensors["confidence"] == torch.tensor(0.9)
    adapter(BATCHES[0])
    snapshot = adapter.snapshot()
    assert snapshot.counters["source_position"] == 3
    assert snapshot.tensors["confidence"] != torch.tensor(0.9)
    expected = adapter(BATCHES[1])
    assert adapter.snapshot().counters["source_position"] == 6
    assert torch.equal(adapter.restore(snapshot)(BATCHES[1]), expected)
    adapter.reset()
    assert adapter.confidence == torch.tensor(0.9)


@pytest.mark.parametrize("window", [8, 16, 32])
def test_single_images_take_source_batches_as_large_as_the_window(window: int) -> None:
    sizes: list[int] = []

    class Listening(acclimate.GTTA):
        def mix(self, x_source_NCHW: Tensor, x_NCHW: Tensor) -> Tensor:
            sizes.append(len(x_source_NCHW))
            return super().mix(x_source_NCHW, x_NCHW)

    adapter = Listening(TinyClassifier(), window=window).prepare(tiny_source(64))
    assert adapter.optimizer.param_groups[0]["lr"] == pytest.approx(1e-5 * window / 200)
    (images,) = tiny_batches(1, size=2 * window)
    adapter(images)
    assert sizes == [window] * 8


def test_preparation_looks_at_a_sample_of_the_source() -> None:
    seen: list[acclimate.Progress] = []
    adapter = acclimate.GTTA(TinyClassifier(), **SMALL)
    adapter.prepare(tiny_source(40), progress=seen.append)
    assert [(one.stage, one.done, one.total) for one in seen][-1] == ("source check", 40, 40)


def test_presets_are_the_papers() -> None:
    for name, batch_size in (("cifar", 200), ("imagenet", 64), ("domainnet", 128)):
        config = acclimate.GTTA.preset(name)
        assert (config.optimizer, config.lr, config.updates) == ("adam", 1e-5, 4)
        assert config.batch_size == batch_size
