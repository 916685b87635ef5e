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


def rewritten(path: Path, to: Path, **metadata: str) -> Path:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
        save_file(tensors, to, {**file.metadata(), **metadata})
    return to


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
        ({"options": "{}"}, "temperature is None in the file"),
    ],
)
def test_other_metadata_are_refused(
    saved: Path, tmp_path: Path, metadata: dict[str, str], words: str
) -> None:
    adapter = acclimate.RMT(TinyClassifier(), **SHORT).prepare(tiny_source())
    before = adapter.snapshot()
    path = rewritten(saved, tmp_path / "other.safetensors", **metadata)
    with pytest.raises(acclimate.StateError, match=words):
        adapter.load(path)
    assert same_state(before, adapter.snapshot())


@settings(max_examples=60, deadline=None)
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
    with safe_open(saved, framework="pt") as file:
        tensors = {n: file.get_tensor(n) for n in file.keys() if "prototypes" not in n}
        metadata = file.metadata()
    metadata["same"] = json.dumps([n for n in json.loads(metadata["same"]) if n != "prototypes"])
    path = tmp_path / "less.safetensors"
    save_file(tensors, path, metadata)
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
        raise OSError("disk full")

    monkeypatch.setattr("acclimate.files.os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
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
