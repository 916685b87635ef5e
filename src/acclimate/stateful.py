"""Snapshots, reset and state files: the part of the contract that is about what was learned."""

import dataclasses
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import Self

from acclimate import state
from acclimate.config import AdapterConfig
from acclimate.errors import InputError, NotPreparedError, StateError
from acclimate.optimizer import optimizer_tensors, write_optimizer
from acclimate.source import Source, SourceBatches
from acclimate.state import Snapshot

__all__ = ["Stateful"]

NETWORKS = ("student", "teacher", "anchor")


class Stateful(nn.Module):
    """What an adapter changes, found by itself: a method need not list its state.

    It is the trained parameters of student and teacher (and their buffers where the method says
    that they change), every further parameter and buffer of the adapter, the optimizer, the
    counters, the generator and the position in replayed source data. The anchor, a source model
    that some methods look back at, never changes and counts among what a state file must fit.
    """

    name: ClassVar[str]
    config: Any
    changing: set[str]
    """Names, within student and teacher, of the parameters and buffers that adapting changes."""
    optimizer: Optimizer | None
    counters: dict[str, int]
    generator: torch.Generator
    replay: SourceBatches | None
    _prepared: Snapshot | None
    _fingerprint: str | None

    def needs_replay(self) -> bool:
        """Whether source data are replayed while adapting."""
        return False

    def attach_source(self, source: Source) -> None:
        """Keep source data for replay."""

    def allocate(self, tensors: Mapping[str, Tensor]) -> None:
        """Make room for what ``prepare`` learns, before a state with these tensors is loaded."""

    def reset(self) -> Self:
        """Return bit-exactly to the prepared state."""
        self._write(self._require_prepared())
        return self

    def forget(self) -> None:
        """Return weights and optimizer to the prepared state, and keep count of the stream."""
        generator, counters = self.generator.get_state(), self._counters()
        self.reset()
        self.generator.set_state(generator)
        self._set_counters(counters)

    def snapshot(self) -> Snapshot:
        """Return a copy of the present state."""
        self._require_prepared()
        return self._capture()

    def restore(self, snapshot: Snapshot) -> Self:
        """Return bit-exactly to a snapshot of this adapter."""
        self._require_prepared()
        if not isinstance(snapshot, Snapshot):
            raise StateError(f"restore takes a snapshot. Got {type(snapshot).__name__} instead.")
        self._check_fits(snapshot, "The snapshot")
        self._write(snapshot)
        return self

    def save(self, path: str | Path) -> None:
        """Write the present and the prepared state to a safetensors file."""
        prepared = self._require_prepared()
        state.write_file(Path(path), self._header(), self._capture(), prepared)

    def load(self, path: str | Path, *, source: Source | None = None) -> Self:
        """Return bit-exactly to a saved state, and let ``reset`` return to its prepared state.

        Args:
            path: a file written by ``save`` from the same method, options and network.
            source: the source data, where they are replayed; the file holds the position only.

        Returns:
            The adapter itself.
        """
        path = Path(path)
        header, now, prepared = state.read_file(path)
        self._header().check(header, path)
        if self.needs_replay() and source is None and self.replay is None:
            raise InputError(
                f"This {type(self).__name__} replays source data, which {path} does not hold. "
                "Pass them with load(path, source=...)."
            )
        with torch.inference_mode(False):
            generator = self.generator.get_state()
            try:
                self.allocate(now.tensors)
                for one in (now, prepared):
                    self._check_fits(one, str(path))
                if self.needs_replay() and source is not None:
                    self.attach_source(source)
            except (KeyError, IndexError) as error:
                raise StateError(f"{path} lacks what prepare() learns ({error!r}).") from error
            finally:
                # Making room draws on it, and a file that is refused must leave no trace.
                self.generator.set_state(generator)
            self._prepared = prepared
            self._write(now)
        return self

    def _require_prepared(self) -> Snapshot:
        if self._prepared is None:
            raise NotPreparedError(
                f"This {type(self).__name__} learns from source data before it adapts. Call "
                "prepare(source) with labelled images, or load() a saved state."
            )
        return self._prepared

    def _changing(self) -> dict[str, Tensor]:
        """The live tensors that adapting changes, apart from the optimizer's."""
        return {name: value for name, value in self._named() if self._changes(name)}

    def _named(self) -> list[tuple[str, Tensor]]:
        parameters = self.named_parameters(remove_duplicate=False)
        return list(chain(parameters, self.named_buffers(remove_duplicate=False)))

    def _changes(self, name: str) -> bool:
        owner, _, inner = name.partition(".")
        return owner not in NETWORKS or (owner != "anchor" and inner in self.changing)

    @torch.inference_mode(False)
    def _capture(self) -> Snapshot:
        tensors = {name: value.detach().clone() for name, value in self._changing().items()}
        tensors["generator"] = self.generator.get_state()
        if self.optimizer is not None:
            for name, value in optimizer_tensors(self.optimizer).items():
                tensors[f"optimizer.{name}"] = value.clone()
        return Snapshot(tensors, self._counters())

    @torch.inference_mode(False)
    @torch.no_grad()
    def _write(self, snapshot: Snapshot) -> None:
        """Write a snapshot that fits into the live tensors, in place."""
        tensors = snapshot.tensors
        like = next(self.parameters())
        for name in self._buffers:
            # The adapter's own buffers come and go: a window that is empty, prototypes.
            value = tensors.get(name)
            if value is not None:
                # After double() they follow; what half-precision networks learn stays in full.
                wide = torch.promote_types(value.dtype, like.dtype)
                kind = wide if value.is_floating_point() else value.dtype
                value = value.to(like.device, kind, copy=True)
            self._buffers[name] = value
        for name, live in self._changing().items():
            if name in tensors:  # not yet in the state before a preparation that failed
                live.copy_(tensors[name])
        if self.optimizer is not None:
            mine = {k.partition(".")[2]: v for k, v in tensors.items() if k[:10] == "optimizer."}
            write_optimizer(self.optimizer, mine)
        self.generator.set_state(tensors["generator"])
        self._set_counters(snapshot.counters)

    def _check_fits(self, snapshot: Snapshot, what: str) -> None:
        """Raise unless ``_write`` can take the snapshot."""
        own = {k: v for k, v in self._changing().items() if k not in self._buffers}
        own["generator"] = self.generator.get_state()
        given: dict[str, Tensor] = {}
        for name, value in snapshot.tensors.items():
            if name.startswith("optimizer."):
                own[name] = self._like_optimizer_tensor(name, value)
            if name not in self._buffers:
                given[name] = value
        missing = [name for name in own if name not in given]
        unexpected = [name for name in given if name not in own]
        wrong = [k for k in own if k in given and own[k].shape != given[k].shape]
        if "generator" in given and not _is_generator_state(given["generator"]):
            wrong.append("generator")
        if missing or unexpected or wrong or set(snapshot.counters) != set(self._counters()):
            raise StateError(
                f"{what} does not fit this adapter: it lacks {missing[:3]}, has {unexpected[:3]} "
                f"on top, and other shapes for {wrong[:3]} (three of each at most)."
            )

    def _like_optimizer_tensor(self, name: str, value: Tensor) -> Tensor:
        """What the optimizer would hold under a name: a number of steps, or as its parameter."""
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        index = name.split(".")[1]
        if value.ndim == 0 or not index.isdecimal() or int(index) >= len(parameters):
            return torch.empty(())
        like: Tensor = parameters[int(index)]
        return like

    def _counters(self) -> dict[str, int]:
        position = 0 if self.replay is None else self.replay.position
        return {**self.counters, "source_position": position}

    def _set_counters(self, counters: Mapping[str, int]) -> None:
        self.counters = {name: counters[name] for name in self.counters}
        if self.replay is not None:
            self.replay.position = counters["source_position"]

    def _header(self) -> state.Header:
        if self._fingerprint is None:
            # Fixed tensors never change, so their digest is taken when it is first needed.
            networks = [item for item in self._named() if item[0].partition(".")[0] in NETWORKS]
            # By identity, since a tensor may stand under several names.
            moving = {id(value) for value in self._changing().values()}
            self._fingerprint = state.fingerprint(
                fixed={name: value for name, value in networks if id(value) not in moving},
                changing={name: value for name, value in networks if id(value) in moving},
            )
        assert isinstance(self.config, AdapterConfig)
        return state.Header(self.name, self._fingerprint, dataclasses.asdict(self.config))


def _is_generator_state(value: Tensor) -> bool:
    try:
        torch.Generator().set_state(value)
    except (RuntimeError, TypeError):
        return False
    return True
