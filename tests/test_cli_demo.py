"""The command as a person runs it, with few images."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from acclimate.corruptions import CORRUPTIONS


def demo(folder: Path, *options: str, threads: int = 1) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "acclimate", "demo", *options],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": str(threads), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_demo_prints_the_table_and_writes_both_files(tmp_path: Path) -> None:
    done = demo(tmp_path, "--images", "8")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "acclimate-demo").iterdir()) == [
        "report.html",
        "results.json",
    ]
    results = json.loads((tmp_path / "acclimate-demo" / "results.json").read_text())
    assert list(results) == ["source", "bn1", "tent", "rmt"]
    assert all(list(errors) == list(CORRUPTIONS) for errors in results.values())
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    snow = " ".join(f"{errors['snow']:.1f}" for errors in results.values())
    assert f"snow {snow}" in lines
    assert "snow (8 of 15)" in lines
    report = (tmp_path / "acclimate-demo" / "report.html").read_text()
    assert "8 test images under each corruption" in report
    assert "acclimate demo --images 8<" in report


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--images", "0"], "Got 0 for each corruption; choose from 1 to 2000"),
        (["--images", "2001"], "Got 2001"),
        (["--out", "taken"], "taken cannot be made a folder: File exists"),
    ],
)
def test_demo_refuses_what_it_cannot_do_before_it_starts(
    tmp_path: Path, options: list[str], words: str
) -> None:
    (tmp_path / "taken").write_text("mine")
    done = demo(tmp_path, *options)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.slow
def test_two_demos_agree_and_threads_hardly_matter(tmp_path: Path) -> None:
    results = []
    for out, threads in (("first", 2), ("second", 2), ("third", 1)):
        done = demo(tmp_path, "--images", "200", "--out", out, threads=threads)
        assert done.returncode == 0, done.stderr
        results.append((tmp_path / out / "results.json").read_text())
    assert results[0] == results[1]
    for method, errors in json.loads(results[0]).items():
        other = json.loads(results[2])[method]
        difference = sum(errors.values()) / 15 - sum(other.values()) / 15
        assert abs(difference) <= 0.3, method


@pytest.mark.slow
def test_rmt_beats_bn1_and_tent_in_the_demo_as_people_run_it(tmp_path: Path) -> None:
    done = demo(tmp_path, threads=2)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "acclimate-demo" / "results.json").read_text())
    mean = {method: sum(errors.values()) / 15 for method, errors in results.items()}
    assert mean["rmt"] + 1.5 <= min(mean["tent"], mean["bn1"])
    assert mean["bn1"] < mean["source"]
