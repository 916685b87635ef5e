"""The bundled images, network and prepared state."""

import json
from importlib.resources import files

import numpy as np
import pytest
import torch

import acclimate
from acclimate.bench.mini import MiniDemo
from acclimate.data.mini import read_mini
from acclimate.models.resnet20 import ResNet20


@pytest.mark.parametrize("split", ["train", "test"])
def test_bundled_images_are_balanced_and_different(split: str) -> None:
    images, labels = read_mini(split)
    assert images.shape == (2000, 32, 32, 3)
    assert images.dtype == np.uint8
    assert np.bincount(labels).tolist() == [200] * 10
    assert len({image.tobytes() for image in images}) == 2000


def test_bundled_images_are_the_ones_written_down() -> None:
    index = json.loads((files("acclimate.data") / "cifar10_mini" / "index.json").read_text())
    for split, size in (("train", 50_000), ("test", 10_000)):
        chosen = index[split]["indices"]
        assert len(set(chosen)) == 2000
        assert sorted(chosen) == chosen
        assert 0 <= chosen[0]
        assert chosen[-1] < size
        assert index[split]["labels"] == read_mini(split)[1].tolist()


def test_what_is_bundled_keeps_to_14_megabytes() -> None:
    folders = [
        ("acclimate.data", "cifar10_mini"),
        ("acclimate.models", "weights"),
        ("acclimate.bench", "prepared"),
    ]
    entries = [entry for package, name in folders for entry in (files(package) / name).iterdir()]
    assert sum(len(entry.read_bytes()) for entry in entries) <= 14e6


@pytest.mark.parametrize("split", ["train", "test"])
def test_bundled_network_knows_the_bundled_images(split: str) -> None:
    images, labels = read_mini(split)
    model = acclimate.load_model("cifar10/resnet20")
    assert not model.training
    with torch.no_grad():
        x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
        predicted = torch.cat([model(part).argmax(1) for part in x.split(500)])
    wrong = (predicted != torch.from_numpy(labels)).float().mean()
    # 7.62 % of all test images (models/weights/README.md), within two standard errors of 2,000.
    assert wrong < (0.088 if split == "test" else 0.01)


def test_resnet20_has_the_names_and_size_of_the_cifar_network() -> None:
    network = ResNet20()
    assert sum(parameter.numel() for parameter in network.parameters()) == 269_722
    names = [name for name, _ in network.named_parameters()]
    assert names[:4] == ["conv1.weight", "bn1.weight", "bn1.bias", "layer1.0.conv1.weight"]
    assert names[-2:] == ["linear.weight", "linear.bias"]
    assert not any("shortcut" in name or "downsample" in name for name in names)


def test_shortcuts_take_every_second_pixel_and_pad_channels_with_zeros() -> None:
    block = ResNet20().layer2[0].eval()
    for conv in (block.conv1, block.conv2):
        torch.nn.init.zeros_(conv.weight)
    x = torch.rand(2, 16, 6, 6)
    out = block(x)  # the residual is zero, so the shortcut is what remains
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert out[:, :8].abs().max() == 0
    assert out[:, 24:].abs().max() == 0


def test_unknown_models_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(acclimate.ModelError, match="Did you mean 'cifar10/resnet20'"):
        acclimate.load_model("cifar10/resnet-20")


def test_prepared_state_belongs_to_the_bundled_network_and_the_papers_options() -> None:
    rmt = MiniDemo(10).methods()["RMT"]
    assert rmt.config == acclimate.RMT.preset("cifar")
    assert rmt.prototypes.shape == (10, 64)
    warmed = dict(rmt.student.named_parameters())
    source = dict(acclimate.load_model("cifar10/resnet20").named_parameters())
    assert any(not torch.equal(warmed[name], source[name]) for name in source)


def test_demo_runs_the_four_methods_with_the_papers_options() -> None:
    demo = MiniDemo(20)
    *_, comparison = demo.run("acclimate demo")
    assert [run.method for run in comparison.runs] == ["source", "bn1", "tent", "rmt"]
    assert len(comparison.runs[0].errors()) == 15
    assert sum(len(run.batches) for run in comparison.runs) == len(demo)
    for run in comparison.runs:
        method = acclimate.get_method(run.method)
        assert dict(run.options) == vars(method.preset("cifar"))


@pytest.mark.parametrize("images", [0, -1, 2001])
def test_demo_refuses_more_images_than_there_are(images: int) -> None:
    with pytest.raises(acclimate.OptionError, match=f"Got {images}"):
        MiniDemo(images)


def test_examples_are_the_images_the_methods_get() -> None:
    demo = MiniDemo(10)
    examples = demo.examples(3)
    assert np.array_equal(examples["clean"], demo.images_NHWC[:3])
    domains = {domain.name: domain.images_NHWC for domain in demo.domains()}
    assert list(examples) == ["clean", *domains]
    assert all(np.array_equal(examples[name], domains[name][:3]) for name in domains)
