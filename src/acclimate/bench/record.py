"""What a run leaves behind, as plain data: no tensors, so that reports need no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["BatchResult", "Comparison", "Run"]


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """How one batch of a stream was predicted."""

    domain: str
    """What the images went through: a corruption's name."""
    images: int
    wrong: int
    seconds: float
    """Time the method took to predict and to adapt."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One method over one stream, batch by batch in the order of the stream."""

    method: str
    """The method's registered name."""
    label: str
    """What tables call this row."""
    options: Mapping[str, Any]
    batches: tuple[BatchResult, ...]

    def errors(self) -> dict[str, float]:
        """Return the error in percent of each domain, in the stream's order."""
        images: dict[str, int] = {}
        wrong: dict[str, int] = {}
        for batch in self.batches:
            images[batch.domain] = images.get(batch.domain, 0) + batch.images
            wrong[batch.domain] = wrong.get(batch.domain, 0) + batch.wrong
        return {domain: 100 * wrong[domain] / images[domain] for domain in images}

    def mean_error(self) -> float:
        """Return the mean of the domains' errors in percent."""
        errors = self.errors().values()
        return sum(errors) / len(errors)

    def seconds(self) -> float:
        """Return the time of all batches."""
        return sum(batch.seconds for batch in self.batches)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several methods over the same stream."""

    benchmark: str
    model: str
    setting: str
    """One sentence: the order of the images, and what is reset when."""
    runs: tuple[Run, ...]
    facts: Mapping[str, str]
    """What else a person needs to judge the numbers: images, seed, versions, machine."""
    command: str
    """How to run it again."""
