"""The HTML report: one file that opens offline and asks nothing of anywhere."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from acclimate.bench.record import Comparison, Run
from acclimate.report.words import spoken

__all__ = ["render"]


def render(comparison: Comparison, examples: Mapping[str, NDArray[np.uint8]]) -> str:
    """Return the report of finished runs.

    Args:
        comparison: the runs; the first is the baseline that the others are held against.
        examples: images (N, H, W, 3) by what they went through.
    """
    environment = Environment(
        loader=PackageLoader("acclimate.report"), autoescape=True, undefined=StrictUndefined
    )
    template = environment.get_template("report.html")
    return template.render(
        comparison=comparison,
        headline=_headline(comparison),
        methods=_methods(comparison),
        rows=_rows(comparison),
        chart=_chart(comparison),
        examples={spoken(name): _picture(images) for name, images in examples.items()},
        options={run.label: json.dumps(dict(run.options), indent=2) for run in comparison.runs},
        style=_part(environment, "report.css"),
        script=_part(environment, "report.js"),
    )


@dataclass(frozen=True)
class _Method:
    """A method's card."""

    label: str
    mean: float
    change: float | None
    """Against the baseline; None of the baseline itself."""
    bar: float
    """Width in percent of the largest error's."""
    milliseconds: float
    """Time an image took to predict and to adapt to."""
    best: bool


def _methods(comparison: Comparison) -> list[_Method]:
    means = [run.mean_error() for run in comparison.runs]
    return [
        _Method(
            label=run.label,
            mean=mean,
            change=None if index == 0 else mean - means[0],
            bar=100 * mean / max(max(means), 1e-9),
            milliseconds=1000 * run.seconds() / sum(batch.images for batch in run.batches),
            best=mean == min(means),
        )
        for index, (run, mean) in enumerate(zip(comparison.runs, means, strict=True))
    ]


def _headline(comparison: Comparison) -> str:
    baseline, *others = comparison.runs
    best = min(others, key=Run.mean_error, default=baseline)
    if best.mean_error() >= baseline.mean_error():
        return f"No method errs less than {baseline.label}, at {baseline.mean_error():.1f} %"
    return (
        f"{best.label} brings the error from {baseline.mean_error():.1f} % "
        f"down to {best.mean_error():.1f} %"
    )


def _rows(comparison: Comparison) -> list[tuple[str, list[tuple[str, bool]]]]:
    """Return each domain's errors as text, and whether each is the row's lowest; then the mean."""
    errors = [run.errors() for run in comparison.runs]
    rows = {spoken(domain): [error[domain] for error in errors] for domain in errors[0]}
    rows["mean"] = [run.mean_error() for run in comparison.runs]
    return [
        (name, [(f"{value:.1f}", value == min(values)) for value in values])
        for name, values in rows.items()
    ]


def _chart(comparison: Comparison) -> dict[str, Any]:
    """Return what the chart draws: the stream's batches and each method's error in each."""
    batches = comparison.runs[0].batches
    return {
        "batches": [{"domain": spoken(batch.domain), "images": batch.images} for batch in batches],
        "series": [
            {
                "label": run.label,
                "errors": [round(100 * b.wrong / b.images, 2) for b in run.batches],
            }
            for run in comparison.runs
        ],
    }


def _picture(images_NHWC: NDArray[np.uint8]) -> str:
    """Return images side by side as an address that holds its own content."""
    file = BytesIO()
    Image.fromarray(np.concatenate(list(images_NHWC), axis=1)).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _part(environment: Environment, name: str) -> Markup:
    """Return a style sheet or script of ours as it is: it is no text to be escaped."""
    assert environment.loader is not None
    return Markup(environment.loader.get_source(environment, name)[0])  # noqa: S704
