"""Models as people write them: in-place arithmetic, odd heads, BatchNorm of many kinds."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import acclimate
from acclimate.testing import TinyClassifier, tiny_batches, tiny_source

SHORT: dict[str, Any] = {"batch_size": 8, "warmup_samples": 16}


class Careful(TinyClassifier):
    def forward(self, x_NCHW: Tensor) -> Tensor:
        return super().forward((x_NCHW - 0.5) / 0.25)


class Careless(TinyClassifier):
    """Normalises its images in place, which changes the caller's."""

    def forward(self, x_NCHW: Tensor) -> Tensor:
        return super().forward(x_NCHW.sub_(0.5).div_(0.25))


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("method", ["source", "tent", "mean-teacher", "rmt"])
def test_a_model_that_works_in_place_predicts_the_same(method: str, norm: str) -> None:
    options = SHORT if method == "rmt" else {}
    careful, careless = (
        acclimate.get_method(method)(kind(norm), **options).prepare(tiny_source())
        for kind in (Careful, Careless)
    )
    for batch in tiny_batches(2):
        for images in (batch, batch.contiguous(memory_format=torch.channels_last)):
            given = images.clone()
            assert torch.equal(careful(images), careless(given))
            assert torch.equal(given, images)


class Ablated(TinyClassifier):
    """Makes its logits without a layer that could be the head."""

    def forward(self, x_NCHW: Tensor) -> Tensor:
        return super().forward(x_NCHW) ** 3 + x_NCHW.mean((1, 2, 3))[:, None]


def test_rows_without_contrastive_loss_need_no_head() -> None:
    (batch,) = tiny_batches(1)
    adapter = acclimate.RMT(Ablated(), lambda_cl=0.0, **SHORT).prepare(tiny_source())
    assert adapter(batch).isfinite().all()


class ByKeyword(TinyClassifier):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(8, 5)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        x_NCHW = self.norm1(self.conv1(x_NCHW)).relu()
        x_NCHW = self.norm2(self.conv2(x_NCHW)).relu()
        return self.fc(input=x_NCHW.mean((2, 3)))


def test_a_head_called_by_keyword_is_found() -> None:
    keyword, plain = (
        acclimate.RMT(kind(), head="fc", **SHORT).prepare(tiny_source())
        for kind in (ByKeyword, TinyClassifier)
    )
    (batch,) = tiny_batches(1)
    assert torch.equal(keyword(batch), plain(batch))


def test_a_head_that_is_never_called_is_an_error() -> None:
    adapter = acclimate.RMT(ByKeyword(), head="unused", **SHORT)
    with pytest.raises(acclimate.ModelError, match="'unused' was given no tensor"):
        adapter.prepare(tiny_source())


class DroppingNorm(nn.BatchNorm2d):
    """BatchNorm and what follows it in one layer, as some libraries have it."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(super().forward(x))


@pytest.mark.parametrize("method", ["bn1", "tent", "adacontrast"])
def test_a_dropout_within_a_batch_norm_stays_off(method: str) -> None:
    model = TinyClassifier()
    model.norm1 = DroppingNorm(6).eval()
    adapter = acclimate.get_method(method)(model)
    for batch in [*tiny_batches(2), tiny_batches(1, size=1)[0]]:
        adapter(batch)
        assert torch.equal(adapter.predict(batch), adapter.predict(batch))
        assert not any(
            module.training for module in adapter.modules() if type(module) is nn.Dropout
        )


@pytest.mark.parametrize("method", ["source", "bn1", "tent", "mean-teacher"])
def test_single_values_without_any_statistics_are_scaled_and_shifted(method: str) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(8, track_running_stats=False)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    model = TinyClassifier("group")
    model.fc = nn.Sequential(norm, model.fc)
    adapter = acclimate.get_method(method)(model)
    (image,) = tiny_batches(1, size=1)
    features = model.norm2(model.conv2(model.norm1(model.conv1(image)).relu())).relu().mean((2, 3))
    expected = model.fc[1](features / (1 + norm.eps) ** 0.5 * norm.weight + norm.bias)
    torch.testing.assert_close(adapter.predict(image), expected.detach())
    assert norm.running_mean is None
    assert adapter(image).isfinite().all()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_models_of_other_precision_adapt(kind: torch.dtype) -> None:
    adapter = acclimate.RMT(TinyClassifier().to(kind), **SHORT).prepare(tiny_source())
    for batch in tiny_batches(2):
        assert adapter(batch).isfinite().all()


def test_numbers_of_numpy_are_options_too() -> None:
    import numpy as np

    config = acclimate.RMTConfig(lr=np.float64(0.01), seed=np.int64(3), ensemble=np.bool_(False))
    assert config == acclimate.RMTConfig(lr=0.01, seed=3, ensemble=False)
    assert type(config.seed) is int


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": 10**400}, "'lr' option"),
        ({"optimizer_momentum": 1.0}, "must be below 1 with Adam"),
    ],
)
def test_options_that_an_optimizer_would_refuse(options: dict[str, Any], words: str) -> None:
    with pytest.raises(acclimate.OptionError, match=words):
        acclimate.TentConfig(**options)
