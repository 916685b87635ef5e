"""The documentation's code runs, and its numbers are what the code does."""

import re
from pathlib import Path

import pytest

from acclimate.methods import registry
from acclimate.models.resnet20 import ResNet20
from benchmarks import costs

DOCS = Path(__file__).parent.parent / "docs"


def test_the_method_of_ones_own_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    text = (DOCS / "write-your-own-method.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    namespace: dict[str, object] = {"__name__": "docs"}
    for block in blocks:
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
