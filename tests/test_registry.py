"""Registering a method of one's own takes one call and no edit of ours."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

import acclimate
from acclimate.methods import registry
from acclimate.testing import CHECKS, TinyClassifier, check_adapter


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PseudoLabelConfig(acclimate.TrainingConfig):
    """Options."""

    threshold: float = acclimate.option(0.0, minimum=0, maximum=1)


class PseudoLabel(acclimate.Adapter[PseudoLabelConfig]):
    """Train on one's own confident predictions."""

    name = "pseudo-label"
    Config = PseudoLabelConfig
    trains = "norm"

    def adapt(self, x_NCHW: Tensor) -> Tensor:
        logits_NK = self.run(self.student, x_NCHW)
        confidence_N, label_N = logits_NK.detach().softmax(1).max(1)
        loss_N = torch.nn.functional.cross_entropy(logits_NK, label_N, reduction="none")
        self.update((loss_N * (confidence_N >= self.config.threshold)).mean())
        return logits_NK


def test_a_method_of_ones_own() -> None:
    assert acclimate.register(PseudoLabel) is PseudoLabel
    assert acclimate.get_method("pseudo-label") is PseudoLabel
    assert "pseudo-label" in acclimate.method_names()
    acclimate.register(PseudoLabel)  # once more does no harm
    for options in ({}, {"precision": "bf16"}, {"window": 4}):
        check_adapter(PseudoLabel, threshold=0.1, **options)


def test_the_contract_tells_what_is_wrong() -> None:
    class Forgetful(PseudoLabel):
        """Keeps what it learned where no state knows of it."""

        def configure(self, student: torch.nn.Module) -> None:
            super().configure(student)
            self.calls = 0

        def adapt(self, x_NCHW: Tensor) -> Tensor:
            self.calls += 1
            return super().adapt(x_NCHW) + 0.01 * self.calls

    with pytest.raises(AssertionError, match="same batches must give the same logits"):
        check_adapter(Forgetful)

    class Leaky(PseudoLabel):
        """Draws on the process's generator."""

        def adapt(self, x_NCHW: Tensor) -> Tensor:
            return super().adapt(x_NCHW + 0 * torch.rand(()))

    with pytest.raises(AssertionError, match="process's random state"):
        check_adapter(Leaky)


def test_checks_can_run_one_by_one() -> None:
    assert len(CHECKS) >= 17
    assert all(check.__doc__ for check in CHECKS.values())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "no spaces please"}, "letters, digits"),
        ({"name": None}, "letters, digits"),
        ({"name": "tent"}, "belongs to"),
        ({"Config": dict}, "not a subclass of acclimate.AdapterConfig"),
        ({"Config": type("C", (acclimate.TentConfig,), {"__annotations__": {"a": int}})}, "@data"),
        ({"trains": "nothing"}, "does not go with its Config"),
        ({"Config": acclimate.AdapterConfig}, "does not go with its Config"),
        ({"needs_source": True}, "does not define learn_source"),
    ],
)
def test_what_cannot_be_registered(changes: dict[str, Any], words: str) -> None:
    cls = type("Broken", (PseudoLabel,), {"name": "broken", **changes})
    with pytest.raises(acclimate.RegistrationError, match=words):
        acclimate.register(cls)
    assert "broken" not in acclimate.method_names()


def test_other_things_cannot_be_registered() -> None:
    with pytest.raises(acclimate.RegistrationError, match="not a subclass"):
        acclimate.register(TinyClassifier)  # type: ignore[type-var]


def test_unknown_methods_get_the_nearest_name() -> None:
    with pytest.raises(acclimate.OptionError, match=r"no method 'tend'\. Did you mean 'tent'"):
        acclimate.get_method("tend")


def test_submodules_are_not_shadowed() -> None:
    import acclimate.methods.rmt as module

    assert module.RMT is acclimate.RMT
