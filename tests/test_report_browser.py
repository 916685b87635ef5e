"""The report in a headless Chromium: it draws, answers to the pointer and asks for nothing.

A page around it holds it in a frame of the width to test, looks into it and writes what it saw.
"""

import html
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acclimate.report.html import render
from tests.comparisons import comparison, run, two_runs

pytestmark = pytest.mark.slow

EXAMPLES = {
    name: np.full((4, 32, 32, 3), 128, np.uint8) for name in ("clean", "gaussian_noise", "fog")
}
LOOK = """
addEventListener("load", () => {
  const frame = document.querySelector("iframe"), page = frame.contentDocument;
  const chart = page.getElementById("chart"), root = page.documentElement;
  const seen = {
    width: root.clientWidth, scrolls: root.scrollWidth > root.clientWidth,
    curves: [...page.querySelectorAll("polyline")].map((line) => line.points.numberOfItems),
    background: frame.contentWindow.getComputedStyle(page.body).backgroundColor,
    broken: [...page.images].filter((image) => !image.naturalWidth).length,
    smallest: Math.min(...[...page.querySelectorAll("svg text")].map(
      (text) => parseFloat(frame.contentWindow.getComputedStyle(text).fontSize) *
        page.querySelector("svg").getBoundingClientRect().width /
        page.querySelector("svg").viewBox.baseVal.width)),
  };
  const box = chart.getBoundingClientRect();
  const tip = () => page.querySelector(".tip")?.innerText ?? "";
  const point = (share) => chart.dispatchEvent(new frame.contentWindow.PointerEvent(
    "pointermove", { clientX: box.left + share * box.width, clientY: box.top + 50 }));
  point(0.05); seen.first = tip(); point(0.97); seen.last = tip();
  const area = page.querySelector(".tip").getBoundingClientRect();
  seen.inside = area.left >= box.left && area.right <= box.right;
  chart.dispatchEvent(new frame.contentWindow.PointerEvent("pointerleave"));
  seen.left = tip();
  const press = (key) => chart.dispatchEvent(
    new frame.contentWindow.KeyboardEvent("keydown", { key }));
  press("ArrowRight"); press("ArrowRight"); seen.keyed = tip();
  document.querySelector("pre").textContent = JSON.stringify(seen);
});
"""


def chromium(page: Path, *options: str) -> str:
    program = shutil.which("chromium")
    assert program, "The report is tested in Chromium: install Debian's package chromium."
    quiet = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update"]
    quiet += ["--disable-background-networking", "--disable-sync", "--hide-scrollbars"]
    if os.geteuid() == 0:
        quiet.append("--no-sandbox")
    profile = page.parent / "profile"
    shutil.rmtree(profile, ignore_errors=True)
    return subprocess.run(
        [program, "--headless", *quiet, f"--user-data-dir={profile}", *options, page.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout


def look(folder: Path, report: str, width: int, *options: str) -> dict[str, Any]:
    page = folder / "around.html"
    page.write_text(
        f'<pre></pre><iframe width="{width}" height="900" style="border:0" '
        f'srcdoc="{html.escape(report)}"></iframe><script>{LOOK}</script>',
        encoding="utf-8",
    )
    dumped = chromium(page, "--window-size=1400,1000", "--dump-dom", *options)
    seen = html.unescape(dumped.split("<pre>")[1].split("</pre>")[0])
    return json.loads(seen)


def requests(folder: Path, content: str) -> list[str]:
    """The addresses that a page itself asks for, over the network."""
    page, log = folder / "page.html", folder / "log.json"
    page.write_text(content, encoding="utf-8")
    chromium(page, "--window-size=1280,900", f"--log-net-log={log}", "--dump-dom")
    parameters = [event.get("params") for event in json.loads(log.read_text())["events"]]
    return [
        one["url"]
        for one in parameters
        # What the browser asks for of its own accord comes from no page.
        if isinstance(one, dict) and one.get("initiator", "not an origin") != "not an origin"
    ]


def many_batches() -> str:
    names = ("gaussian_noise", "elastic_transform", "jpeg_compression", "fog", "snow") * 3
    batches = [(name + "!" * (i // 5), 200, i * 9) for i, name in enumerate(names) for _ in "12345"]
    return render(comparison(*(run(label, batches) for label in "abcd")), EXAMPLES)


@pytest.mark.parametrize("width", [1280, 390])
def test_report_fits_and_answers_to_the_pointer(tmp_path: Path, width: int) -> None:
    seen = look(tmp_path, render(two_runs(), EXAMPLES), width)
    assert seen["width"] == width
    assert not seen["scrolls"]
    assert seen["curves"] == [3, 3]
    assert seen["broken"] == 0
    assert seen["smallest"] >= 10
    assert seen["first"].split() == "snow images 1 to 10 source 40.0 % RMT 10.0 %".split()
    assert seen["last"].split() == (
        "JPEG compression images 16 to 35 source 10.0 % RMT 20.0 %".split()
    )
    assert seen["inside"]
    assert seen["left"] == ""
    assert "images 11 to 15" in seen["keyed"]


@pytest.mark.parametrize("width", [1280, 390])
def test_report_of_a_long_stream_fits(tmp_path: Path, width: int) -> None:
    seen = look(tmp_path, many_batches(), width)
    assert not seen["scrolls"]
    assert seen["curves"] == [75] * 4
    assert seen["inside"]


def test_report_follows_the_dark_theme(tmp_path: Path) -> None:
    report = render(two_runs(), EXAMPLES)
    light = look(tmp_path, report, 800)["background"]
    dark = look(tmp_path, report, 800, "--blink-settings=preferredColorScheme=0")["background"]
    brightness = [sum(map(int, one[4:-1].split(","))) for one in (light, dark)]
    assert brightness[0] > 700
    assert brightness[1] < 100


def test_report_asks_nothing_of_the_network(tmp_path: Path) -> None:
    assert requests(tmp_path, many_batches()) == []


def test_a_page_that_asks_would_be_noticed(tmp_path: Path) -> None:
    asked = requests(tmp_path, '<img src="http://localhost:9/picture.png">')
    assert "http://localhost:9/picture.png" in asked
