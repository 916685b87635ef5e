"""Heads, features, batch statistics and copies on the kinds of networks that people have."""

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import acclimate
from acclimate import network
from acclimate.testing import TinyClassifier, tiny_batches, tiny_source

SHORT: dict[str, Any] = {"batch_size": 8, "warmup_samples": 16}


def body(channels: int = 6) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, stride=2, bias=False), nn.BatchNorm2d(channels), nn.ReLU()
    )


def pooled(*head: nn.Module) -> nn.Sequential:
    return nn.Sequential(body(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), *head)


class Tokens(nn.Module):
    """A small transformer with a class token, a position embedding and LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, stride=4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 8))
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, 8))
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).mT
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(self.norm(self.block(x))[:, 0])


class ConvHead(nn.Module):
    """Logits from a 1×1 convolution, pooled afterwards, as in fully convolutional networks."""

    def __init__(self) -> None:
        super().__init__()
        self.body = body()
        self.classifier = nn.Conv2d(6, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.body(x)).mean((2, 3))


class TwoHeads(nn.Module):
    """Two linear layers whose outputs are averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.body = pooled()
        self.first = nn.Linear(6, 5)
        self.second = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return (self.first(x) + self.second(x)) / 2


class Scaled(nn.Module):
    """Logits divided by a temperature, after a hidden layer of as many units as classes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = pooled(nn.Linear(6, 5), nn.ReLU())
        self.out = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x)) / 0.5


class Doubled(nn.Module):
    """A hidden layer that ranks the classes as the logits do, and a layer that doubles it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = pooled(nn.Linear(6, 5))
        self.twice = nn.Linear(5, 5)
        nn.init.zeros_(self.twice.bias)
        self.twice.weight = nn.Parameter(2 * torch.eye(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.twice(self.body(x))


class TokenHead(nn.Module):
    """Logits of every token (N, T, K), averaged afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.body = body()
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).flatten(2).mT).mean(1)


class Viewing(nn.Module):
    """Flattens its feature map with view(), which needs contiguous memory."""

    def __init__(self) -> None:
        super().__init__()
        self.body = body(4)
        self.fc = nn.Linear(36, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return self.fc(x.view(x.size(0), -1))


def weight_normed(old: bool) -> nn.Module:
    if not old:
        return pooled(nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)))
    with pytest.warns(FutureWarning, match="weight_norm"):
        return pooled(nn.utils.weight_norm(nn.Linear(6, 5)))


NETWORKS: dict[str, tuple[Any, str]] = {
    "batch norm": (TinyClassifier, "fc"),
    "group norm": (lambda: TinyClassifier("group"), "fc"),
    "layer norm": (Tokens, "head"),
    "weight norm": (lambda: weight_normed(old=False), "3"),
    "old weight norm": (lambda: weight_normed(old=True), "3"),
    "convolutional head": (ConvHead, "classifier"),
    "head on tokens": (TokenHead, "head"),
    "scaled logits": (Scaled, "out"),
    "doubled": (Doubled, "twice"),
    "head in containers": (
        lambda: nn.Sequential(
            OrderedDict(net=nn.ModuleDict({"a": pooled()})["a"], top=nn.Sequential(nn.Linear(6, 5)))
        ),
        "top.0",
    ),
    "normalized": (lambda: acclimate.Normalized(TinyClassifier()), "model.fc"),
    "view": (Viewing, "fc"),
}


@pytest.fixture(params=NETWORKS)
def model_and_head(request: pytest.FixtureRequest) -> tuple[nn.Module, str]:
    make, head = NETWORKS[request.param]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().eval(), head


def test_finds_head_and_features(model_and_head: tuple[nn.Module, str]) -> None:
    model, head = model_and_head
    (x,) = tiny_batches(1)
    with torch.no_grad():
        assert network.find_head(model, x) == head
        features, logits = network.features_and_logits(model, head, x)
        assert torch.equal(logits, model(x))
        layer = model.get_submodule(head)
        flat = layer.weight.flatten(1)
        made = features @ flat.T + layer.bias
        scale = 2.0 if isinstance(model, Scaled) else 1.0
    torch.testing.assert_close(made * scale, logits)
    assert not any(module._forward_pre_hooks for module in [layer] if head != "3")


@pytest.mark.parametrize("options", [{}, {"lambda_ce": 1.0, "updates": 2}])
def test_rmt_adapts_it(model_and_head: tuple[nn.Module, str], options: dict[str, Any]) -> None:
    model, head = model_and_head
    before = [p.detach().clone() for p in model.parameters()]
    adapter = acclimate.RMT(model, **SHORT, **options).prepare(tiny_source())
    snapshot = adapter.snapshot()
    batches = tiny_batches(2)
    first = [adapter(batch) for batch in batches]
    assert adapter.head_ == head
    adapter.restore(snapshot)
    for batch, expected in zip(batches, first, strict=True):
        assert torch.equal(adapter(batch), expected)
    same = zip(before, model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in same)


def test_every_method_runs_after_the_model_was_used(
    model_and_head: tuple[nn.Module, str],
) -> None:
    """Old-style weight normalisation leaves tensors that cannot be copied naively."""
    model, _ = model_and_head
    model(tiny_batches(1)[0])
    for name in acclimate.method_names():
        if name == "tent" and not network.norm_parameters(model):
            continue
        options = SHORT if name == "rmt" else {}
        adapter = acclimate.get_method(name)(model, **options).prepare(tiny_source())
        assert adapter(tiny_batches(1)[0]).isfinite().all()


def test_features_of_tokens_are_their_mean() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TokenHead().eval()
    (x,) = tiny_batches(1)
    features, _ = network.features_and_logits(model, "head", x)
    torch.testing.assert_close(features, model.body(x).mean((2, 3)))


def test_two_heads_ask_which() -> None:
    (x,) = tiny_batches(1)
    with pytest.raises(acclimate.ModelError, match=r"first, second.*head='"):
        acclimate.RMT(TwoHeads(), **SHORT).prepare(tiny_source())
    adapter = acclimate.RMT(TwoHeads(), head="second", **SHORT).prepare(tiny_source())
    assert adapter(x).shape == (8, 5)


def test_a_head_that_does_not_exist_is_named() -> None:
    with pytest.raises(acclimate.ModelError, match=r"no module named 'head'.*fc"):
        acclimate.RMT(TinyClassifier(), head="head", **SHORT).prepare(tiny_source())


def test_no_head_to_be_found() -> None:
    class Cosine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = pooled()
            self.centres = nn.Parameter(torch.randn(5, 6))

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x) @ self.centres.T

    with pytest.raises(acclimate.ModelError, match=r"makes its logits.*head='...'.*body"):
        acclimate.RMT(Cosine(), **SHORT).prepare(tiny_source())
    assert acclimate.Tent(Cosine())(tiny_batches(1)[0]).shape == (8, 5)


def test_a_layer_of_the_right_size_that_does_not_make_the_logits_is_no_head() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = pooled()
            self.side = nn.Linear(6, 5)
            self.centres = nn.Parameter(torch.randn(5, 6))

        def forward(self, x: Tensor) -> Tensor:
            x = self.body(x)
            return x @ self.centres.T + 0.01 * self.side(x).sigmoid()

    with torch.random.fork_rng():
        torch.manual_seed(0)
        with pytest.raises(acclimate.ModelError, match="makes its logits"):
            network.find_head(Gated().eval(), tiny_batches(1)[0])


@pytest.mark.parametrize("name", ["bn1", "tent", "mean-teacher"])
def test_single_values_are_handled(name: str) -> None:
    """One image, and BatchNorm after all positions are gone: the source's statistics step in."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 8), nn.BatchNorm2d(4), nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 5)
    ).eval()
    for options in ({"alpha": 0.1}, {"momentum": 0.1}, {}) if name == "bn1" else ({},):
        adapter = acclimate.get_method(name)(model, **options)
        (one,) = tiny_batches(1, size=1)
        (two,) = tiny_batches(1, size=2)
        torch.testing.assert_close(adapter.predict(one), model(one).detach())
        torch.testing.assert_close(adapter(one), model(one).detach())
        assert not torch.allclose(adapter(two), model(two))


def test_batch_statistics_against_plain_arithmetic() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(192, 5)).eval()
    nn.init.uniform_(model[0].running_mean)
    nn.init.uniform_(model[0].running_var, 0.5, 2)
    (x,) = tiny_batches(1)
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
    unbiased = x.var((0, 2, 3), unbiased=True)
    source_mean, source_var = model[0].running_mean.clone(), model[0].running_var.clone()
    mixed = [0.7 * s + 0.3 * b for s, b in ((source_mean, mean), (source_var, unbiased))]

    def expected(m: Tensor, v: Tensor) -> Tensor:
        scaled = (x - m.view(3, 1, 1)) / (v.view(3, 1, 1) + 1e-5).sqrt()
        return model[2](scaled.flatten(1)).detach()

    torch.testing.assert_close(acclimate.BN1(model)(x), expected(mean, var))
    torch.testing.assert_close(acclimate.BN1(model, alpha=0.3)(x), expected(*mixed))
    moving = acclimate.BN1(model, momentum=0.3)
    torch.testing.assert_close(moving.predict(x), expected(source_mean, source_var))
    torch.testing.assert_close(moving(x), expected(*mixed))
    torch.testing.assert_close(moving.predict(x), expected(*mixed))
    assert torch.equal(model[0].running_mean, source_mean)


def test_exported_weights_load_into_the_callers_class() -> None:
    adapter = acclimate.Tent(TinyClassifier())
    adapter(tiny_batches(1)[0])
    exported = adapter.export()
    assert type(exported) is TinyClassifier
    result = TinyClassifier().load_state_dict(exported.state_dict(), strict=False)
    assert not result.unexpected_keys
    assert all("running" in key or "tracked" in key for key in result.missing_keys)
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in exported.modules())


def test_trained_parameters_are_weights_and_biases_only() -> None:
    named = network.weights_and_biases(Tokens())
    assert "cls_token" not in named
    assert "pos_embed" not in named
    assert {"patch.weight", "norm.weight", "head.bias"} <= set(named)
    normed = network.weights_and_biases(weight_normed(old=False))
    assert not any("original" in name for name in normed)
    assert set(network.norm_parameters(Tokens())) == {
        f"{layer}.{part}"
        for layer in ("norm", "block.norm1", "block.norm2")
        for part in ("weight", "bias")
    }


def test_every_kind_of_norm_is_found() -> None:
    model = nn.ModuleDict(
        {
            "rms": nn.RMSNorm(4),
            "instance": nn.InstanceNorm2d(4, affine=True),
            "plain instance": nn.InstanceNorm2d(4),
            "layer": nn.LayerNorm(4),
            "group": nn.GroupNorm(2, 4),
            "batch": nn.BatchNorm2d(4),
            "batch 1d": nn.BatchNorm1d(4),
            "linear": nn.Linear(4, 4),
        }
    )
    both = ("instance", "layer", "group", "batch", "batch 1d")
    expected = {f"{name}.{part}" for name in both for part in ("weight", "bias")}
    found = network.norm_parameters(model)
    assert set(found) == {"rms.weight", *expected}
    assert all(
        found[name] is parameter
        for name, parameter in model.named_parameters()
        if not name.startswith("linear")
    )


def test_shared_parameters_are_trained_once() -> None:
    model = TinyClassifier("group")
    model.norm2.weight = nn.Parameter(model.norm2.weight.detach().clone())
    model.norm2.bias = model.norm2.weight
    adapter = acclimate.Tent(model)
    before = adapter.snapshot()
    batches = tiny_batches(2)
    first = [adapter(batch) for batch in batches]
    adapter.restore(before)
    assert all(torch.equal(adapter(b), e) for b, e in zip(batches, first, strict=True))


def test_teacher_against_the_formula() -> None:
    teacher, student = [torch.rand(3), torch.rand(2, 2)], [torch.rand(3), torch.rand(2, 2)]
    expected = [0.9 * t + 0.1 * s for t, s in zip(teacher, student, strict=True)]
    network.update_teacher(teacher, student, 0.9)
    torch.testing.assert_close(teacher, expected)


def test_normalized() -> None:
    model = acclimate.Normalized(nn.Flatten(), mean=(0.5, 0.25), std=(0.5, 2.0))
    x = torch.rand(2, 2, 1, 1)
    expected = torch.stack([(x[:, 0] - 0.5) / 0.5, (x[:, 1] - 0.25) / 2.0], 1)
    torch.testing.assert_close(model(x), expected.flatten(1))
    with pytest.raises(acclimate.InputError, match="2 channels"):
        model(torch.rand(1, 1, 4, 4))
    for mean, std in (((0.5,), (0.5, 0.5)), ((0.5,), (0.0,))):
        with pytest.raises(acclimate.ModelError, match="std above 0"):
            acclimate.Normalized(nn.Flatten(), mean, std)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Conv2d(3, 5, 1), "logits"),
        (nn.Sequential(nn.Conv2d(4, 5, 1), nn.AvgPool2d(8), nn.Flatten()), "takes 4 channels"),
        (nn.Sequential(nn.Flatten(), nn.Linear(7, 5)), r"cannot take images of the shape \(3, 8"),
        (acclimate.Normalized(pooled(nn.Linear(6, 5)), (0.5,), (0.5,)), "normalises 1 channel"),
    ],
)
def test_models_that_do_not_fit_the_images(model: nn.Module, words: str) -> None:
    adapter = acclimate.Source(model)
    before = adapter.snapshot()
    with pytest.raises((acclimate.ModelError, acclimate.InputError), match=words):
        adapter(tiny_batches(1)[0])
    assert adapter.snapshot().counters == before.counters


def test_a_model_that_returns_a_tuple() -> None:
    class Pair(TinyClassifier):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x), None

    with pytest.raises(acclimate.ModelError, match="returned tuple"):
        acclimate.Source(Pair())(tiny_batches(1)[0])


def test_norms_and_layers_that_are_missing() -> None:
    with pytest.raises(acclimate.ModelError, match="normalisation layers"):
        acclimate.Tent(nn.Sequential(nn.Flatten(), nn.Linear(192, 5)))


def test_a_model_that_cannot_be_copied() -> None:
    model = TinyClassifier()
    model.stream = (index for index in range(3))
    with pytest.raises(acclimate.ModelError, match="cannot be copied"):
        acclimate.Source(model)


def test_moving_statistics_take_each_layers_own_momentum_unless_told() -> None:
    model = TinyClassifier()
    model.norm1.momentum, model.norm2.momentum = 0.3, 0.5
    x = tiny_batches(1)[0]
    before = model.norm1.running_mean.clone()
    mean = model.conv1(x).detach().mean((0, 2, 3))
    with network.moving_statistics(model):
        model(x)
    torch.testing.assert_close(model.norm1.running_mean, 0.7 * before + 0.3 * mean)
    assert (model.norm1.momentum, model.norm2.momentum) == (0.3, 0.5)
    assert not model.norm1.training


def test_parameters_of_the_last_layers() -> None:
    model = TinyClassifier()
    last = network.parameters_of_last_layers(model, 2)
    assert [id(p) for p in last] == [
        id(p) for p in (model.norm2.weight, model.norm2.bias, model.fc.weight, model.fc.bias)
    ]
    assert network.parameters_of_last_layers(model, 0) == []
    assert len(network.parameters_of_last_layers(model, 99)) == len(list(model.parameters()))
