"""The command ``acclimate corrupt``, as a person runs it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

import acclimate.cli.image_progress
from acclimate.cli import main
from acclimate.cli.app import app
from acclimate.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS

ACCLIMATE = [sys.executable, "-c", "from acclimate.cli import main; main()"]


def write_pictures(folder: Path, names: list[str], side: int = 16) -> None:
    for seed, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
        Image.fromarray(pixels).save(folder / name)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of images, from its parent."""
    write_pictures(tmp_path / "my images", ["cat/a [bold].png", "dog/ü.jpg", "dog/c.png"])
    monkeypatch.chdir(tmp_path)
    return Path("my images")


def corrupt(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["corrupt", *arguments])


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def error_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *line: str
) -> str:
    """What the whole command prints when it fails; its status must be 1."""
    monkeypatch.setattr(sys, "argv", ["acclimate", "corrupt", *line])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_it_writes_all_by_default(folder: Path) -> None:
    result = corrupt("my images", "--out", "out")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "3 images in 2 class folders of my images",
        "15 corruptions, severity 1, 2, 3, 4, 5",
        "constants: cifar, as the first image has 16 × 16 pixels",
        "225 images written to out",
    ]
    assert sorted(path.name for path in Path("out").iterdir()) == sorted(
        [*CORRUPTIONS, "acclimate.json"]
    )
    again = corrupt("my images", "--out", "out", "--severity", "2")
    assert again.stderr.splitlines()[-2:] == [
        "constants: cifar, as out was begun with them",
        "0 images written to out; 45 there before",
    ]


def test_corruptions_and_severities_are_named_once_or_with_commas(folder: Path) -> None:
    names = ["--corruption", "fog, saturate", "--corruption", "snow"]
    result = corrupt("my images", "--out", "out", *names, "--severity", "5,1", "--severity", "1")
    assert result.exit_code == 0
    made = {path.parts[1:3] for path in Path("out").glob("*/*")}
    assert made == {(name, level) for name in ("fog", "snow", "saturate") for level in "15"}


def test_all_adds_the_extra_ones(folder: Path) -> None:
    options = ["--format", "npy", "--corruption", "all", "--severity", "1"]
    result = corrupt("my images", "--out", "out", *options, "--constants", "imagenet")
    assert result.exit_code == 0
    assert "constants: imagenet, as asked" in result.stderr
    assert "19 arrays written to out" in result.stderr
    arrays = {path.stem for path in Path("out").glob("*.npy")}
    assert arrays == {*CORRUPTIONS, *EXTRA_CORRUPTIONS, "labels"}


@pytest.mark.parametrize("layout", ["folder", "npy"])
def test_what_is_left_out_is_named_and_changes_the_status(folder: Path, layout: str) -> None:
    (folder / "cat/broken [red].png").write_bytes(b"")
    line = ["my images", "--out", "out", "--corruption", "fog", "--on-error", "skip"]
    for _ in range(2):
        result = corrupt(*line, "--format", layout)
        assert result.exit_code == 3
        assert (
            "Left out: my images/cat/broken [red].png cannot be read: the file is empty."
            in result.stderr.splitlines()
        )
        assert result.stderr.endswith("; 1 image left out\n")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["nowhere", "--out", "out"], "nowhere does not exist"),
        (["my images", "--out", "out", "--corruption", "snwo"], "Did you mean 'snow'?"),
        (["my images", "--out", "out", "--corruption", "all,snwo"], "Did you mean 'snow'?"),
        (["my images", "--out", "out", "--corruption", ""], "At least one corruption"),
        (["my images", "--out", "out", "--severity", "6"], "from 1 to 5. Got 6"),
        (["my images", "--out", "out", "--severity", "high"], "from 1 to 5. Got 'high'"),
        (["my images", "--out", "out", "--seed", "-1"], "seed must be an int >= 0"),
        (["my images", "--out", "out", "--quality", "0"], "quality must be an int >= 1"),
        (["my images", "--out", "out", "--workers", "0"], "workers must be an int >= 1"),
        (["my images", "--out", "my images/c"], "Choose a folder beside it"),
        (["my images", "--out", "out", "--format", "npy", "--quality", "9"], "leave it out"),
    ],
)
def test_wrong_options_end_with_one_line(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    line: list[str],
    words: str,
) -> None:
    error = error_of(capsys, monkeypatch, *line)
    assert error.startswith("Error: ")
    assert error.count("\n") == 1
    assert words in error
    assert not Path("out").exists() or not content(Path("out"))


def test_brackets_of_a_name_are_printed(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "cat/a [bold].png").write_bytes(b"\x89PNG")
    error = error_of(capsys, monkeypatch, "my images", "--out", "out")
    last = error.splitlines()[-1]
    assert last.startswith("Error: my images/cat/a [bold].png cannot be read: it is damaged")
    assert last.endswith("--on-error skip.")


def test_names_that_are_no_text(folder: Path) -> None:
    (folder / os.fsdecode(b"cat/\xff.png")).write_bytes(b"")
    result = corrupt("my images", "--out", "out", "--on-error", "skip", "--severity", "1")
    assert result.exit_code == 3
    assert "cat/?.png cannot be read" in result.stderr


def test_help_says_what_the_defaults_are() -> None:
    result = corrupt("--help")
    assert result.exit_code == 0
    for words in ("the 15 of the", "1,2,3,4,5", "85, as", "130 stopped", "ImageNet-C"):
        assert words in result.stdout


def test_a_line_now_and_then_where_there_is_no_terminal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acclimate.cli.image_progress, "SECONDS_BETWEEN_LINES", 0.0)
    result = corrupt("my images", "--out", "out", "--corruption", "fog")
    assert "images: 2 of 3, " in result.stderr


def test_a_bar_on_a_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    (folder / "cat/broken.png").write_bytes(b"")
    result = corrupt("my images", "--out", "out", "--corruption", "fog", "--on-error", "skip")
    assert "3/4" in result.stderr or "4/4" in result.stderr
    assert "━" in result.stderr
    assert "cat/broken.png cannot be read" in result.stderr


def started(line: list[str]) -> "subprocess.Popen[str]":
    """The command in a process group of its own, as a shell has it."""
    return subprocess.Popen(
        [*ACCLIMATE, "corrupt", *line],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process: "subprocess.Popen[str]", out: Path, pattern: str, files: int) -> None:
    deadline = time.monotonic() + 120
    while sum(1 for _ in out.glob(pattern)) < files:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_until_gone(group: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    raise AssertionError(f"processes of the group {group} are still there")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "number", "pattern", "files"),
    [
        (["--workers", "2"], signal.SIGINT, "*/*/*/*.png", 20),
        (["--workers", "1"], signal.SIGTERM, "*/*/*/*.png", 20),
        (["--workers", "2", "--format", "npy"], signal.SIGINT, "snow.npy", 1),
        (["--workers", "2"], signal.SIGKILL, "*/*/*/*.png", 20),
    ],
)
def test_stopped_it_leaves_whole_files_and_continues(
    tmp_path: Path, options: list[str], number: signal.Signals, pattern: str, files: int
) -> None:
    write_pictures(tmp_path / "images", [f"{i % 2}/{i}.png" for i in range(16)], side=64)
    line = [str(tmp_path / "images"), *options, "--out"]
    whole = tmp_path / "whole"
    assert CliRunner().invoke(app, ["corrupt", *line, str(whole), "--workers", "1"]).exit_code == 0

    out = tmp_path / "out"
    with started([*line, str(out)]) as process:
        wait_for(process, out, pattern, files)
        asked = time.monotonic()
        if number == signal.SIGKILL:
            process.kill()  # the parent only: its workers must notice by themselves
        else:
            os.killpg(process.pid, number)
        _, stderr = process.communicate(timeout=60)
        took = time.monotonic() - asked
    wait_until_gone(process.pid)
    part = content(out)
    if number == signal.SIGKILL:
        part = {name: some for name, some in part.items() if not name.startswith(".")}
    else:
        assert process.returncode == 128 + number
        assert took < 10
        last = f"Stopped. Every file in {out} is whole; the same command continues."
        assert stderr.splitlines()[-1] == last
    assert "Traceback" not in stderr
    assert part.items() < content(whole).items()

    with started([*line, str(out)]) as process:
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert "there before" in stderr
    assert content(out) == content(whole)


@pytest.mark.slow
def test_a_second_request_to_stop_does_not_disturb_the_first(tmp_path: Path) -> None:
    write_pictures(tmp_path / "images", [f"{i}.png" for i in range(40)], side=64)
    out = tmp_path / "out"
    with started([str(tmp_path / "images"), "--out", str(out), "--workers", "2"]) as process:
        wait_for(process, out, "*/*/*.png", 5)
        for _ in range(20):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                time.sleep(0.005)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert not [name for name in content(out) if name.startswith(".")]
