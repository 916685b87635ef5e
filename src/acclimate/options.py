"""Options as frozen dataclasses whose fields say which values they accept.

A method's options read like a table: ``temperature: float = option(0.1, above=0)``. Construction
checks every value, so that a wrong one fails before any work starts.
"""

import dataclasses
import difflib
import math
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np

from acclimate.errors import OptionError

__all__ = ["Options", "build", "option"]

T = TypeVar("T", bound="Options")


def option(
    default: Any,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """Declare an option: its default and the values it accepts."""
    accepts = {"minimum": minimum, "above": above, "maximum": maximum, "choices": choices}
    return dataclasses.field(default=default, metadata=accepts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Base of every method's options; checks types and ranges on construction."""

    def __post_init__(self) -> None:
        """Check every field and store whole numbers given for floats as floats."""
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            kinds = set(get_args(hints[field.name])) or {hints[field.name]}
            value = getattr(self, field.name)
            if isinstance(value, np.generic):
                value = value.item()
            if float in kinds and type(value) is int and abs(value) < 2**53:
                value = float(value)
            object.__setattr__(self, field.name, value)
            if not _accepts(value, kinds, field.metadata):
                raise OptionError(
                    f"The {field.name!r} option of {type(self).__name__} must be "
                    f"{_describe(kinds, field.metadata)}. Got {value!r} instead."
                )


def build(kind: type[T], options: T | None, changes: dict[str, Any]) -> T:
    """Return ``options`` (or the defaults of ``kind``) with ``changes`` applied."""
    known = [field.name for field in dataclasses.fields(kind)]
    for name in changes:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise OptionError(
                f"{kind.__name__} has no option {name!r}.{hint} Its options are: "
                f"{', '.join(sorted(known))}."
            )
    if options is None:
        return kind(**changes)
    if type(options) is not kind:
        raise OptionError(f"Options must be a {kind.__name__}. Got {options!r} instead.")
    return dataclasses.replace(options, **changes)


def _accepts(value: Any, kinds: set[Any], accepts: Any) -> bool:
    # bool is an int to isinstance, and True is not a number of update steps.
    if not any(type(value) is kind for kind in kinds):
        return False
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, above, high = (accepts.get(key) for key in ("minimum", "above", "maximum"))
        return (
            math.isfinite(value)
            and (low is None or value >= low)
            and (above is None or value > above)
            and (high is None or value <= high)
        )
    choices = accepts.get("choices")
    return choices is None or value is None or value in choices


def _describe(kinds: set[Any], accepts: Any) -> str:
    if accepts.get("choices"):
        text = "one of " + ", ".join(map(repr, accepts["choices"]))
    else:
        names = {bool: "True or False", int: "an int", float: "a finite float", str: "a str"}
        text = " or ".join(names[kind] for kind in names if kind in kinds)
        low, above, high = (accepts.get(key) for key in ("minimum", "above", "maximum"))
        limits = [(">=", low), (">", above), ("<=", high)]
        text += "".join(
            f" {'and ' if i else ''}{sign} {limit}"
            for i, (sign, limit) in enumerate((s, v) for s, v in limits if v is not None)
        )
    return text + (" or None" if type(None) in kinds else "")
