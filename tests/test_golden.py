"""Every recorded trace of the official implementation is followed (tests/golden/README.md).

ACCLIMATE_GOLDEN names another folder of traces in the same format.

The traces were recorded in contiguous memory, and there the bounds hold. Channels-last memory, our
default, adds in another order; where a gradient is next to zero, Adam turns that rounding into a
visible part of a step, so single weights may stray there and only the predictions are bounded.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import acclimate

FOLDER = Path(os.environ.get("ACCLIMATE_GOLDEN", Path(__file__).parent / "golden"))
METHODS = {
    "norm_test": acclimate.BN1,
    "norm_alpha": acclimate.BN1,
    "norm_ema": acclimate.BN1,
    "tent": acclimate.Tent,
    "cotta": acclimate.CoTTA,
    "adacontrast": acclimate.AdaContrast,
    "gtta": acclimate.GTTA,
    "rmt": acclimate.RMT,
}


class Trace:
    """Tensors and hyper-parameters of one recorded run."""

    def __init__(self, path: Path) -> None:
        with safe_open(path, framework="pt") as file:
            self.facts = {k: json.loads(v) for k, v in (file.metadata() or {}).items()}
            self.tensors = {key: file.get_tensor(key) for key in file.keys()}
        if path.stem == "rmt_warmup":
            self.facts = {"warmup_steps": 6, "teacher_momentum": 0.999, **self.facts}

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def images(self, name: str) -> Tensor:
        return self.tensors[name].float() / 255

    def group(self, prefix: str) -> dict[str, Tensor]:
        """Tensors by their name in our network: the official code wraps it for BN's variants."""
        found = {k[len(prefix) :]: v for k, v in self.tensors.items() if k.startswith(prefix)}
        return {k.removeprefix("model.").replace(".layer.", "."): v for k, v in found.items()}

    def options(self) -> dict[str, Any]:
        """The trace's hyper-parameters as options of ours."""
        facts, method = self.facts, self.facts["method"]
        options: dict[str, Any] = {"window": facts.get("window"), "channels_last": False}
        if method == "norm_alpha":
            options["alpha"] = facts["alpha"]
        if method == "norm_ema":
            options["momentum"] = facts["layer_momentum"]
        if method.startswith("norm"):
            return options
        optimizer = facts["optimizer"]
        name = optimizer["name"].lower()
        options |= {
            "optimizer": name,
            # The traces give the rate that was used; ours scales by window / batch_size.
            "lr": optimizer["lr"],
            "batch_size": facts.get("window") or facts["batch_size"],
            "optimizer_momentum": optimizer["beta1" if name == "adam" else "momentum"],
            "nesterov": optimizer.get("nesterov", True),
            "weight_decay": optimizer["weight_decay"],
            "updates": facts["steps"],
        }
        if method == "cotta":
            options |= {
                "momentum": facts["teacher_momentum"],
                "loss": "ce" if facts["loss"] == "ce" else "sce",
                "augmentations": facts["augmentations"] or 1,
                # The traces give what came of the threshold: views in every batch, or in none.
                "threshold": float(facts["augmentations"] > 0),
                "restore": facts["restore"],
            }
        if method == "adacontrast":
            options |= {
                "momentum": facts["teacher_momentum"],
                "temperature": facts["temperature"],
                "capacity": facts["queue"],
                "neighbours": facts["neighbours"],
                "refine_after": facts["neighbours_after"],
            }
        if method == "gtta":
            options["test_share"] = facts["mixup"]
        if method == "rmt":
            options |= {
                "momentum": facts["teacher_momentum"],
                "lambda_ce": facts.get("lambda_ce", 0.0),
                "lambda_cl": facts.get("lambda_cl", 1.0),
                "temperature": facts.get("temperature", 0.1),
                "warmup_samples": facts.get("warmup_steps", 0) * options["batch_size"],
                "projector": bool(self.group("init.projector.")),
            }
        return options


class GoldenNetwork(nn.Module):
    """The tiny network that the traces were recorded on."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs, stride in ((3, 8, 1), (8, 16, 2), (16, 16, 2)):
            layers += [
                nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
            ]
        self.encoder = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.encoder(x))


class RecordedRMT(acclimate.RMT):
    """RMT with the trace's projector, augmented views and replay batches, in their order."""

    trace: Trace
    views: Iterator[Tensor]

    def average_features(self, source: Any, report: Any) -> Tensor:
        if "prepare.x" in self.trace or "prototypes" not in self.trace:
            return super().average_features(source, report)
        self.take_source(source[0])  # finds the head, as reading the source data does
        return self.trace.tensors["prototypes"]

    def make_projector(self, dimensions: int) -> None:
        super().make_projector(dimensions)
        if self.projector is not None:
            self.projector.load_state_dict(self.trace.group("init.projector."))

    def augment(self, x_NCHW: Tensor) -> Tensor:
        return next(self.views)[: len(x_NCHW)]


class RecordedCoTTA(acclimate.CoTTA):
    """CoTTA with the trace's augmented views."""

    views: Iterator[Tensor]

    def augment(self, x_NCHW: Tensor) -> Tensor:
        return next(self.views)


class RecordedAdaContrast(acclimate.AdaContrast):
    """AdaContrast with the trace's views, in the order weak, query, key, and first queue."""

    trace: Trace
    recorded: Iterator[Tensor]

    def views(self, x_NCHW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return next(self.recorded), next(self.recorded), next(self.recorded)

    def make_memory(self, features_ND: Tensor, logits_NK: Tensor) -> None:
        super().make_memory(features_ND, logits_NK)
        self.queue = self.trace.tensors["init.queue.features"].T.contiguous()
        self.queue_labels = self.trace.tensors["init.queue.labels"].clone()


def source_batches(trace: Trace) -> list[tuple[Tensor, Tensor]]:
    size = trace.facts["batch_size"]
    for prefix in ("prepare", "source"):
        if f"{prefix}.x" in trace:
            images = trace.images(f"{prefix}.x").reshape(-1, 3, 16, 16)
            labels = trace.tensors[f"{prefix}.y"].reshape(-1)
            return list(zip(images.split(size), labels.split(size), strict=True))
    return [(trace.images("x")[0], torch.zeros(len(trace.images("x")[0]), dtype=torch.long))]


def build(trace: Trace, **changes: Any) -> acclimate.Adapter[Any]:
    network = GoldenNetwork()
    network.load_state_dict(trace.group("init.model."))
    kind, options = METHODS[trace.facts["method"]], {**trace.options(), **changes}
    if kind is acclimate.CoTTA:
        cotta = RecordedCoTTA(network, **options)
        cotta.views = iter(trace.images("aug")) if "aug" in trace else iter(())
        return cotta
    if kind is acclimate.AdaContrast:
        contrast = RecordedAdaContrast(network, **options)
        contrast.trace, contrast.recorded = trace, iter(trace.images("aug"))
        return contrast
    if kind is acclimate.GTTA:
        return acclimate.GTTA(network, **options).prepare(source_batches(trace))
    if kind is not acclimate.RMT:
        return kind(network, **options)
    adapter = RecordedRMT(network, **options)
    adapter.trace = trace
    adapter.views = iter(trace.images("aug")) if "aug" in trace else iter(())
    adapter.prepare(source_batches(trace))
    if adapter.replay is not None and "prepare.x" in trace:
        images, labels = trace.images("source.x"), trace.tensors["source.y"]
        adapter.attach_source(list(zip(images, labels, strict=True)))
    return adapter


def assert_weights(ours: nn.Module, recorded: dict[str, Tensor], lr: float) -> None:
    """At least 99.9 % of the weights to 1e-5, all of them within a tenth of the learning rate."""
    named = dict(ours.named_parameters())
    recorded = {name: value for name, value in recorded.items() if name in named}
    assert set(recorded) == set(named)
    far = torch.cat([(named[k] - recorded[k]).detach().abs().flatten() for k in recorded])
    assert (far <= 1e-5).float().mean() >= 0.999
    assert far.max() <= lr / 10


def assert_statistics(ours: nn.Module, recorded: dict[str, Tensor]) -> None:
    named = {name: value for name, value in ours.named_buffers() if name in recorded}
    for name, value in named.items():
        torch.testing.assert_close(value, recorded[name], rtol=1e-5, atol=1e-6)


def traces() -> list[Path]:
    found = sorted(FOLDER.glob("*.safetensors"))
    assert found, f"no traces in {FOLDER}"
    return found


@pytest.mark.parametrize("path", traces(), ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    trace = Trace(path)
    adapter = build(trace)
    lr = trace.facts["optimizer"]["lr"]
    if "prototypes" in trace and "prepare.x" in trace and adapter.config.lambda_cl > 0:
        torch.testing.assert_close(
            adapter.prototypes, trace.tensors["prototypes"], rtol=1e-5, atol=1e-6
        )
    for part, network in (("model", adapter.student), ("teacher", adapter.teacher)):
        if trace.group(f"prepared.{part}."):
            assert_weights(network, trace.group(f"prepared.{part}."), lr)
    losses: list[float] = []
    adapter.observe(lambda step: losses.append(step.loss))
    assert_predictions(adapter, trace)
    if "loss" in trace:
        torch.testing.assert_close(
            torch.tensor(losses), trace.tensors["loss"], rtol=1e-5, atol=1e-6
        )
    for part in ("model", "teacher", "projector"):
        if recorded := trace.group(f"final.{part}."):
            network = adapter.student if part == "model" else getattr(adapter, part)
            assert_weights(network, recorded, lr)
            if adapter.changes_statistics:
                assert_statistics(network, recorded)
    if "final.queue.features" in trace:
        queue = trace.tensors["final.queue.features"].T
        torch.testing.assert_close(adapter.queue, queue, rtol=1e-5, atol=1e-5)
        assert torch.equal(adapter.queue_labels, trace.tensors["final.queue.labels"])


@pytest.mark.parametrize("path", traces(), ids=lambda path: path.stem)
def test_golden_predictions_in_channels_last_memory(path: Path) -> None:
    trace = Trace(path)
    assert_predictions(build(trace, channels_last=True), trace)


def assert_predictions(adapter: acclimate.Adapter[Any], trace: Trace) -> None:
    """Logits to 1e-5, relative to the largest of their batch."""
    if "x" not in trace or "logits" not in trace:
        return
    for batch, logits in zip(trace.images("x"), trace.tensors["logits"], strict=True):
        if "window" in trace.facts:
            ours = torch.cat([adapter(image[None]) for image in batch])
        else:
            ours = adapter(batch)
        assert (ours - logits).abs().max() <= 1e-5 * logits.abs().max()
