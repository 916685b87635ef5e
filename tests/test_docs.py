"""What the documents tell people to copy runs as copied, and their numbers are the code's."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import acclimate
from acclimate.methods import registry
from acclimate.models.resnet20 import ResNet20
from benchmarks import costs

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def blocks(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def run(code: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_readme_lines_adapt_a_model_from_a_file_of_ones_own(tmp_path: Path) -> None:
    own_model, _ = blocks(DOCS / "your-own-model.md")
    (tmp_path / "my_model.py").write_text(own_model)
    (lines,) = blocks(ROOT / "README.md")
    given = """
import torch
from my_model import Classifier

model = Classifier()
source = torch.rand(400, 3, 16, 16), torch.arange(400) % 4
stream = torch.rand(2, 200, 3, 16, 16)
"""
    run(given + lines, tmp_path)
    assert (tmp_path / "camera-7.safetensors").is_file()


def test_guide_to_ones_own_model_runs_as_copied(tmp_path: Path) -> None:
    own_model, adapt = blocks(DOCS / "your-own-model.md")
    (tmp_path / "my_model.py").write_text(own_model)
    run(adapt, tmp_path)
    assert (tmp_path / "camera-7.safetensors").is_file()


def test_guide_to_corruptions_runs_as_copied(tmp_path: Path) -> None:
    (code,) = blocks(DOCS / "corruptions.md")
    run(code + "assert foggy.shape == images.shape", tmp_path)


def test_links_within_the_documents_lead_somewhere() -> None:
    for document in [ROOT / "README.md", *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_the_readme_names_every_method() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    row = next(line for line in readme.splitlines() if "`Source`" in line)
    named = set(re.findall(r"`(\w+)`", row))
    assert named == {acclimate.get_method(name).__name__ for name in acclimate.method_names()}


def test_the_method_of_ones_own_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    found = blocks(DOCS / "write-your-own-method.md")
    assert len(found) == 3
    namespace: dict[str, object] = {"__name__": "docs"}
    for block in found:
        exec(compile(block, "write-your-own-method.md", "exec"), namespace)
    printed = capsys.readouterr().out
    assert re.fullmatch(r"[1-9]\d* predictions were learned from\n", printed)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_the_table_of_costs_is_what_is_counted() -> None:
    lines = (DOCS / "methods.md").read_text().splitlines()
    rows = [cells(line) for line in lines if line.startswith("| ")]
    header = next(row for row in rows if "passes" in row)
    written = {row[0]: row for row in rows if len(row) == len(header)}
    for label, (name, options) in costs.CASES.items():
        backwards, forwards, copies = costs.measure(name, options, ResNet20())
        passes = [
            f"{count} {kind}" for count, kind in ((backwards, "FB"), (forwards, "F")) if count
        ]
        row = written[label]
        assert row[header.index("passes")] == " + ".join(passes), label
        assert row[header.index("copies")] == f"{copies:.1f}", label
