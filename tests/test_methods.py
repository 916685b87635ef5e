"""Methods against plain versions of their papers, and the options of the ablation."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import acclimate
from acclimate.methods.mean_teacher import warm_up
from acclimate.testing import TinyClassifier, tiny_batches, tiny_source

BATCHES = tiny_batches(4)
SHORT: dict[str, Any] = {"batch_size": 8, "warmup_samples": 16}


def with_batch_statistics() -> TinyClassifier:
    model = TinyClassifier()
    for norm in (model.norm1, model.norm2):
        norm.track_running_stats = False
        norm.train()
    return model


def log_probabilities(logits: Tensor) -> Tensor:
    return logits - logits.exp().sum(1, keepdim=True).log()


def ce(p: Tensor, q: Tensor) -> Tensor:
    return -(log_probabilities(q).exp() * log_probabilities(p)).sum(1).mean()


class PlainMeanTeacher:
    """The mean teacher of section 3.1 without anything of ours."""

    def __init__(self, loss: str, lr: float, momentum: float) -> None:
        self.student, self.teacher = with_batch_statistics(), with_batch_statistics()
        self.optimizer = torch.optim.SGD(self.student.parameters(), lr, momentum=0.9, nesterov=True)
        self.loss, self.momentum = loss, momentum

    def step(self, x: Tensor) -> Tensor:
        q, p = self.teacher(x).detach(), self.student(x)
        loss = ce(p, q) if self.loss == "ce" else ce(p, q) / 2 + ce(q, p) / 2
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for t, s in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                t.copy_(self.momentum * t + (1 - self.momentum) * s)
        return q


@pytest.mark.parametrize("loss", ["ce", "sce"])
def test_mean_teacher_against_a_plain_one(loss: str) -> None:
    plain = PlainMeanTeacher(loss, lr=0.5, momentum=0.8)
    ours = acclimate.MeanTeacher(TinyClassifier(), loss=loss, lr=0.5, momentum=0.8, optimizer="sgd")
    for batch in BATCHES:
        torch.testing.assert_close(ours(batch), plain.step(batch), rtol=1e-4, atol=1e-5)


def test_ablation_rows_of_rmt_reduce_to_the_mean_teacher() -> None:
    """With A to E off, RMT is MT(SCE)."""
    off = {"augmented": False, "ensemble": False, "lambda_cl": 0.0, "warmup_samples": 0}
    rmt = acclimate.RMT(TinyClassifier(), lr=0.1, optimizer="sgd", **off)
    teacher = acclimate.MeanTeacher(TinyClassifier(), lr=0.1, optimizer="sgd")
    assert rmt.needs_source is False
    for batch in BATCHES:
        assert torch.equal(rmt(batch), teacher(batch))


def test_every_row_of_the_ablation_differs() -> None:
    rows: list[dict[str, Any]] = [
        {"augmented": False, "ensemble": False, "lambda_cl": 0.0, "warmup_samples": 0},
        {"ensemble": False, "lambda_cl": 0.0, "warmup_samples": 0},
        {"lambda_cl": 0.0, "warmup_samples": 0},
        {"warmup_samples": 0},
        {},
        {"lambda_ce": 1.0},
        {"lambda_ce": 1.0, "source_share": 0.25},
        {"temperature": 1.0},
        {"momentum": 0.9},
        {"projector": False},
        {"lambda_cl": 0.5},
        {"updates": 2},
    ]
    seen: list[Tensor] = []
    for row in rows:
        adapter = acclimate.RMT(TinyClassifier(), **{**SHORT, "lr": 0.02, **row})
        adapter.prepare(tiny_source())
        logits = torch.stack([adapter(batch) for batch in BATCHES])
        assert not any(torch.equal(logits, other) for other in seen)
        seen.append(logits)


def test_a_source_share_of_nothing_is_source_free() -> None:
    outcomes = []
    for options in ({"lambda_ce": 1.0, "source_share": 0.0}, {"lambda_ce": 0.0}):
        adapter = acclimate.RMT(TinyClassifier(), **SHORT, **options).prepare(tiny_source())
        assert adapter.replay is None
        outcomes.append(torch.stack([adapter(batch) for batch in BATCHES]))
    assert torch.equal(*outcomes)


def test_prototypes_are_class_means_of_source_features() -> None:
    images, labels = tiny_source(40)
    adapter = acclimate.RMT(TinyClassifier(), **SHORT).prepare((images, labels))
    model = with_batch_statistics()
    features = []
    for x in images.split(8):
        x = model.norm1(model.conv1(x)).relu()
        features.append(model.norm2(model.conv2(x)).relu().mean((2, 3)))
    found = torch.cat(features)
    for label in range(5):
        mean = found[labels == label].mean(0)
        torch.testing.assert_close(adapter.prototypes[label], mean, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize(("samples", "steps"), [(40, 5), (20, 2)])
def test_warm_up_raises_the_learning_rate_linearly(
    samples: int, steps: int, window: int | None
) -> None:
    """In whole batches, and as high with a window, as warm-up's batches are not of its size."""
    options = {"batch_size": 8, "warmup_samples": samples, "window": window}
    adapter = acclimate.MeanTeacher(TinyClassifier(), **options)
    rates: list[float] = []
    step = adapter.optimizer.step

    def record() -> None:
        rates.append(adapter.optimizer.param_groups[0]["lr"])
        step()

    adapter.optimizer.step = record
    adapter.prepare(tiny_source())
    assert rates == pytest.approx([1e-3 * part / steps for part in range(1, steps + 1)])
    after = 1e-3 if window is None else 1e-3 * window / 8
    assert adapter.optimizer.param_groups[0]["lr"] == pytest.approx(after)


def test_warm_up_of_a_window_ends_with_the_windows_learning_rate() -> None:
    adapter = acclimate.RMT(TinyClassifier(), window=4, **SHORT).prepare(tiny_source())
    network, projector = adapter.optimizer.param_groups
    assert network["lr"] == pytest.approx(1e-3 * 4 / 8)
    assert projector["lr"] == pytest.approx(1e-3 * 4 / 8)


def test_prototypes_are_of_as_many_images_as_told() -> None:
    taken: list[tuple[Tensor, Tensor]] = []

    class Listening(acclimate.RMT):
        def take_source(self, batch: Any) -> Any:
            taken.append(super().take_source(batch))
            return taken[-1]

    options = {"batch_size": 6, "warmup_samples": 0, "prototype_samples": 16}
    seen: list[acclimate.Progress] = []
    adapter = Listening(TinyClassifier(), **options)
    adapter.prepare(tiny_source(40), progress=seen.append)
    assert [(p.stage, p.done, p.total) for p in seen] == [
        ("prototypes", done, 16) for done in (6, 12, 16)
    ]
    images, labels = (torch.cat(parts) for parts in zip(*taken, strict=True))
    assert len(images.flatten(1).unique(dim=0)) == 16
    assert labels.unique().tolist() == [0, 1, 2, 3, 4]
    heads: list[Tensor] = []
    model = with_batch_statistics()
    model.fc.register_forward_pre_hook(lambda _, args: heads.append(args[0].detach()))
    for x, _ in taken:
        model(x)
    expected = torch.stack([torch.cat(heads)[labels == label].mean(0) for label in range(5)])
    torch.testing.assert_close(adapter.prototypes, expected, rtol=1e-4, atol=1e-6)


def test_warm_up_of_fewer_samples_than_a_batch_takes_one_step() -> None:
    adapter = acclimate.MeanTeacher(TinyClassifier())
    seen: list[tuple[str, int, int]] = []
    warm_up(adapter, tiny_source(), 3, lambda *progress: seen.append(progress))
    assert seen == [("warm-up", 1, 1)]


def test_replay_with_a_window_takes_batches_of_its_size() -> None:
    sizes: list[int] = []

    class Listening(acclimate.RMT):
        def take_source(self, batch: Any) -> Any:
            sizes.append(len(batch[0]))
            return super().take_source(batch)

    adapter = Listening(TinyClassifier(), **SHORT, window=4, lambda_ce=1.0)
    adapter.prepare(tiny_source())
    sizes.clear()
    adapter(BATCHES[0])
    assert sizes == [4, 4]


def test_rmt_step_against_a_plain_one() -> None:
    """The total loss of eq. 9 and its step, written out once more without anything of ours."""
    images, labels = tiny_source(8)
    options = {"batch_size": 8, "warmup_samples": 0, "lambda_ce": 0.7, "lambda_cl": 0.3}
    adapter = acclimate.RMT(TinyClassifier(), optimizer="sgd", lr=0.1, **options)
    adapter.prepare([(images, labels)])
    x, tau = BATCHES[0], 0.1
    view = adapter.augment(x)
    projector = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 128))
    projector.load_state_dict(adapter.projector.state_dict())
    prototypes = adapter.prototypes.clone()
    student = with_batch_statistics()
    heads: list[Tensor] = []
    student.fc.register_forward_pre_hook(lambda _, args: heads.append(args[0]))
    q = with_batch_statistics()(x).detach()
    p, p_view = student(x), student(view)
    similarity = F.cosine_similarity(heads[0][:, None], prototypes[None], dim=2)
    nearest = prototypes[similarity.argmax(1)]
    z = F.normalize(projector(torch.cat([nearest, heads[0], heads[1]])), dim=1)
    scores = z @ z.T / tau
    contrast = torch.zeros(())
    for i in range(24):
        others = [a for a in range(24) if a != i]
        below = scores[i, others].exp().sum().log()
        for positive in (a for a in others if a % 8 == i % 8):
            contrast = contrast - (scores[i, positive] - below) / 2 / 24
    total = sum(ce(a, b) for pair in ((p, q), (p_view, q)) for a, b in (pair, pair[::-1])) / 4
    total = total + 0.3 * contrast + 0.7 * F.cross_entropy(student(images), labels)
    parameters = [*student.parameters(), *projector.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.1, momentum=0.9, nesterov=True)
    total.backward()
    optimizer.step()

    adapter.reset()
    reports: list[acclimate.StepReport] = []
    adapter.observe(reports.append)
    logits = adapter(x)
    torch.testing.assert_close(logits, (p + q).detach(), rtol=1e-4, atol=1e-5)
    assert reports[0].loss == pytest.approx(total.item(), rel=1e-5)
    for ours, plain in zip(adapter.student.parameters(), student.parameters(), strict=True):
        torch.testing.assert_close(ours.detach(), plain.detach(), rtol=1e-4, atol=1e-6)
    for ours, plain in zip(adapter.projector.parameters(), projector.parameters(), strict=True):
        torch.testing.assert_close(ours.detach(), plain.detach(), rtol=1e-4, atol=1e-6)


def test_episodic_tent_forgets() -> None:
    episodic = acclimate.Tent(TinyClassifier(), episodic=True, lr=0.1)
    first = episodic(BATCHES[0])
    episodic(BATCHES[1])
    assert torch.equal(episodic(BATCHES[0]), first)
    continual = acclimate.Tent(TinyClassifier(), lr=0.1)
    assert torch.equal(continual(BATCHES[0]), first)
    continual(BATCHES[1])
    assert not torch.equal(continual(BATCHES[0]), first)


def test_episodic_tent_keeps_count_of_the_stream() -> None:
    adapter = acclimate.Tent(TinyClassifier(), episodic=True, updates=2)
    reports: list[acclimate.StepReport] = []
    adapter.observe(reports.append)
    for batch in BATCHES[:3]:
        adapter(batch)
    assert [(r.batch, r.update) for r in reports] == [(b, u) for b in range(3) for u in range(2)]


def test_episodic_tent_forgets_with_every_round_of_the_window() -> None:
    """Whatever came before, the weights after a round are those after the round alone."""
    options = {"lr": 0.1, "batch_size": 3}
    adapter = acclimate.Tent(TinyClassifier(), episodic=True, window=3, **options)
    reports: list[acclimate.StepReport] = []
    adapter.observe(reports.append)
    for images in BATCHES[0][:6].split(3):
        logits = adapter(images)
        alone = acclimate.Tent(TinyClassifier(), **options)
        assert torch.equal(logits[2], alone(images)[2])
        for name, weight in alone.trained.items():
            assert torch.equal(adapter.trained[name], weight), name
        assert torch.equal(adapter.window_images, images)
    assert [report.batch for report in reports] == [0, 1]


OPTIMIZERS: list[tuple[dict[str, Any], Any, dict[str, Any]]] = [
    ({"weight_decay": 0.1}, torch.optim.Adam, {"weight_decay": 0.1}),
    ({"optimizer_momentum": 0.5}, torch.optim.Adam, {"betas": (0.5, 0.999)}),
    (
        {"optimizer": "sgd", "weight_decay": 0.1},
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    ({"optimizer": "sgd", "nesterov": False}, torch.optim.SGD, {"momentum": 0.9}),
    (
        {"optimizer": "sgd", "optimizer_momentum": 0.5},
        torch.optim.SGD,
        {"momentum": 0.5, "nesterov": True},
    ),
    ({"optimizer": "sgd", "optimizer_momentum": 0.0}, torch.optim.SGD, {}),
]


@pytest.mark.parametrize(("options", "optimizer_class", "theirs"), OPTIMIZERS)
def test_the_optimizers_options_reach_it(
    options: dict[str, Any], optimizer_class: Any, theirs: dict[str, Any]
) -> None:
    """TENT's steps on PyTorch's optimizer; Adam's betas show from the second step on."""
    adapter = acclimate.Tent(TinyClassifier(), lr=0.05, **options)
    model = with_batch_statistics()
    parameters = [*model.norm1.parameters(), *model.norm2.parameters()]
    optimizer = optimizer_class(parameters, lr=0.05, **theirs)
    for batch in BATCHES[:3]:
        adapter(batch)
        optimizer.zero_grad()
        logits = model(batch)
        ce(logits, logits).backward()
        optimizer.step()
        for ours, plain in zip(adapter.trained.values(), parameters, strict=True):
            torch.testing.assert_close(ours.detach(), plain.detach(), rtol=1e-4, atol=1e-6)


def test_variants_of_bn1_exclude_each_other() -> None:
    with pytest.raises(acclimate.OptionError, match="two variants"):
        acclimate.BN1Config(alpha=0.1, momentum=0.1)


def test_adapting_helps_under_a_shift() -> None:
    """On classes told by brightness, darkening all images hurts the source and not RMT."""
    images, labels = tiny_source(400, side=8)
    model = TinyClassifier().train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    model.eval()
    test, truth = tiny_source(200, seed=1)
    dark = 0.4 * test
    error = {
        name: (adapter(dark).argmax(1) != truth).float().mean().item()
        for name, adapter in {
            "source": acclimate.Source(model),
            "rmt": acclimate.RMT(model, warmup_samples=400).prepare((images, labels)),
        }.items()
    }
    assert (model(test).argmax(1) != truth).float().mean() < 0.05
    assert error["source"] > 0.4
    assert error["rmt"] < error["source"] / 2


@pytest.mark.parametrize("window", [8, 16, 32])
@pytest.mark.parametrize(
    "name", ["tent", "mean-teacher", "cotta", "adacontrast", "gtta-mix", "rmt"]
)
def test_single_images_for_every_method_that_learns(name: str, window: int) -> None:
    """One update a window of images, at a learning rate scaled by its size (section 4.3)."""
    method = acclimate.get_method(name)
    options = {"warmup_samples": 0} if name == "rmt" else {}
    for preset in method.presets:
        config = method.preset(preset, window=window, **options)
        adapter = method(TinyClassifier(), config)
        rate = adapter.optimizer.param_groups[0]["lr"]
        assert rate == pytest.approx(config.lr * window / config.batch_size)
    adapter = method(TinyClassifier(), window=window, **options).prepare(tiny_source(64))
    reports: list[acclimate.StepReport] = []
    adapter.observe(reports.append)
    (images,) = tiny_batches(1, size=2 * window + 1)
    logits = torch.cat([adapter(image[None]) for image in images])
    assert logits.shape == (2 * window + 1, 5)
    assert logits.isfinite().all()
    assert {report.batch for report in reports} == {0, 1}
    assert len(reports) == 2 * adapter.config.updates
