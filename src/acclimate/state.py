"""What an adapter has learned, as tensors: in memory (a snapshot) and in a safetensors file.

A file holds two states, the present one and the prepared one that ``reset`` returns to; tensors
that are the same in both are stored once. Its metadata says which method, options and network
it belongs to. It holds what adapting changes; the network's other tensors enter a fingerprint,
so that a file only loads where everything it does not hold is bit for bit the same.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from acclimate.errors import StateError
from acclimate.files import whole_file

__all__ = ["Header", "Snapshot", "fingerprint", "read_file", "write_file"]

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Snapshot:
    """A copy of everything that adapting changes: tensors and counters by name."""

    tensors: Mapping[str, Tensor]
    counters: Mapping[str, int]


@dataclass(frozen=True)
class Header:
    """What a state belongs to."""

    method: str
    network: str
    """Fingerprint of the network."""
    options: Mapping[str, Any]

    def check(self, other: "Header", path: Path) -> None:
        """Raise if ``other``, read from ``path``, is not of the same kind."""
        if other.method != self.method:
            raise StateError(
                f"{path} holds the state of the method {other.method!r}; this adapter is "
                f"{self.method!r}. Build the adapter that the file was saved from."
            )
        if other.network != self.network:
            raise StateError(
                f"{path} was saved from another network: its layers, shapes or fixed weights "
                "differ from this adapter's. Build the adapter from the same model and weights."
            )
        different = {
            name: (other.options.get(name), self.options.get(name))
            for name in {**other.options, **self.options}
            if other.options.get(name) != self.options.get(name)
        }
        if different:
            listed = "; ".join(
                f"{name} is {theirs!r} in the file and {ours!r} here"
                for name, (theirs, ours) in different.items()
            )
            raise StateError(f"{path} was saved with other options: {listed}.")


def fingerprint(fixed: Mapping[str, Tensor], changing: Mapping[str, Tensor]) -> str:
    """Digest of fixed tensors' bytes and of changing tensors' names, types and shapes."""
    digest = hashlib.sha256()
    for kind, tensors in (("fixed", fixed), ("changing", changing)):
        for name, tensor in sorted(tensors.items()):
            digest.update(f"{kind} {name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            if kind == "fixed":
                flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                digest.update(flat.numpy().data)
    return digest.hexdigest()


def write_file(path: Path, header: Header, now: Snapshot, prepared: Snapshot) -> None:
    """Write both states; the file appears whole or not at all."""
    if not path.parent.is_dir():
        raise StateError(f"Cannot save to {path}: the folder {path.parent} does not exist.")
    same = [name for name, value in prepared.tensors.items() if _same(value, now.tensors.get(name))]
    tensors = {f"now/{name}": value for name, value in now.tensors.items()} | {
        f"prepared/{name}": value for name, value in prepared.tensors.items() if name not in same
    }
    metadata = {
        "format": "acclimate adapter state",
        "version": str(FORMAT_VERSION),
        "method": header.method,
        "network": header.network,
        "options": json.dumps(header.options),
        "counters": json.dumps({"now": now.counters, "prepared": prepared.counters}),
        "same": json.dumps(same),
    }
    metadata["digest"] = _digest(tensors, metadata)
    try:
        with whole_file(path) as temporary:
            # One tensor may stand under two names; safetensors wants each in memory of its own.
            save_file(
                {k: v.cpu().contiguous().clone() for k, v in tensors.items()}, temporary, metadata
            )
    except (SafetensorError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StateError(f"Cannot save to {path}: {reason}.") from error


def read_file(path: Path) -> tuple[Header, Snapshot, Snapshot]:
    """Read a file: what it belongs to, its present state and its prepared state."""
    if not path.is_file():
        raise StateError(f"There is no state file {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except SafetensorError as error:
        raise StateError(
            f"{path} is not a whole safetensors file ({error}). It may be damaged or cut short."
        ) from error
    if metadata.get("format") != "acclimate adapter state":
        raise StateError(f"{path} is not the state of an adapter. Write one with adapter.save().")
    if metadata.get("version") != str(FORMAT_VERSION):
        raise StateError(
            f"{path} has the format version {metadata.get('version')}; this acclimate reads "
            f"version {FORMAT_VERSION}. Save the state again with this version."
        )
    digest = metadata.pop("digest", None)
    if digest != _digest(tensors, metadata):
        raise StateError(
            f"{path} is damaged: its content does not have the digest it was saved with. Take "
            "another copy, or save the state again."
        )
    try:
        options, counters = (json.loads(metadata[name]) for name in ("options", "counters"))
        header = Header(metadata["method"], metadata["network"], dict(options))
        for name in ("now", "prepared"):
            if not all(type(count) is int and count >= 0 for count in counters[name].values()):
                raise ValueError(f"counters {counters[name]}")
        now = {name[4:]: tensors[name] for name in tensors if name.startswith("now/")}
        changed = {name[9:]: tensors[name] for name in tensors if name.startswith("prepared/")}
        prepared = changed | {name: now[name] for name in json.loads(metadata["same"])}
        return header, Snapshot(now, counters["now"]), Snapshot(prepared, counters["prepared"])
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise StateError(f"{path} has damaged metadata ({error!r}).") from error


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Digest of all that a file holds, by which damage shows."""
    content = f"{fingerprint(tensors, {})} {json.dumps(metadata, sort_keys=True)}"
    return hashlib.sha256(content.encode()).hexdigest()


def _same(one: Tensor, other: Tensor | None) -> bool:
    if other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    # Compared as bytes: NaN equals itself, and 0 differs from -0.
    as_bytes = (t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other.to(one.device)))
    return torch.equal(*as_bytes)
