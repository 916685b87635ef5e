"""AdaContrast: refined pseudo-labels, queue and bank as rings, its loss, its networks."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import acclimate
from acclimate.testing import TinyClassifier, tiny_batches

BATCHES = tiny_batches(4)
SMALL: dict[str, Any] = {"batch_size": 8, "capacity": 24, "neighbours": 3, "refine_after": 0}


def normalised(rows: Tensor) -> Tensor:
    return rows / (rows * rows).sum(1, keepdim=True).sqrt()


class WithRecordedViews(acclimate.AdaContrast):
    """AdaContrast that keeps the views it makes."""

    def views(self, x_NCHW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.__dict__["seen"] = super().views(x_NCHW)
        return self.__dict__["seen"]


class Plain:
    """AdaContrast's step without anything of ours, with growing memory and Python loops."""

    def __init__(self, queue: Tensor, labels: Tensor, lr: float) -> None:
        self.student, self.teacher = TinyClassifier(), TinyClassifier()
        self.optimizer = torch.optim.SGD(
            self.student.parameters(), lr, momentum=0.9, nesterov=True, weight_decay=1e-4
        )
        self.queue, self.labels = [list(pair) for pair in (queue.double(), labels.tolist())]
        self.bank: list[tuple[Tensor, Tensor]] = []
        self.heads: list[Tensor] = []
        for net in (self.student, self.teacher):
            net.fc.register_forward_pre_hook(lambda _, args: self.heads.append(args[0]))

    def features(self, net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = net(x)
        return self.heads[-1], logits

    def pseudo_label(self, feature: Tensor, logits: Tensor) -> int:
        if not self.bank:
            return int(logits.argmax())
        distances = [
            (1 - float(F.cosine_similarity(feature, other, dim=0)), index)
            for index, (other, _) in enumerate(self.bank)
        ]
        nearest = [index for _, index in sorted(distances)[:3]]
        return int(torch.stack([self.bank[index][1] for index in nearest]).mean(0).argmax())

    def step(self, x: Tensor, views: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, float]:
        weak, strong, other = views
        for net in (self.student, self.teacher):
            net.train()
        with torch.no_grad():
            features, logits = self.features(self.student, weak)
        labels = [self.pseudo_label(f, z) for f, z in zip(features, logits, strict=True)]
        query, logits = self.features(self.student, strong)
        with torch.no_grad():
            for t, s in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                t.copy_(0.8 * t + 0.2 * s)
            key, _ = self.features(self.teacher, other)
        q, k = normalised(query.double()), normalised(key.double())
        loss = torch.zeros((), dtype=torch.float64)
        # The queue is a list with the oldest first, whose places are given new labels already.
        in_place = labels + self.labels[len(x) :]
        for i in range(len(x)):
            loss = loss + F.cross_entropy(logits[i].double(), torch.tensor(labels[i])) / len(x)
            positive = (q[i] @ k[i]) / 0.07
            scores = [positive] + [
                (q[i] @ negative) / 0.07
                for negative, label in zip(self.queue, in_place, strict=True)
                if label != labels[i]
            ]
            loss = loss + (torch.stack(scores).exp().sum().log() - positive) / len(x)
        mean = logits.double().softmax(1).mean(0)
        loss = loss + (mean * (mean + 1e-8).log()).sum()
        self.queue = self.queue[len(x) :] + list(k.detach())
        self.labels = self.labels[len(x) :] + labels
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            features, weak_logits = self.features(self.teacher, weak)
            pairs = list(zip(features, weak_logits.softmax(1), strict=True))
            self.bank += pairs
            self.student.eval()
            return self.student(x), loss.item()


def test_steps_against_plain_ones() -> None:
    adapter = WithRecordedViews(TinyClassifier(), **SMALL, lr=0.1, momentum=0.8)
    reports: list[acclimate.StepReport] = []
    adapter.observe(reports.append)
    made: list[tuple[Tensor, Tensor]] = []
    make_memory = adapter.make_memory

    def keep(features_ND: Tensor, logits_NK: Tensor) -> None:
        make_memory(features_ND, logits_NK)
        made.append((adapter.queue.clone(), adapter.queue_labels.clone()))

    adapter.make_memory = keep
    plain = None
    for x in BATCHES[:3]:
        logits = adapter(x)
        plain = plain or Plain(*made[0], lr=0.1)
        expected, loss = plain.step(x, adapter.__dict__["seen"])
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
        assert reports[-1].loss == pytest.approx(loss, rel=1e-4)
    for ours, theirs in ((adapter.student, plain.student), (adapter.teacher, plain.teacher)):
        for name, value in theirs.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_the_queue_starts_with_random_unit_features_and_labels() -> None:
    adapter = acclimate.AdaContrast(TinyClassifier(), batch_size=8, capacity=4096)
    adapter.make_memory(torch.zeros(1, 8), torch.zeros(1, 5))
    lengths = (adapter.queue**2).sum(1)
    torch.testing.assert_close(lengths, torch.ones(4096))
    assert abs(float(adapter.queue.mean())) < 0.01
    assert all(abs(count / 4096 - 0.2) < 0.03 for count in adapter.queue_labels.bincount().tolist())
    assert len(adapter.queue_labels.bincount()) == 5


def rows(start: int, count: int) -> Tensor:
    """Rows that tell which sample they are."""
    return torch.arange(start, start + count, dtype=torch.float32)[:, None].expand(-1, 8) + 1


def test_the_queue_goes_round() -> None:
    adapter = acclimate.AdaContrast(TinyClassifier(), batch_size=8, capacity=20)
    adapter.make_memory(torch.zeros(1, 8), torch.zeros(1, 5))
    before = adapter.queue_labels.clone()
    for start, count, following in ((0, 8, 8), (8, 8, 16), (16, 8, 4)):
        keys = F.one_hot(torch.arange(count), 8).float() * 3
        adapter.enqueue(keys, 10 + torch.arange(start, start + count))
        assert adapter.counters["queue_next"] == following
    # Samples 20 to 23 have taken the places of 0 to 3.
    expected = [30, 31, 32, 33, *range(14, 30)]
    assert adapter.queue_labels.tolist() == expected
    assert not set(before.tolist()) & set(expected)
    # Key 7 of the third batch is sample 23, in place 3, and has unit length.
    assert adapter.queue[3].tolist() == [0.0] * 7 + [1.0]
    adapter.enqueue(torch.ones(50, 8), torch.arange(100, 150))
    assert sorted(adapter.queue_labels.tolist()) == list(range(130, 150))
    assert adapter.counters["queue_next"] == (4 + 50) % 20
    assert adapter.queue_labels[(4 + 49) % 20] == 149


def test_the_bank_fills_in_whole_batches_and_then_goes_round() -> None:
    """As a list that grows by whole batches to its capacity, and then is overwritten."""
    adapter = acclimate.AdaContrast(TinyClassifier(), batch_size=8, capacity=20)
    adapter.make_memory(torch.zeros(1, 8), torch.zeros(1, 5))
    assert len(adapter.bank) == len(adapter.bank_probabilities) == 24
    grown: list[int] = []
    pointer = 0
    for batch in range(9):
        samples = list(range(8 * batch, 8 * batch + 8))
        adapter.remember(rows(8 * batch, 8), torch.zeros(8, 5))
        if len(grown) < 20:
            grown += samples
        else:
            for offset, sample in enumerate(samples):
                grown[(pointer + offset) % len(grown)] = sample
        pointer = (pointer + 8) % len(grown)
        assert adapter.counters["bank_filled"] == len(grown)
        assert (adapter.bank[: len(grown), 0] - 1).tolist() == grown
        assert adapter.counters["seen"] == 8 * (batch + 1)
    torch.testing.assert_close(adapter.bank_probabilities, torch.full((24, 5), 0.2))


def test_batches_of_any_size_keep_the_bank_at_its_size() -> None:
    adapter = acclimate.AdaContrast(TinyClassifier(), batch_size=8, capacity=20)
    adapter.make_memory(torch.zeros(1, 8), torch.zeros(1, 5))
    start = 0
    for count in (5, 8, 1, 8, 7, 40, 3):
        adapter.remember(rows(start, count), torch.zeros(count, 5))
        start += count
        kept = adapter.bank[: adapter.counters["bank_filled"], 0] - 1
        assert len(set(kept.tolist())) == len(kept) == min(24, start)
        assert start - 1 in kept.tolist()


def test_pseudo_labels_are_refined_by_the_nearest_neighbours() -> None:
    adapter = acclimate.AdaContrast(TinyClassifier(), **{**SMALL, "refine_after": 12})
    adapter.make_memory(torch.zeros(1, 8), torch.zeros(1, 5))
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(40, 8, generator=generator) * torch.rand(40, 1, generator=generator)
    logits = 3 * torch.randn(40, 5, generator=generator)
    adapter.remember(features[:8], logits[:8])
    query, own = torch.randn(30, 8, generator=generator), torch.randn(30, 5, generator=generator)
    # 8 of 12 samples seen: the prediction itself.
    assert adapter.pseudo_label(query, own).tolist() == own.argmax(1).tolist()
    adapter.remember(features[8:12], logits[8:12])
    refined = adapter.pseudo_label(query, own).tolist()
    for row, label in zip(query.tolist(), refined, strict=True):
        scored = []
        for feature, logit in zip(features[:12].tolist(), logits[:12].tolist(), strict=True):
            dot = sum(a * b for a, b in zip(row, feature, strict=True))
            scored.append((dot / sum(b * b for b in feature) ** 0.5, logit))
        mean = [0.0] * 5
        for _, logit in sorted(scored, reverse=True)[:3]:
            total = sum(2.718281828459045**value for value in logit)
            mean = [m + 2.718281828459045**v / total for m, v in zip(mean, logit, strict=True)]
        assert label == mean.index(max(mean))
    assert refined != own.argmax(1).tolist()


def test_a_bank_smaller_than_the_number_of_neighbours() -> None:
    adapter = acclimate.AdaContrast(
        TinyClassifier(), batch_size=4, capacity=4, neighbours=10, refine_after=0
    )
    for batch in BATCHES:
        assert adapter(batch[:3]).isfinite().all()


def test_queue_bank_and_positions_are_state() -> None:
    adapter = acclimate.AdaContrast(TinyClassifier(), **SMALL)
    assert not any("queue" in name or "bank" in name for name in adapter.snapshot().tensors)
    adapter(BATCHES[0])
    snapshot = adapter.snapshot()
    assert {"queue", "queue_labels", "bank", "bank_probabilities"} <= snapshot.tensors.keys()
    counters = {"queue_next": 8, "bank_next": 0, "bank_filled": 8, "seen": 8}
    assert counters.items() <= snapshot.counters.items()
    assert any("student.norm1.running_mean" in name for name in snapshot.tensors)
    expected = [adapter(batch) for batch in BATCHES[1:]]
    adapter.restore(snapshot)
    for batch, logits in zip(BATCHES[1:], expected, strict=True):
        assert torch.equal(adapter(batch), logits)
    adapter.reset()
    assert adapter.queue is None


def test_predictions_take_the_running_statistics() -> None:
    """In prediction an image does not depend on those beside it."""
    adapter = acclimate.AdaContrast(TinyClassifier(), **SMALL)
    adapter(BATCHES[0])
    together = adapter.predict(BATCHES[1])
    alone = torch.cat([adapter.predict(image[None]) for image in BATCHES[1]])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
    assert not torch.equal(adapter.student.norm1.running_mean, TinyClassifier().norm1.running_mean)


class Bottleneck(nn.Module):
    """A backbone, a bottleneck with its BatchNorm, and a weight-normalised classifier."""

    def __init__(self) -> None:
        super().__init__()
        body = TinyClassifier()
        self.encoder = nn.Sequential(body, nn.BatchNorm1d(5))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            with pytest.warns(FutureWarning):
                self.fc = nn.utils.weight_norm(nn.Linear(5, 7), dim=0)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.encoder(x))


def test_the_last_layers_learn_faster_and_all_parameters_are_trained() -> None:
    model = Bottleneck().eval()
    options = {**SMALL, "all_parameters": True, "fast_layers": 3, "lr": 0.01}
    adapter = acclimate.AdaContrast(model, **options, window=4)
    assert set(adapter.trained) == {name for name, _ in model.named_parameters()}
    slow, fast = adapter.optimizer.param_groups
    assert (slow["lr"], fast["lr"]) == pytest.approx((0.005, 0.05))
    names = {id(parameter): name for name, parameter in adapter.student.named_parameters()}
    assert {names[id(parameter)] for parameter in fast["params"]} == {
        "encoder.0.fc.weight",
        "encoder.0.fc.bias",
        "encoder.1.weight",
        "encoder.1.bias",
        "fc.bias",
        "fc.weight_g",
        "fc.weight_v",
    }
    adapter.set_learning_rate(0.1)
    assert (slow["lr"], fast["lr"]) == pytest.approx((0.1, 1.0))
    before = {name: value.detach().clone() for name, value in adapter.trained.items()}
    adapter(BATCHES[0])
    assert all(not torch.equal(before[name], adapter.trained[name]) for name in before)
    plain = acclimate.AdaContrast(model, **SMALL)
    assert "fc.weight_v" not in plain.trained
    assert len(plain.optimizer.param_groups) == 1


def test_more_fast_layers_than_there_are_make_all_fast() -> None:
    adapter = acclimate.AdaContrast(TinyClassifier(), **SMALL, fast_layers=99, lr=0.01)
    (group,) = adapter.optimizer.param_groups
    assert group["lr"] == pytest.approx(0.1)


def test_presets_are_the_papers() -> None:
    cifar = acclimate.AdaContrast.preset("cifar")
    assert (cifar.optimizer, cifar.lr, cifar.weight_decay) == ("sgd", 2e-4, 1e-4)
    assert (cifar.capacity, cifar.neighbours, cifar.temperature) == (16_384, 10, 0.07)
    assert acclimate.AdaContrast.preset("imagenet").crop is False
    assert acclimate.AdaContrast.preset("imagenet-r").crop is True
    natural = acclimate.AdaContrast.preset("domainnet")
    assert (natural.batch_size, natural.crop, natural.fast_layers) == (128, True, 3)
    assert natural.all_parameters


@pytest.mark.parametrize("window", [8, 16, 32])
def test_single_images(window: int) -> None:
    adapter = WithRecordedViews(TinyClassifier(), window=window, capacity=40)
    assert adapter.optimizer.param_groups[0]["lr"] == pytest.approx(2e-4 * window / 200)
    (images,) = tiny_batches(1, size=2 * window)
    assert adapter(images).isfinite().all()
    assert [len(view) for view in adapter.__dict__["seen"]] == [window] * 3
    assert adapter.counters["seen"] == 2 * window
    assert len(adapter.bank) == -(-40 // window) * window
