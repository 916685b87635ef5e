"""Every registered method keeps the contract, in the variants that matter."""

from typing import Any

import pytest

import acclimate
from acclimate.testing.contract import CHECKS, maker

SHORT = {"batch_size": 8, "warmup_samples": 24}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "source": ("source", {}),
    "bn1": ("bn1", {}),
    "bn1-alpha": ("bn1", {"alpha": 0.1}),
    "bn1-moving": ("bn1", {"momentum": 0.1}),
    "tent": ("tent", {}),
    "tent-episodic-sgd": ("tent", {"episodic": True, "optimizer": "sgd"}),
    "tent-3-updates": ("tent", {"updates": 3}),
    "mean-teacher-sce": ("mean-teacher", {"batch_size": 8}),
    "mean-teacher-ce": ("mean-teacher", {"loss": "ce", "optimizer": "sgd"}),
    "mean-teacher-warm": ("mean-teacher", SHORT),
    "cotta": ("cotta", {"augmentations": 3}),
    "cotta-views-sce-sgd": (
        "cotta",
        {"augmentations": 2, "threshold": 1.0, "loss": "sce", "optimizer": "sgd"},
    ),
    "adacontrast": ("adacontrast", {"capacity": 24, "refine_after": 8, "neighbours": 3}),
    "adacontrast-crop-fast-layers": (
        "adacontrast",
        {"capacity": 50, "crop": True, "all_parameters": True, "fast_layers": 1, "lr": 0.01},
    ),
    "gtta-mix": ("gtta-mix", {"batch_size": 8}),
    "gtta-mix-1-update": ("gtta-mix", {"batch_size": 8, "updates": 1, "lr": 1e-3}),
    "rmt": ("rmt", SHORT),
    "rmt-replay": ("rmt", {**SHORT, "lambda_ce": 1.0}),
    "rmt-replay-share-4-updates": (
        "rmt",
        {**SHORT, "lambda_ce": 0.5, "source_share": 0.5, "updates": 4},
    ),
    "rmt-row-A": ("rmt", {"ensemble": False, "lambda_cl": 0.0, "warmup_samples": 0}),
    "rmt-no-projector": ("rmt", {**SHORT, "projector": False, "optimizer": "sgd"}),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("check", CHECKS)
def test_contract(check: str, variant: str) -> None:
    name, options = VARIANTS[variant]
    CHECKS[check](maker(acclimate.get_method(name), **options))


def test_every_method_has_a_variant() -> None:
    assert {name for name, _ in VARIANTS.values()} == set(acclimate.method_names())
