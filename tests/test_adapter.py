"""The loop, its options and random sequences of everything one can do with an adapter."""

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule
from torch import Tensor, nn

import acclimate
from acclimate.testing import TinyClassifier, tiny_batches, tiny_source
from acclimate.testing.contract import same_state

BATCHES = [*tiny_batches(3), *tiny_batches(1, size=3, seed=1), *tiny_batches(1, size=1, seed=2)]
SHORT: dict[str, Any] = {"batch_size": 8, "warmup_samples": 16}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("source", {}),
    ("bn1", {"momentum": 0.1}),
    ("tent", {}),
    ("tent", {"episodic": True}),
    ("tent", {"window": 2, "precision": "bf16"}),
    ("mean-teacher", {"optimizer": "sgd"}),
    ("rmt", SHORT),
    ("rmt", {**SHORT, "lambda_ce": 1.0, "updates": 2}),
    ("rmt", {**SHORT, "window": 3, "precision": "bf16", "seed": 5}),
]


class AnyOrder(RuleBasedStateMachine):
    """Whatever was done before, the state is that of a fresh adapter given the same batches."""

    snapshots: Bundle[Any] = Bundle("snapshots")
    files: Bundle[Any] = Bundle("files")

    @initialize(variant=st.sampled_from(VARIANTS))
    def build(self, variant: tuple[str, dict[str, Any]]) -> None:
        self.name, self.options = variant
        self.adapter = self.fresh()
        self.history: tuple[int, ...] = ()
        self.folder = tempfile.TemporaryDirectory()
        self.saved = 0

    def fresh(self) -> acclimate.Adapter[Any]:
        adapter = acclimate.get_method(self.name)(TinyClassifier(), **self.options)
        return adapter.prepare(tiny_source())

    @rule(index=st.sampled_from(range(len(BATCHES))))
    def adapt(self, index: int) -> None:
        self.adapter(BATCHES[index])
        self.history = (*self.history, index)

    @rule(index=st.sampled_from(range(len(BATCHES))))
    def predict(self, index: int) -> None:
        self.adapter.predict(BATCHES[index])

    @rule()
    def fail(self) -> None:
        with pytest.raises(acclimate.InputError):
            self.adapter(BATCHES[0] * 300)

    @rule()
    def reset(self) -> None:
        self.adapter.reset()
        self.history = ()

    @rule(target=snapshots)
    def snapshot(self) -> Any:
        return self.adapter.snapshot(), self.history

    @rule(snapshot=snapshots)
    def restore(self, snapshot: Any) -> None:
        self.adapter.restore(snapshot[0])
        self.history = snapshot[1]

    @rule(target=files)
    def save(self) -> Any:
        self.saved += 1
        path = Path(self.folder.name) / f"{self.saved}.safetensors"
        self.adapter.save(path)
        return path, self.history

    @rule(file=files, anew=st.booleans())
    def load(self, file: Any, anew: bool) -> None:
        if anew:
            self.adapter = acclimate.get_method(self.name)(TinyClassifier(), **self.options)
        self.adapter.load(file[0], source=tiny_source())
        self.history = file[1]

    def teardown(self) -> None:
        if hasattr(self, "adapter"):
            expected = self.fresh()
            for index in self.history:
                expected(BATCHES[index])
            assert same_state(expected.snapshot(), self.adapter.snapshot())
            for batch in BATCHES[:2]:
                assert torch.equal(expected(batch), self.adapter(batch))
            self.folder.cleanup()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = hypothesis.settings(
    max_examples=50, stateful_step_count=12, deadline=None, derandomize=True
)


@pytest.mark.slow
class TestAnyOrderLonger(AnyOrder.TestCase):
    settings = hypothesis.settings(max_examples=400, stateful_step_count=30, deadline=None)


def test_several_updates_predict_by_the_last_forward_pass() -> None:
    batch = BATCHES[0]
    one = acclimate.Tent(TinyClassifier())
    rows = [one(batch) for _ in range(3)]
    three = acclimate.Tent(TinyClassifier(), updates=3)
    assert torch.equal(three(batch), rows[-1])


def test_reports_say_what_a_step_did() -> None:
    adapter = acclimate.Tent(TinyClassifier(), updates=2)
    reports: list[acclimate.StepReport] = []
    adapter.observe(reports.append)
    before = [p.detach().clone() for p in adapter.trained.values()]
    probabilities = adapter.predict(BATCHES[0]).softmax(1)
    expected = -(probabilities * probabilities.log()).sum(1).mean().item()
    adapter(BATCHES[0])
    adapter(BATCHES[1])
    assert [(r.batch, r.update) for r in reports] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert reports[0].loss == pytest.approx(expected, rel=1e-5)
    assert reports[0].entropy == pytest.approx(expected, rel=1e-5)
    single = acclimate.Tent(TinyClassifier())
    single.observe(reports.append)
    single(BATCHES[0])
    moved = [p.detach() - b for p, b in zip(single.trained.values(), before, strict=True)]
    norm = torch.cat([change.flatten() for change in moved]).norm().item()
    assert reports[-1].update_norm == pytest.approx(norm, rel=1e-5)


def test_an_observer_that_raises_leaves_the_state_whole() -> None:
    plain, watched = acclimate.Tent(TinyClassifier()), acclimate.Tent(TinyClassifier())

    def complain(step: acclimate.StepReport) -> None:
        raise RuntimeError("mine")

    handle = watched.observe(complain)
    with pytest.raises(RuntimeError, match="mine"):
        watched(BATCHES[0])
    handle.remove()
    plain(BATCHES[0])
    assert same_state(plain.snapshot(), watched.snapshot())


def test_window_predicts_beside_the_last_images_and_updates_once_a_round() -> None:
    """The sliding window of section 4.3, written out for BN-1 and TENT."""
    images = list(BATCHES[0].split(1))
    model = TinyClassifier().train()
    for norm in (model.norm1, model.norm2):
        norm.track_running_stats = False
    parameters = [p for norm in (model.norm1, model.norm2) for p in norm.parameters()]
    model.requires_grad_(False)
    for parameter in parameters:
        parameter.requires_grad_(True)
    optimizer = torch.optim.Adam(parameters, lr=1e-3 * 3 / 200)
    slots: list[Tensor] = []
    expected = []
    for index, image in enumerate(images):
        slot = index % 3
        slots[slot : slot + 1] = [image]
        logits = model(torch.cat(slots))
        expected.append(logits[slot].detach())
        if slot == 2:
            optimizer.zero_grad()
            (-(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()).backward()
            optimizer.step()
    adapter = acclimate.Tent(TinyClassifier(), window=3)
    assert adapter.learning_rate == pytest.approx(1e-3 * 3 / 200)
    reports: list[acclimate.StepReport] = []
    adapter.observe(reports.append)
    ours = torch.cat([adapter(image) for image in images])
    torch.testing.assert_close(ours, torch.stack(expected))
    assert len(reports) == 2


def test_window_without_batch_norm_forwards_the_new_image_alone() -> None:
    adapter = acclimate.MeanTeacher(TinyClassifier("group"), window=4)
    model = TinyClassifier("group")
    for image in BATCHES[0].split(1)[:3]:
        torch.testing.assert_close(adapter(image), model(image).detach())


def test_a_window_has_one_size() -> None:
    adapter = acclimate.Tent(TinyClassifier(), window=3)
    adapter(BATCHES[0])
    before = adapter.snapshot()
    with pytest.raises(acclimate.InputError, match="window holds images"):
        adapter(tiny_batches(1, side=16)[0])
    assert same_state(before, adapter.snapshot())


def test_other_image_sizes_are_fine_where_the_model_takes_them() -> None:
    adapter = acclimate.RMT(TinyClassifier(), **SHORT).prepare(tiny_source())
    for side in (8, 12, 8, 9):
        assert adapter(tiny_batches(1, side=side)[0]).isfinite().all()


def test_a_model_that_fails_in_the_middle_leaves_the_state_as_it_was() -> None:
    class Moody(TinyClassifier):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            Moody.calls += 1
            if Moody.calls == 7:
                raise ValueError("no")
            return super().forward(x)

    options = {**SHORT, "warmup_samples": 0, "lambda_ce": 1.0}
    adapter = acclimate.RMT(Moody(), **options).prepare(tiny_source(8))
    before = adapter.snapshot()
    Moody.calls = 4  # replay, teacher, student on the plain view fails
    with pytest.raises(ValueError, match="no"):
        adapter(BATCHES[0])
    assert same_state(before, adapter.snapshot())
    plain = acclimate.RMT(TinyClassifier(), **options).prepare(tiny_source(8))
    assert torch.equal(adapter(BATCHES[0]), plain(BATCHES[0]))


@pytest.mark.parametrize(("updates", "fails_at"), [(1, 3), (2, 3), (2, 6)])
def test_a_failure_after_augmenting_and_replaying_leaves_no_trace(
    updates: int, fails_at: int
) -> None:
    """Replay was accumulated, the view was drawn, and the student fails on it."""

    def make() -> tuple[acclimate.RMT, list[acclimate.StepReport]]:
        options = {**SHORT, "lr": 0.02, "lambda_ce": 1.0, "updates": updates}
        adapter = acclimate.RMT(TinyClassifier(), **options).prepare(tiny_source())
        adapter(BATCHES[0])
        reports: list[acclimate.StepReport] = []
        adapter.observe(reports.append)
        return adapter, reports

    (adapter, reports), (plain, expected) = make(), make()
    before = adapter.snapshot()
    calls = itertools.count(1)

    def fail(module: nn.Module, args: Any) -> None:
        if next(calls) == fails_at:  # of replay, plain view, augmented view; and once more
            raise ValueError("no")

    hook = adapter.student.register_forward_pre_hook(fail)
    with pytest.raises(ValueError, match="no"):
        adapter(BATCHES[1])
    hook.remove()
    assert torch.equal(adapter.generator.get_state(), before.tensors["generator"])
    assert same_state(before, adapter.snapshot())
    assert all(parameter.grad is None for parameter in adapter.parameters())
    assert reports == []
    for batch in BATCHES[:3]:
        assert torch.equal(adapter(batch), plain(batch))
    assert reports == expected
    assert same_state(adapter.snapshot(), plain.snapshot())


@pytest.mark.parametrize(("images", "fails_at"), [(2, 2), (6, 5)])
def test_a_failure_in_the_window_leaves_no_trace(images: int, fails_at: int) -> None:
    """While it fills, and after it went round once and was adapted to."""
    adapter, plain = (acclimate.Tent(TinyClassifier(), window=4, lr=0.1) for _ in range(2))
    for one in (adapter, plain):
        one(BATCHES[1][:1])
    before = adapter.snapshot()
    calls = itertools.count(1)

    def fail(module: nn.Module, args: Any) -> None:
        if next(calls) == fails_at:
            raise ValueError("no")

    hook = adapter.student.register_forward_pre_hook(fail)
    with pytest.raises(ValueError, match="no"):
        adapter(BATCHES[0][:images])
    hook.remove()
    assert same_state(before, adapter.snapshot())
    assert torch.equal(adapter(BATCHES[0]), plain(BATCHES[0]))


@pytest.mark.parametrize(
    ("method", "options", "forwards"),
    [
        (acclimate.CoTTA, {"threshold": 1.0, "augmentations": 2}, 4),
        (acclimate.GTTA, {"batch_size": 8}, 3),
    ],
)
def test_methods_change_nothing_before_their_step(
    method: type[acclimate.Adapter[Any]], options: dict[str, Any], forwards: int
) -> None:
    """The student's first forward pass with a gradient fails, and nothing has happened."""
    adapter = method(TinyClassifier(), **options).prepare(tiny_source())
    adapter(BATCHES[0])
    before = adapter.snapshot()
    ran: list[bool] = []

    def fail(module: nn.Module, args: Any) -> None:
        ran.append(torch.is_grad_enabled())
        if ran[-1]:
            raise ValueError("no")

    nets = [net for net in (adapter.student, adapter.teacher, adapter.anchor) if net is not None]
    hooks = [net.register_forward_pre_hook(fail) for net in nets]
    with pytest.raises(ValueError, match="no"):
        adapter(BATCHES[1])
    assert len(ran) == forwards
    assert same_state(before, adapter.snapshot())
    for hook in hooks:
        hook.remove()
    plain = method(TinyClassifier(), **options).prepare(tiny_source())
    plain(BATCHES[0])
    assert torch.equal(adapter(BATCHES[1]), plain(BATCHES[1]))


def test_an_interrupted_preparation_leaves_no_trace() -> None:
    def interrupt(progress: acclimate.Progress) -> None:
        if progress.stage == "warm-up" and progress.done == 2:
            raise KeyboardInterrupt

    options = {**SHORT, "warmup_samples": 32}
    adapter = acclimate.RMT(TinyClassifier(), **options)
    with pytest.raises(KeyboardInterrupt):
        adapter.prepare(tiny_source(), progress=interrupt)
    with pytest.raises(acclimate.NotPreparedError):
        adapter(BATCHES[0])
    adapter.prepare(tiny_source())
    plain = acclimate.RMT(TinyClassifier(), **options).prepare(tiny_source())
    assert same_state(adapter.snapshot(), plain.snapshot())


def test_progress_counts_up() -> None:
    seen: list[acclimate.Progress] = []
    acclimate.RMT(TinyClassifier(), **SHORT).prepare(tiny_source(), progress=seen.append)
    assert [(p.stage, p.done, p.total) for p in seen] == [
        *(("prototypes", done, 40) for done in (8, 16, 24, 32, 40)),
        *(("warm-up", done, 2) for done in (1, 2)),
    ]


def test_config_and_options_are_the_same() -> None:
    config = acclimate.TentConfig(lr=1e-2, updates=2)
    for adapter in (
        acclimate.Tent(TinyClassifier(), config),
        acclimate.Tent(TinyClassifier(), lr=1e-2, updates=2),
        acclimate.Tent(TinyClassifier(), acclimate.TentConfig(updates=2), lr=1e-2),
    ):
        assert adapter.config == config
    with pytest.raises(acclimate.OptionError, match="TentConfig"):
        acclimate.Tent(TinyClassifier(), acclimate.RMTConfig())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lambda_cl": -0.1}, "'lambda_cl' option of RMTConfig must be a finite float >= 0"),
        ({"lambda_ce": -1}, "'lambda_ce'"),
        ({"temperature": 0}, "must be a finite float > 0. Got 0.0 instead"),
        ({"momentum": 1.5}, ">= 0 and <= 1. Got 1.5"),
        ({"momentum": -0.1}, "'momentum'"),
        ({"lr": float("nan")}, "finite"),
        ({"lr": "fast"}, "Got 'fast' instead"),
        ({"updates": 0}, "an int >= 1"),
        ({"updates": True}, "an int >= 1"),
        ({"updates": 1.0}, "an int >= 1"),
        ({"optimizer": "lion"}, "one of 'adam', 'sgd'"),
        ({"precision": "fp16"}, "one of 'fp32', 'bf16' or None"),
        ({"source_share": 1.1}, "'source_share'"),
        ({"temprature": 0.1}, "no option 'temprature'. Did you mean 'temperature'"),
        ({"xyz": 1}, "no option 'xyz'. Its options are: augmented"),
        ({"projector": 1}, "True or False"),
    ],
)
def test_wrong_options_are_explained(options: dict[str, Any], words: str) -> None:
    with pytest.raises(acclimate.OptionError, match=words.replace("(", r"\(")):
        acclimate.RMT(TinyClassifier(), **options)


def test_presets_are_the_papers() -> None:
    imagenet = acclimate.RMT.preset("imagenet", seed=3)
    assert (imagenet.optimizer, imagenet.lr, imagenet.batch_size) == ("sgd", 0.01, 64)
    assert imagenet.seed == 3
    assert acclimate.RMT.preset("cifar") == acclimate.RMTConfig()
    assert acclimate.RMT.preset("domainnet").projector is False
    assert acclimate.Tent.preset("imagenet").lr == 2.5e-4
    with pytest.raises(acclimate.OptionError, match="presets are: cifar, imagenet"):
        acclimate.RMT.preset("mnist")


def row(optimizer: str, lr: float, batch_size: int, **others: Any) -> dict[str, Any]:
    """A cell of the table; momentum is 0.9 throughout, and there is no decay unless told."""
    shared = {"optimizer_momentum": 0.9, "weight_decay": 0.0, "nesterov": True, "updates": 1}
    named = {"optimizer": optimizer, "lr": lr, "batch_size": batch_size}
    return {**shared, **named, **others}


TEACHER = {"momentum": 0.999}
MEAN_TEACHER = {**TEACHER, "loss": "sce", "warmup_samples": 0}
COTTA = {**TEACHER, "augmentations": 32}
NATURAL = {**COTTA, "restore": 0.001, "threshold": 0.1, "loss": "sce"}
CONTRAST = {**TEACHER, "weight_decay": 1e-4, "temperature": 0.07, "crop": False}
CONTRAST |= {"capacity": 16_384, "neighbours": 10, "refine_after": 1024}
FAST = {"all_parameters": True, "fast_layers": 3, "fast_factor": 10.0}
MIX = {"updates": 4, "test_share": 1 / 3, "confidence_momentum": 0.9}
RMT = {**TEACHER, "augmented": True, "ensemble": True, "lambda_cl": 1.0, "lambda_ce": 0.0}
RMT |= {"temperature": 0.1, "projector": True, "source_share": 1.0}
RMT |= {"warmup_samples": 50_000, "prototype_samples": 100_000}
TABLE: dict[str, dict[str, dict[str, Any]]] = {
    "tent": {
        "cifar": row("adam", 1e-3, 200, episodic=False),
        "imagenet": row("sgd", 2.5e-4, 64, episodic=False),
        "domainnet": row("sgd", 2.5e-4, 128, episodic=False),
    },
    "mean-teacher": {
        "cifar": row("adam", 1e-3, 200, **MEAN_TEACHER),
        "imagenet": row("sgd", 0.01, 64, **MEAN_TEACHER),
        "domainnet": row("sgd", 0.01, 128, **MEAN_TEACHER),
    },
    "cotta": {
        "cifar": row("adam", 1e-3, 200, **COTTA, restore=0.01, threshold=0.92, loss="ce"),
        "cifar100": row("adam", 1e-3, 200, **COTTA, restore=0.01, threshold=0.72, loss="ce"),
        "imagenet": row("sgd", 0.01, 64, **NATURAL),
        "domainnet": row("sgd", 0.01, 128, **NATURAL),
    },
    "adacontrast": {
        "cifar": row("sgd", 2e-4, 200, **CONTRAST),
        "imagenet": row("sgd", 2e-4, 64, **CONTRAST),
        "imagenet-r": row("sgd", 2e-4, 64, **{**CONTRAST, "crop": True}),
        "domainnet": row("sgd", 2e-4, 128, **{**CONTRAST, "crop": True}, **FAST),
    },
    "gtta-mix": {
        "cifar": row("adam", 1e-5, 200, **MIX),
        "imagenet": row("adam", 1e-5, 64, **MIX),
        "domainnet": row("adam", 1e-5, 128, **MIX),
    },
    "rmt": {
        "cifar": row("adam", 1e-3, 200, **RMT),
        "imagenet": row("sgd", 0.01, 64, **RMT),
        "domainnet": row("sgd", 0.01, 128, **{**RMT, "projector": False}),
    },
}


@pytest.mark.parametrize("name", TABLE)
def test_presets_are_the_official_tables(name: str) -> None:
    """All numbers of the official implementation, and nothing else differs from the defaults."""
    method = acclimate.get_method(name)
    assert set(method.presets) == set(TABLE[name])
    for preset, numbers in TABLE[name].items():
        config = method.preset(preset)
        assert {option: getattr(config, option) for option in numbers} == numbers
        assert config == method.Config(**numbers)


@pytest.mark.parametrize("name", ["source", "bn1"])
def test_methods_that_train_nothing_have_one_preset_for_all(name: str) -> None:
    method = acclimate.get_method(name)
    assert {"cifar", "imagenet"} <= set(method.presets)
    assert all(method.preset(preset) == method.Config() for preset in method.presets)


def test_moving_to_another_type_takes_the_optimizer_along() -> None:
    adapter = acclimate.RMT(TinyClassifier(), **SHORT).prepare(tiny_source())
    adapter(BATCHES[0])
    adapter.double()
    logits = adapter(BATCHES[1])
    assert logits.dtype == torch.float64
    states = adapter.optimizer.state.values()
    assert all(state["exp_avg"].dtype == torch.float64 for state in states)


@pytest.mark.parametrize("name", ["cotta", "adacontrast", "gtta-mix"])
def test_whatever_a_method_holds_moves_along(name: str) -> None:
    options = {"restore": 1.0} if name == "cotta" else {"batch_size": 8}
    adapter = acclimate.get_method(name)(TinyClassifier(), **options).prepare(tiny_source())
    adapter(BATCHES[0])
    adapter.double()
    assert adapter(BATCHES[1]).dtype == torch.float64
    if name == "cotta":
        assert torch.equal(adapter.student.conv1.weight, TinyClassifier().conv1.weight.double())


def test_images_on_another_device_are_explained() -> None:
    with pytest.raises(acclimate.InputError, match=r"images.to\(device\)"):
        acclimate.Source(TinyClassifier())(BATCHES[0].to("meta"))


def test_a_double_model_takes_float_images() -> None:
    assert acclimate.Tent(TinyClassifier().double())(BATCHES[0]).dtype == torch.float64


def test_autocast_around_the_whole_stream_does_not_serve_stale_weights() -> None:
    chosen = acclimate.Tent(TinyClassifier(), precision="bf16", lr=0.1)
    around = acclimate.Tent(TinyClassifier(), lr=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        inside = [around(batch) for batch in BATCHES]
    assert all(torch.equal(chosen(b), logits) for b, logits in zip(BATCHES, inside, strict=True))


def test_autocast_around_the_whole_stream_trains_on_the_weights_of_now() -> None:
    """Autocast caches the weights of convolutions, which TENT does not train."""
    options = {"lr": 0.1, "momentum": 0.5}
    chosen = acclimate.MeanTeacher(TinyClassifier(), precision="bf16", **options)
    around = acclimate.MeanTeacher(TinyClassifier(), **options)
    with torch.autocast("cpu", torch.bfloat16):
        inside = [around(batch) for batch in BATCHES]
    assert all(torch.equal(chosen(b), logits) for b, logits in zip(BATCHES, inside, strict=True))
    # Within one call too: two updates are what two calls do.
    twice = acclimate.MeanTeacher(TinyClassifier(), precision="bf16", updates=2, **options)
    once = acclimate.MeanTeacher(TinyClassifier(), precision="bf16", **options)
    for batch in BATCHES[:2]:
        once(batch)
        assert torch.equal(twice(batch), once(batch))


def test_predictions_follow_the_type_of_the_callers_autocast() -> None:
    model, (x, *_) = TinyClassifier(), BATCHES
    adapter = acclimate.Source(model, channels_last=False)
    seen: list[Tensor] = []
    for dtype in (torch.float16, torch.bfloat16, None):
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            expected = model(x).detach().float()
            assert torch.equal(adapter.predict(x), expected)
            assert torch.equal(adapter(x), expected)
        assert not any(torch.equal(expected, other) for other in seen)
        seen.append(expected)


def test_full_precision_holds_inside_the_callers_autocast() -> None:
    plain = acclimate.MeanTeacher(TinyClassifier(), lr=0.1)
    chosen = acclimate.MeanTeacher(TinyClassifier(), lr=0.1, precision="fp32")
    for batch in BATCHES:
        before, logits = plain.predict(batch), plain(batch)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(chosen.predict(batch), before)
            assert torch.equal(chosen(batch), logits)
    assert same_state(plain.snapshot(), chosen.snapshot())


def test_channels_last_gives_the_same_predictions() -> None:
    one = acclimate.RMT(TinyClassifier(), **SHORT, optimizer="sgd").prepare(tiny_source())
    other = acclimate.RMT(TinyClassifier(), **SHORT, optimizer="sgd", channels_last=False)
    other.prepare(tiny_source())
    for batch in BATCHES:
        torch.testing.assert_close(one(batch), other(batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["batch", "group", "layer"])
def test_every_method_takes_every_norm(kind: str) -> None:
    for name in acclimate.method_names():
        options = SHORT if name == "rmt" else {}
        adapter = acclimate.get_method(name)(TinyClassifier(kind), **options)
        adapter.prepare(tiny_source())
        for batch in BATCHES:
            assert adapter(batch).isfinite().all()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tent", {}),
        ("mean-teacher", {"loss": "ce"}),
        ("mean-teacher", {"loss": "sce"}),
        ("rmt", {**SHORT, "ensemble": True}),
        ("rmt", {**SHORT, "ensemble": False, "lambda_ce": 1.0}),
        ("cotta", {"threshold": 0.0}),
    ],
)
def test_predict_is_what_the_next_batch_would_get(name: str, options: dict[str, Any]) -> None:
    """These methods predict before they learn; student and teacher have parted."""
    shared = {"optimizer": "sgd", "lr": 0.1, **({} if name == "tent" else {"momentum": 0.7})}
    adapter = acclimate.get_method(name)(TinyClassifier(), **shared, **options)
    adapter.prepare(tiny_source())
    with torch.no_grad():
        adapter.student.fc.bias += torch.arange(5) / 5  # else cross-entropy would never part them
    first = adapter.predict(BATCHES[0])
    for batch in BATCHES:
        expected = adapter.predict(batch)
        torch.testing.assert_close(adapter(batch), expected)
    assert not torch.allclose(adapter.predict(BATCHES[0]), first, atol=1e-3)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tent", {"window": 3}),
        ("adacontrast", {"batch_size": 8}),
        ("rmt", {**SHORT, "optimizer": "sgd", "lambda_ce": 1.0}),
    ],
)
def test_state_comes_back_in_inference_mode(
    name: str, options: dict[str, Any], inside: bool, tmp_path: Path
) -> None:
    """What is written there must be no inference tensors, which adapting could not change."""

    def make() -> acclimate.Adapter[Any]:
        return acclimate.get_method(name)(TinyClassifier(), **options)

    plain, adapter = (make().prepare(tiny_source()) for _ in range(2))
    first = [plain(batch) for batch in BATCHES[:2]]
    later = [plain(batch) for batch in BATCHES[:2]]
    with torch.inference_mode():
        start = adapter.snapshot()
    assert not any(tensor.is_inference() for tensor in start.tensors.values())
    for batch in BATCHES[:2]:
        adapter(batch)
    adapter.save(tmp_path / "state")
    middle = adapter.snapshot()
    returns: list[tuple[Callable[[], Any], list[Tensor]]] = [
        (adapter.reset, first),
        (lambda: adapter.restore(middle), later),
        (lambda: adapter.restore(start), first),
        (lambda: adapter.load(tmp_path / "state"), later),
        (lambda: make().load(tmp_path / "state", source=tiny_source()), later),
    ]
    for return_to, expected in returns:
        with torch.inference_mode():
            returned = return_to()
        tensors = [*returned.parameters(), *returned.buffers()]
        if returned.optimizer is not None:
            states = returned.optimizer.state.values()
            tensors += [value for state in states for value in state.values()]
        assert not any(tensor.is_inference() for tensor in tensors)
        with torch.inference_mode(inside):
            logits = [returned(batch) for batch in BATCHES[:2]]
        assert all(torch.equal(a, b) for a, b in zip(logits, expected, strict=True))


@pytest.mark.parametrize("pixel", [1.01, -0.01])
def test_a_single_pixel_outside_is_refused(pixel: float) -> None:
    adapter = acclimate.Tent(TinyClassifier())
    x = BATCHES[0].clone()
    x[0, 0, 0, :2] = torch.tensor([0.0, 1.0])
    adapter(x)
    x[-1, -1, -1, -1] = pixel
    for call in (adapter, adapter.predict):
        with pytest.raises(acclimate.InputError, match=r"must lie in \[0, 1\]"):
            call(x)


@pytest.mark.parametrize("ensemble", [True, False])
def test_what_is_exported_is_in_eval_mode_with_batch_statistics(ensemble: bool) -> None:
    options = {**SHORT, "lr": 0.05, "momentum": 0.7, "ensemble": ensemble}
    adapter = acclimate.RMT(TinyClassifier(), **options).prepare(tiny_source())
    for batch in BATCHES[:2]:
        adapter(batch)
    exported = adapter.export()
    assert not any(module.training for module in exported.modules())
    x = BATCHES[2]
    expected = torch.zeros(8, 5)
    for net in (adapter.student, adapter.teacher) if ensemble else (adapter.teacher,):
        model = TinyClassifier()
        model.load_state_dict(net.state_dict())
        for norm in (model.norm1, model.norm2):
            norm.train()
        expected += model(x).detach()
    torch.testing.assert_close(exported(x).detach(), expected)
    torch.testing.assert_close(adapter.predict(x), expected)
    alone = torch.cat([exported(image).detach() for image in x.split(1)])
    assert not torch.allclose(alone, expected, atol=1e-2)


def test_adapters_nest_like_any_module() -> None:
    holder = nn.ModuleDict({"camera": acclimate.Tent(TinyClassifier())}).eval()
    assert holder["camera"](BATCHES[0]).shape == (8, 5)
