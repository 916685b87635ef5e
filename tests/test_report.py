import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from acclimate.report import error_table, write_reports
from acclimate.report.html import render
from tests.comparisons import CALM, SNOWY, comparison, run, two_runs

EXAMPLES = {"clean": np.zeros((2, 4, 4, 3), np.uint8)}


def text_of(table) -> list[str]:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table)
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


class Page(HTMLParser):
    """Addresses that a browser would fetch, table cells, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.cells: list[tuple[str, bool]] = []
        self.cell: list[str] | None = None
        self.lowest = False
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.addresses += [named[key] for key in ("src", "href", "action", "data") if key in named]
        if tag in ("td", "th"):
            self.cell, self.lowest = [], named.get("class") == "lowest"

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.cells.append(("".join(self.cell), self.lowest))
            self.cell = None

    def handle_data(self, data):
        self.text += data
        if self.cell is not None:
            self.cell.append(data)


def test_terminal_table_has_errors_means_and_rows_to_come() -> None:
    lines = text_of(error_table(two_runs(), ["snow", "jpeg_compression", "fog"]))
    assert "source RMT" in lines
    assert "snow 60.0 20.0" in lines
    assert "JPEG compression 10.0 20.0" in lines
    assert "fog" in lines
    assert "mean 35.0 20.0" in lines


def test_terminal_table_works_before_a_method_has_begun() -> None:
    lines = text_of(error_table(comparison(run("a", SNOWY[:1]), run("b", [])), ["snow"]))
    assert "snow 40.0" in lines
    assert "mean 40.0" in lines


def test_html_table_has_the_errors_with_the_lowest_marked() -> None:
    cells = Page(render(two_runs(), EXAMPLES)).cells
    assert cells == [
        *[("", False), ("source", False), ("RMT", False)],
        *[("snow", False), ("60.0", False), ("20.0", True)],
        *[("JPEG compression", False), ("10.0", True), ("20.0", False)],
        *[("mean", False), ("35.0", False), ("20.0", True)],
    ]


def test_headline_says_who_is_best_and_by_how_much() -> None:
    assert "RMT brings the error from 35.0 % down to 20.0 %" in render(two_runs(), EXAMPLES)
    reverse = comparison(run("source", CALM), run("RMT", SNOWY))
    assert "No method errs less than source, at 20.0 %" in render(reverse, EXAMPLES)
    assert "No method errs less" in render(comparison(run("source", CALM)), EXAMPLES)


def test_cards_hold_each_method_against_the_first() -> None:
    text = " ".join(Page(render(two_runs(), EXAMPLES)).text.split())
    assert "source 35.0 % baseline" in text
    assert "RMT 20.0 % −15.0 points" in text
    assert "42.9 ms an image" in text  # three batches of 0.5 s for 35 images


def test_report_asks_nothing_of_anywhere() -> None:
    html = render(two_runs(), EXAMPLES)
    assert all(address.startswith("data:") for address in Page(html).addresses)
    assert "default-src 'none'" in html
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest", html)


def test_chart_has_every_batch_of_every_method() -> None:
    html = render(two_runs(), EXAMPLES)
    data = json.loads(re.search(r'id="chart-data">(.*?)</script>', html, re.DOTALL)[1])
    assert [batch["images"] for batch in data["batches"]] == [10, 5, 20]
    assert [batch["domain"] for batch in data["batches"]] == ["snow", "snow", "JPEG compression"]
    assert data["series"][0] == {"label": "source", "errors": [40.0, 100.0, 10.0]}
    assert data["series"][1] == {"label": "RMT", "errors": [10.0, 40.0, 20.0]}


def test_names_cannot_become_markup_or_script() -> None:
    hostile = "</script><script>alert(1)</script>"
    html = render(
        comparison(run(hostile, [(hostile, 2, 1)]), benchmark=hostile), {hostile: EXAMPLES["clean"]}
    )
    assert hostile not in html
    assert html.count("<script") == 2


def test_files_hold_the_numbers_and_the_report(tmp_path: Path) -> None:
    results, report = write_reports(two_runs(), EXAMPLES, tmp_path)
    assert json.loads(results.read_text()) == {
        "source": {"snow": 60.0, "jpeg_compression": 10.0},
        "rmt": {"snow": 20.0, "jpeg_compression": 20.0},
    }
    assert report.read_text(encoding="utf-8") == render(two_runs(), EXAMPLES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "results.json"]


def test_a_failed_report_leaves_the_last_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_reports(two_runs(), EXAMPLES, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full_disk(self, content, **options):
        with self.open("wb") as file:
            file.write(content.encode()[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_reports(comparison(run("other", CALM)), EXAMPLES, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
