"""Comparisons made by hand, for tests of what is done with them."""

from acclimate.bench.record import BatchResult, Comparison, Run


def run(label: str, batches: list[tuple[str, int, int]], method: str = "") -> Run:
    """A run from (domain, images, wrong) of each batch."""
    results = tuple(
        BatchResult(domain=domain, images=images, wrong=wrong, seconds=0.5)
        for domain, images, wrong in batches
    )
    return Run(method=method or label, label=label, options={"seed": 0}, batches=results)


def comparison(*runs: Run, benchmark: str = "tiny-c") -> Comparison:
    return Comparison(
        benchmark=benchmark,
        model="tiny/net",
        setting="continual: one after the other",
        runs=runs,
        facts={"images": "20 <each>"},
        command="acclimate demo --out 'my folder'",
    )


SNOWY = [("snow", 10, 4), ("snow", 5, 5), ("jpeg_compression", 20, 2)]
CALM = [("snow", 10, 1), ("snow", 5, 2), ("jpeg_compression", 20, 4)]


def two_runs() -> Comparison:
    """Errors of 60 and 10 (mean 35) against 20 and 20 (mean 20)."""
    return comparison(run("source", SNOWY), run("RMT", CALM, "rmt"))
