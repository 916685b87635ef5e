"""The methods by name: one checked call registers one, ours or a third party's."""

import dataclasses
import difflib
import inspect
from typing import Any, TypeVar

from acclimate.adapter import Adapter
from acclimate.config import AdapterConfig, TrainingConfig
from acclimate.errors import OptionError, RegistrationError

__all__ = ["get_method", "method_names", "register"]

A = TypeVar("A", bound=type[Adapter[Any]])

_registered: dict[str, type[Adapter[Any]]] = {}


def register(cls: A) -> A:
    """Register a method under its ``name``; returns the class, so it also decorates."""
    problem = _problem(cls)
    if problem:
        raise RegistrationError(f"{cls!r} cannot be registered: {problem}.")
    _registered[cls.name] = cls
    return cls


def get_method(name: str) -> type[Adapter[Any]]:
    """Return the method registered under ``name``."""
    if name not in _registered:
        near = difflib.get_close_matches(name, _registered, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise OptionError(
            f"There is no method {name!r}.{hint} Known are: {', '.join(sorted(_registered))}."
        )
    return _registered[name]


def method_names() -> list[str]:
    """Return the names of all registered methods."""
    return list(_registered)


def _same_class(one: type[Any], other: type[Any]) -> bool:
    """Whether both are one class, or one that was defined again, as a notebook's cell does."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def _problem(cls: type[Adapter[Any]]) -> str | None:
    if not (inspect.isclass(cls) and issubclass(cls, Adapter)):
        return "it is not a subclass of acclimate.Adapter"
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not name.replace("-", "").replace("_", "").isalnum():
        return f"its name must be made of letters, digits, - and _, and is {name!r}"
    if not _same_class(_registered.get(name, cls), cls):
        return f"the name {name!r} belongs to {_registered[name]!r}"
    config: Any = cls.Config
    if not (inspect.isclass(config) and issubclass(config, AdapterConfig)):
        return "its Config is not a subclass of acclimate.AdapterConfig"
    if not config.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return "its Config is not a frozen dataclass; decorate it with @dataclass(frozen=True)"
    own = inspect.get_annotations(config)
    if set(own) - {field.name for field in dataclasses.fields(config)}:
        return "its Config adds options without being a dataclass; decorate it with @dataclass"
    if (cls.trains == "nothing") == issubclass(config, TrainingConfig):
        return f"it trains {cls.trains!r}, which does not go with its Config {config.__name__}"
    if (cls.learn_source is not Adapter.learn_source) < bool(cls.needs_source):
        return "it needs source data and does not define learn_source"
    for preset in cls.presets:
        cls.preset(preset)
    return None
