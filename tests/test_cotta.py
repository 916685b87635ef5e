"""CoTTA: the threshold, the averaged views and the stochastic restoration."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import acclimate
from acclimate.network import restore_at_random
from acclimate.testing import TinyClassifier, tiny_batches

BATCHES = tiny_batches(4)


def with_batch_statistics() -> TinyClassifier:
    model = TinyClassifier()
    for norm in (model.norm1, model.norm2):
        norm.track_running_stats = False
        norm.train()
    return model


class Counting(acclimate.CoTTA):
    """CoTTA that keeps the views it makes."""

    def augment(self, x_NCHW: Tensor) -> Tensor:
        view = super().augment(x_NCHW)
        self.__dict__.setdefault("made", []).append(view)
        return view


def source_confidence(batch: Tensor) -> float:
    probabilities = with_batch_statistics()(batch).detach().exp()
    probabilities = probabilities / probabilities.sum(1, keepdim=True)
    return float(probabilities.max(1).values.mean())


@pytest.mark.parametrize(("step", "averaged"), [(1e-4, True), (-1e-4, False)])
def test_views_are_averaged_below_the_threshold_only(step: float, averaged: bool) -> None:
    threshold = source_confidence(BATCHES[0]) + step
    adapter = Counting(TinyClassifier(), threshold=threshold, augmentations=5)
    logits = adapter(BATCHES[0])
    views = adapter.__dict__.get("made", [])
    assert len(views) == (5 if averaged else 0)
    teacher = with_batch_statistics()
    each = [teacher(view).detach() for view in views or [BATCHES[0]]]
    torch.testing.assert_close(logits, sum(each) / len(each), rtol=1e-5, atol=1e-6)


def test_each_view_has_its_own_draw() -> None:
    adapter = Counting(TinyClassifier(), threshold=1.0, augmentations=4)
    adapter(BATCHES[0])
    views = adapter.__dict__["made"]
    assert not any(torch.equal(a, b) for i, a in enumerate(views) for b in views[:i])


def test_confidence_is_the_source_models_however_far_one_has_adapted() -> None:
    threshold = source_confidence(BATCHES[0]) + 1e-4
    adapter = Counting(
        TinyClassifier(), threshold=threshold, augmentations=1, lr=0.3, momentum=0.0, restore=0.0
    )
    with torch.no_grad():
        for _ in range(4):
            adapter(BATCHES[0])
            # A student as sure as can be, with which its teacher is equal.
            for net in (adapter.student, adapter.teacher):
                net.fc.bias[0] = 50.0
    assert len(adapter.__dict__["made"]) == 4


@pytest.mark.parametrize("loss", ["ce", "sce"])
def test_a_step_against_a_plain_one(loss: str) -> None:
    model = TinyClassifier()
    options: dict[str, Any] = {"optimizer": "sgd", "lr": 0.5, "momentum": 0.8, "restore": 0.0}
    adapter = Counting(model, loss=loss, threshold=1.0, augmentations=3, **options)
    student, teacher = with_batch_statistics(), with_batch_statistics()
    optimizer = torch.optim.SGD(student.parameters(), 0.5, momentum=0.9, nesterov=True)
    for batch in BATCHES:
        logits = adapter(batch)
        views = adapter.__dict__.pop("made")
        target = torch.stack([teacher(view) for view in views]).mean(0).detach()
        torch.testing.assert_close(logits, target, rtol=1e-4, atol=1e-5)
        p, q = (F.log_softmax(z, 1) for z in (student(batch), target))
        value = -(q.exp() * p).sum(1).mean()
        if loss == "sce":
            value = value / 2 - (p.exp() * q).sum(1).mean() / 2
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        with torch.no_grad():
            for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
                t.copy_(0.8 * t + 0.2 * s)
    for ours, plain in zip(adapter.student.parameters(), student.parameters(), strict=True):
        torch.testing.assert_close(ours.detach(), plain.detach(), rtol=1e-4, atol=1e-5)


def test_restoring_everything_gives_the_source_weights_exactly() -> None:
    model = TinyClassifier()
    adapter = acclimate.CoTTA(model, restore=1.0, lr=0.1, augmentations=2, threshold=1.0)
    for batch in BATCHES:
        adapter(batch)
        for (name, ours), theirs in zip(
            adapter.student.named_parameters(), model.parameters(), strict=True
        ):
            assert torch.equal(ours, theirs), name
    assert not torch.equal(adapter.teacher.conv1.weight, model.conv1.weight)


def test_restoring_nothing_draws_nothing() -> None:
    adapter = acclimate.CoTTA(TinyClassifier(), restore=0.0, threshold=0.0)
    before = adapter.generator.get_state()
    adapter(BATCHES[0])
    assert torch.equal(adapter.generator.get_state(), before)


@pytest.mark.parametrize("probability", [0.01, 0.3])
def test_each_element_is_restored_with_the_probability_and_no_other_changes(
    probability: float,
) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(64, 3, 3, 3), (500,), (40, 200), ()]
    source = [torch.rand(shape, generator=generator) for shape in shapes]
    source[0] = source[0].contiguous(memory_format=torch.channels_last)
    weights = [5 + value for value in source]
    moved = [weight.clone() for weight in weights]
    counts, rounds = [torch.zeros(shape) for shape in shapes], 200
    for _ in range(rounds):
        for weight, value in zip(weights, moved, strict=True):
            weight.copy_(value)
        restore_at_random(weights, source, probability, generator)
        for weight, value, old, count in zip(weights, source, moved, counts, strict=True):
            assert bool(((weight == value) | (weight == old)).all())
            count += weight == value
    flat = torch.cat([count.flatten() for count in counts]) / rounds
    deviation = (probability * (1 - probability) / (rounds * len(flat))) ** 0.5
    assert abs(float(flat.mean()) - probability) < 5 * deviation
    # Elements differ from each other as independent draws do, and rounds from each other.
    spread = (probability * (1 - probability) / rounds) ** 0.5
    assert float(flat.std()) == pytest.approx(spread, rel=0.1)


def test_only_trained_weights_are_restored() -> None:
    class WithToken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = TinyClassifier()
            self.token = nn.Parameter(torch.zeros(1, 3, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x + self.token)

    adapter = acclimate.CoTTA(WithToken(), restore=1.0)
    with torch.no_grad():
        adapter.student.token.fill_(0.25)
    adapter(BATCHES[0])
    assert bool((adapter.student.token == 0.25).all())


def test_a_state_file_belongs_to_its_source_model(tmp_path: Any) -> None:
    """What restoration returns to is not in the file, so another source model is refused."""
    path = tmp_path / "state.safetensors"
    adapter = acclimate.CoTTA(TinyClassifier(), augmentations=2)
    adapter(BATCHES[0])
    adapter.save(path)
    assert not any("anchor" in name for name in adapter.snapshot().tensors)
    acclimate.CoTTA(TinyClassifier(), augmentations=2).load(path)
    with pytest.raises(acclimate.StateError, match="fixed weights"):
        acclimate.CoTTA(TinyClassifier(seed=1), augmentations=2).load(path)


def test_presets_are_the_papers() -> None:
    assert acclimate.CoTTA.preset("cifar") == acclimate.CoTTAConfig()
    assert acclimate.CoTTA.preset("cifar100").threshold == 0.72
    natural = acclimate.CoTTA.preset("imagenet")
    assert (natural.optimizer, natural.lr, natural.loss) == ("sgd", 0.01, "sce")
    assert (natural.threshold, natural.restore, natural.batch_size) == (0.1, 0.001, 64)
    assert acclimate.CoTTA.preset("domainnet").batch_size == 128


@pytest.mark.parametrize("window", [8, 16, 32])
def test_single_images_are_predicted_by_the_teacher_and_updated_once_a_window(window: int) -> None:
    adapter = Counting(TinyClassifier(), window=window, threshold=1.0, augmentations=2)
    assert adapter.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * window / 200)
    (images,) = tiny_batches(1, size=window)
    teacher = with_batch_statistics()
    for index in range(1, window):
        logits = adapter(images[index - 1 : index])
        if index > 1:  # one image alone has no batch statistics behind the pooling
            torch.testing.assert_close(
                logits, teacher(images[:index])[-1:].detach(), rtol=1e-4, atol=1e-5
            )
    assert "made" not in adapter.__dict__
    adapter(images[-1:])
    assert [len(view) for view in adapter.__dict__["made"]] == [window, window]
