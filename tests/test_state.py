"""State files: what they refuse, what they hold, and that they are whole or absent."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import acclimate
from acclimate import state
from acclimate.testing import TinyClassifier, tiny_batches, tiny_source
from acclimate.testing.contract import same_state

SHORT: dict[str, Any] = {"batch_size": 8, "warmup_samples": 16}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("state") / "rmt.safetensors"
    adapter = acclimate.RMT(TinyClassifier(), **SHORT).prepare(tiny_source())
    adapter(tiny_batches(1)[0])
    adapter.save(path)
    return path


def read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()


def write_sealed(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """Write a file whose digest is right, whatever else is wrong with it."""
    metadata = {name: value for name, value in metadata.items() if name != "digest"}
    save_file(tensors, path, {**metadata, "digest": state._digest(tensors, metadata)})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: acclimate.Tent(TinyClassifier()), "method 'rmt'; this adapter is 'tent'"),
        (lambda: acclimate.RMT(TinyClassifier("group"), **SHORT), "another network"),
        (lambda: acclimate.RMT(TinyClassifier(seed=1), **SHORT), "another network"),
        (
            lambda: acclimate.RMT(TinyClassifier(), temperature=0.2, **SHORT),
            "temperature is 0.1 in the file and 0.2 here",
        ),
    ],
)
def test_files_of_something_else_are_refused(saved: Path, make: Any, words: str) -> None:
    adapter = make()
    with pytest.raises(acclimate.StateError, match=words):
        adapter.load(saved)
    if adapter.needs_source:
        with pytest.raises(acclimate.NotPreparedError):
            adapter(tiny_batches(1)[0])


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"version": "99"}, "format version 99"),
        ({"format": "something else"}, "not the state of an adapter"),
        ({"counters": "{"}, "damaged metadata"),
        ({"counters": '{"now": {}, "prepared": {}}'}, "does not fit"),
        ({"same": '["nothing"]'}, "damaged metadata"),
        ({"counters": '{"now": 3, "prepared": {}}'}, "damaged metadata"),
        ({"options": "{}"}, "temperature is None in the file"),
        ({"options": "3"}, "damaged metadata"),
    ],
)
def test_other_metadata_are_refused(
    saved: Path, tmp_path: Path, metadata: dict[str, str], words: str
) -> None:
    adapter = acclimate.RMT(TinyClassifier(), **SHORT).prepare(tiny_source())
    before = adapter.snapshot()
    path = tmp_path / "other.safetensors"
    tensors, written = read(saved)
    write_sealed(path, tensors, {**written, **metadata})
    with pytest.raises(acclimate.StateError, match=words):
        adapter.load(path)
    assert same_state(before, adapter.snapshot())


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("now/generator", torch.zeros(7, dtype=torch.uint8), "generator"),
        ("now/generator", torch.zeros(5056), "generator"),
        ("now/student.fc.weight", torch.zeros(5, 7), "student.fc.weight"),
        ("now/optimizer.0.exp_avg", torch.zeros(3), "optimizer.0.exp_avg"),
        ("now/stranger", torch.zeros(3), "stranger"),
    ],
)
def test_other_tensors_are_refused(
    saved: Path, tmp_path: Path, name: str, value: torch.Tensor, words: str
) -> None:
    adapter = acclimate.RMT(TinyClassifier(), **SHORT).prepare(tiny_source())
    before = adapter.snapshot()
    tensors, metadata = read(saved)
    write_sealed(tmp_path / "other.safetensors", {**tensors, name: value}, metadata)
    with pytest.raises(acclimate.StateError, match=words):
        adapter.load(tmp_path / "other.safetensors")
    assert same_state(before, adapter.snapshot())


def test_a_changed_number_is_noticed(saved: Path, tmp_path: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[-5] ^= 1
    path = tmp_path / "changed.safetensors"
    path.write_bytes(content)
    with pytest.raises(acclimate.StateError, match="is damaged"):
        acclimate.RMT(TinyClassifier(), **SHORT).load(path)


class Aliased(TinyClassifier):
    """Layers and weights that stand under two names, as many models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(self.conv1, self.norm1)
        self.table = self.fc.weight


@pytest.mark.parametrize("name", ["tent", "bn1", "rmt", "cotta", "adacontrast"])
def test_tensors_under_two_names_are_one(name: str, tmp_path: Path) -> None:
    options = {"rmt": SHORT, "bn1": {"momentum": 0.1}}.get(name, {})
    method = acclimate.get_method(name)
    adapter = method(Aliased(), **options).prepare(tiny_source())
    adapter(tiny_batches(1)[0])
    adapter.save(tmp_path / "state.safetensors")
    fresh = method(Aliased(), **options).load(tmp_path / "state.safetensors")
    for batch in tiny_batches(2):
        assert torch.equal(adapter(batch), fresh(batch))


def test_a_refused_file_leaves_an_unprepared_adapter_as_new(saved: Path, tmp_path: Path) -> None:
    tensors, metadata = read(saved)
    write_sealed(tmp_path / "x", {**tensors, "now/stranger": torch.zeros(1)}, metadata)
    adapter, other = (acclimate.RMT(TinyClassifier(), **SHORT) for _ in "ab")
    with pytest.raises(acclimate.StateError, match="stranger"):
        adapter.load(tmp_path / "x")
    prepared = [one.prepare(tiny_source()).snapshot() for one in (adapter, other)]
    assert same_state(*prepared)


def test_after_double_a_state_comes_back_in_double() -> None:
    for options in (SHORT, {**SHORT, "window": 2}):
        adapter = acclimate.RMT(TinyClassifier(), **options).prepare(tiny_source())
        (batch,) = tiny_batches(1)
        adapter(batch[:3])
        snapshot = adapter.snapshot()
        adapter.double()
        for go_back in (adapter.reset, lambda a=adapter, s=snapshot: a.restore(s)):
            go_back()
            assert adapter(batch).dtype == torch.float64


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_damaged_files_never_load_and_never_change_anything(saved: Path, data: Any) -> None:
    """Cut anywhere, or with header bytes changed: an error of ours or the very same state."""
    content = bytearray(saved.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        header = 8 + int.from_bytes(content[:8], "little")
        for _ in range(data.draw(st.integers(1, 3))):
            content[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    path = saved.with_name("damaged.safetensors")
    path.write_bytes(content)
    adapter = acclimate.RMT(TinyClassifier(), **SHORT).prepare(tiny_source())
    before = adapter.snapshot()
    try:
        adapter.load(path)
    except acclimate.StateError:
        assert same_state(before, adapter.snapshot())
    else:
        assert adapter(tiny_batches(1)[0]).shape == (8, 5)


def test_a_file_without_what_prepare_learns(saved: Path, tmp_path: Path) -> None:
    tensors, metadata = read(saved)
    tensors = {name: value for name, value in tensors.items() if "prototypes" not in name}
    metadata["same"] = json.dumps([n for n in json.loads(metadata["same"]) if n != "prototypes"])
    path = tmp_path / "less.safetensors"
    write_sealed(path, tensors, metadata)
    with pytest.raises(acclimate.StateError, match="lacks what prepare"):
        acclimate.RMT(TinyClassifier(), **SHORT).load(path)


def test_small_methods_have_small_files(tmp_path: Path) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 20_000)
    )
    adapter = acclimate.Tent(model)
    adapter(tiny_batches(1)[0])
    adapter.save(tmp_path / "tent.safetensors")
    assert (tmp_path / "tent.safetensors").stat().st_size < 20_000


def test_nothing_is_stored_twice(tmp_path: Path) -> None:
    sizes = []
    adapter = acclimate.RMT(TinyClassifier(), **SHORT).prepare(tiny_source())
    for name in ("prepared", "adapted"):
        adapter.save(tmp_path / name)
        sizes.append((tmp_path / name).stat().st_size)
        adapter(tiny_batches(1)[0])
    assert sizes[0] < 0.75 * sizes[1]


def test_the_prepared_state_saves_the_wait(tmp_path: Path) -> None:
    first = acclimate.RMT(TinyClassifier(), **SHORT).prepare(tiny_source())
    first.save(tmp_path / "prepared.safetensors")
    again = acclimate.RMT(TinyClassifier(), **SHORT).load(tmp_path / "prepared.safetensors")
    for batch in tiny_batches(3):
        assert torch.equal(first(batch), again(batch))


def test_replay_asks_for_its_source(tmp_path: Path) -> None:
    options = {**SHORT, "lambda_ce": 1.0}
    adapter = acclimate.RMT(TinyClassifier(), **options).prepare(tiny_source())
    adapter(tiny_batches(1)[0])
    adapter.save(tmp_path / "x.safetensors")
    fresh = acclimate.RMT(TinyClassifier(), **options)
    with pytest.raises(acclimate.InputError, match=r"load\(path, source=...\)"):
        fresh.load(tmp_path / "x.safetensors")
    fresh.load(tmp_path / "x.safetensors", source=tiny_source())
    for batch in tiny_batches(2):
        assert torch.equal(adapter(batch), fresh(batch))
    adapter.load(tmp_path / "x.safetensors")  # its source is still there


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "state.safetensors"
    adapter = acclimate.Tent(TinyClassifier())
    adapter.save(path)
    old = path.read_bytes()
    adapter(tiny_batches(1)[0])

    def fail(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("acclimate.files.os.replace", fail)
    with pytest.raises(acclimate.StateError, match="No space left"):
        adapter.save(path)
    assert path.read_bytes() == old
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_snapshots_of_something_else_are_refused() -> None:
    adapter = acclimate.Tent(TinyClassifier())
    before = adapter.snapshot()
    for other in (
        acclimate.Tent(TinyClassifier(width=10)).snapshot(),
        acclimate.MeanTeacher(TinyClassifier()).snapshot(),
        acclimate.Source(TinyClassifier()).snapshot(),
    ):
        with pytest.raises(acclimate.StateError, match="does not fit"):
            adapter.restore(other)
    with pytest.raises(acclimate.StateError, match="takes a snapshot"):
        adapter.restore({})  # type: ignore[arg-type]
    assert same_state(before, adapter.snapshot())
