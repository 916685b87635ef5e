"""The adapter's contract as checks that run on any method.

Each check takes a function that makes a fresh, prepared adapter of the method on a tiny network
with given options. A failing check raises an AssertionError that says what was promised.
"""

import copy
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from acclimate.adapter import Adapter, StepReport
from acclimate.errors import AcclimateError, InputError, NotPreparedError, StateError
from acclimate.state import Snapshot
from acclimate.testing.tiny import CLASSES, TinyClassifier, tiny_batches, tiny_source

__all__ = ["CHECKS", "check_adapter", "same_state"]


class Make(Protocol):
    """Makes a prepared adapter; options change those of the check."""

    def __call__(self, model: nn.Module | None = None, **options: Any) -> Adapter[Any]:
        """Return the adapter."""
        ...


Check = Callable[[Make], None]
CHECKS: dict[str, Check] = {}
"""The checks by name."""


def check_adapter(cls: type[Adapter[Any]], device: str = "cpu", **options: Any) -> None:
    """Run the whole contract on a method.

    Args:
        cls: the method.
        device: where its networks run.
        options: options of the method; a short warm-up makes the checks quick.
    """
    for check in CHECKS.values():
        check(maker(cls, device, **options))


def maker(cls: type[Adapter[Any]], device: str = "cpu", **options: Any) -> Make:
    """Return the function that the checks take."""

    def make(model: nn.Module | None = None, **changes: Any) -> Adapter[Any]:
        model = TinyClassifier() if model is None else model
        adapter = cls(model.to(device), **{**options, **changes})
        return adapter.prepare(tiny_source() if adapter.needs_source else None)

    return make


def same_state(one: Snapshot, other: Snapshot) -> bool:
    """Whether two snapshots are the same, bit for bit."""
    return (
        one.counters == other.counters
        and one.tensors.keys() == other.tensors.keys()
        and all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    )


F = TypeVar("F", bound=Check)


def _check(function: F) -> F:
    CHECKS[function.__name__.lstrip("_")] = function
    return function


def _batches(adapter: Adapter[Any], count: int, size: int = 8, seed: int = 0) -> list[Tensor]:
    device = next(adapter.student.parameters()).device
    return [batch.to(device) for batch in tiny_batches(count, size, seed)]


def _promise(kept: bool, promise: str) -> None:
    if not kept:
        raise AssertionError(promise)


def _raises(error: type[Exception], words: str, call: Callable[[], object]) -> None:
    try:
        call()
    except error as raised:
        _promise(words in str(raised), f"the error {raised!r} must mention {words!r}")
    else:
        raise AssertionError(f"expected {error.__name__} about {words!r}, and nothing was raised")


@_check
def predicts_every_batch_size(make: Make) -> None:
    """Any batch size from one upwards gives finite float32 logits (N, K) without a graph."""
    adapter = make()
    for size in (1, 2, 8, 3, 1):
        (batch,) = _batches(adapter, 1, size)
        for logits in (adapter.predict(batch), adapter(batch)):
            _promise(logits.shape == (size, CLASSES), f"logits of {size} images must be (N, K)")
            _promise(bool(logits.isfinite().all()), f"logits of {size} images must be finite")
            _promise(logits.dtype == torch.float32, "logits must be float32")
            _promise(not logits.requires_grad, "logits must not carry a graph")


@_check
def leaves_the_model_alone(make: Make) -> None:
    """The caller's model stays as it is, byte for byte, hooks, modes and gradients included."""
    model = TinyClassifier().train()
    model.conv1.weight.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    flags = [parameter.requires_grad for parameter in model.parameters()]
    adapter = make(model)
    for batch in _batches(adapter, 3):
        adapter(batch)
    after = model.state_dict()
    unchanged = all(torch.equal(before[name], after[name].cpu()) for name in before)
    _promise(unchanged, "the model's weights and buffers must not change")
    _promise(all(module.training for module in model.modules()), "modes must not change")
    _promise(flags == [p.requires_grad for p in model.parameters()], "flags must not change")
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    _promise(not any(hooks), "the model must carry no hooks")
    _promise(all(p.grad is None for p in model.parameters()), "the model must have no gradients")


@_check
def leaves_global_randomness_alone(make: Make) -> None:
    """Neither draws from nor seeds the process's generators, and depends on its own seed only."""
    model = TinyClassifier()

    def states() -> list[Any]:
        kinds = [torch.get_rng_state(), np.random.get_state()[1]]  # type: ignore[index]  # noqa: NPY002
        if torch.cuda.is_available():
            kinds.append(torch.cuda.get_rng_state())
        return [random.getstate(), *(kind.tobytes() for kind in map(np.asarray, kinds))]

    outputs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = states()
        adapter = make(model, seed=7)
        outputs.append([adapter(batch) for batch in _batches(adapter, 3)])
        _promise(before == states(), "the process's random state must not change")
    same = all(torch.equal(one, other) for one, other in zip(*outputs, strict=True))
    _promise(same, "the same seed must give the same logits")


@_check
def predict_does_not_adapt(make: Make) -> None:
    """``predict`` changes nothing, and gives the same again."""
    adapter = make()
    first, second = _batches(adapter, 2)
    adapter(first)
    before = adapter.snapshot()
    logits = adapter.predict(second)
    _promise(same_state(before, adapter.snapshot()), "predict must not change the state")
    _promise(torch.equal(logits, adapter.predict(second)), "predict must be repeatable")


@_check
def resets_to_the_prepared_state(make: Make) -> None:
    """``reset`` returns bit-exactly to the prepared state."""
    adapter = make()
    prepared = adapter.snapshot()
    batches = _batches(adapter, 3)
    first = [adapter(batch) for batch in batches]
    _promise(adapter.reset() is adapter, "reset must return the adapter")
    _promise(same_state(prepared, adapter.snapshot()), "reset must return to the prepared state")
    again = [adapter(batch) for batch in batches]
    same = all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    _promise(same, "after reset the same batches must give the same logits")


@_check
def restores_snapshots(make: Make) -> None:
    """A snapshot is a copy, and ``restore`` returns to it bit-exactly."""
    adapter = make()
    batches = _batches(adapter, 4)
    adapter(batches[0])
    snapshot = adapter.snapshot()
    kept = copy.deepcopy(snapshot)
    first = [adapter(batch) for batch in batches[1:]]
    _promise(same_state(snapshot, kept), "a snapshot must not change while adapting goes on")
    adapter.restore(snapshot)
    _promise(same_state(snapshot, adapter.snapshot()), "restore must return to the snapshot")
    again = [adapter(batch) for batch in batches[1:]]
    same = all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    _promise(same, "after restore the same batches must give the same logits")
    _promise(same_state(snapshot, kept), "restoring must not hand out the snapshot's own tensors")


@_check
def continues_from_a_file(make: Make) -> None:
    """A run continued from a file equals the uninterrupted run, bit for bit, reset included."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        adapter = make()
        batches = _batches(adapter, 5)
        for batch in batches[:2]:
            adapter(batch)
        adapter.save(path)
        uninterrupted = [adapter(batch) for batch in batches[2:]]
        end = adapter.snapshot()
        adapter.reset()
        fresh = type(adapter)(TinyClassifier().to(batches[0].device), adapter.config)
        fresh.load(path, source=tiny_source())
        continued = [fresh(batch) for batch in batches[2:]]
        same = all(torch.equal(a, b) for a, b in zip(uninterrupted, continued, strict=True))
        _promise(same, "a run continued from a file must give the same logits")
        _promise(same_state(end, fresh.snapshot()), "and end in the same state")
        fresh.reset()
        _promise(same_state(adapter.snapshot(), fresh.snapshot()), "and reset to the same state")


@_check
def refuses_foreign_files(make: Make) -> None:
    """A file of another network, other options or no state at all is refused, state unchanged."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        adapter = make()
        adapter.save(path)
        other = make(TinyClassifier(width=10))
        before = other.snapshot()
        _raises(StateError, "network", lambda: other.load(path))
        seeded = make(seed=99)
        _raises(StateError, "seed", lambda: seeded.load(path))
        path.write_bytes(path.read_bytes()[:-7])
        _raises(StateError, "damaged", lambda: adapter.load(path))
        _raises(StateError, "no state file", lambda: adapter.load(path.with_name("none")))
        _promise(same_state(before, other.snapshot()), "a refused file must change nothing")
        _raises(StateError, "does not exist", lambda: adapter.save(Path(folder) / "no" / "x"))
        _promise([entry.name for entry in Path(folder).iterdir()] == [path.name], "no litter")


@_check
def works_in_every_grad_mode(make: Make) -> None:
    """``no_grad`` and ``inference_mode``, with tensors made in it, give the same logits."""
    plain, guarded, inferring = make(), make(), make()
    for batch in _batches(plain, 2):
        expected = plain(batch)
        with torch.no_grad():
            _promise(torch.equal(expected, guarded(batch)), "no_grad must not matter")
        with torch.inference_mode():
            _promise(torch.equal(expected, inferring(batch.clone())), "nor inference_mode")
    with torch.inference_mode():
        inside = make()
        (batch,) = _batches(inside, 1)
        _promise(bool(inside(batch).isfinite().all()), "adapters can be made in inference_mode")


@_check
def ignores_train_and_eval(make: Make) -> None:
    """The networks' modes belong to the method: ``train`` and ``eval`` change nothing."""
    plain, switched = make(), make()
    for batch in _batches(plain, 2):
        switched.train()
        _promise(torch.equal(plain(batch), switched(batch)), "train() must not matter")
        switched.eval()


@_check
def runs_in_bfloat16(make: Make) -> None:
    """The caller's autocast and ``precision="bf16"`` agree; logits stay float32 and finite."""
    chosen, surrounded, plain = make(precision="bf16"), make(), make()
    device = next(chosen.student.parameters()).device.type
    for batch in _batches(chosen, 3):
        expected = chosen(batch)
        # One context around several batches: weights cached by autocast would go stale.
        with torch.autocast(device, torch.bfloat16):
            logits = surrounded(batch) if chosen.needs_source is False else expected
        _promise(expected.dtype == torch.float32, "logits must be float32")
        _promise(bool(expected.isfinite().all()), "logits must be finite in bfloat16")
        _promise(torch.equal(expected, logits), "autocast and precision='bf16' must agree")
        close = torch.allclose(expected, plain(batch), atol=0.3)
        _promise(close, "bfloat16 must stay close to float32")


@_check
def refuses_wrong_images(make: Make) -> None:
    """Wrong images get an error in the user's words, and the state stays as it was."""
    adapter = make()
    (batch,) = _batches(adapter, 1)
    adapter(batch)
    before = adapter.snapshot()
    wrong: list[tuple[Any, str]] = [
        ([[0.0]], "4-D float tensor"),
        (batch[0], "batch dimension"),
        ((batch * 255).to(torch.uint8), "/ 255"),
        (batch[:0], "at least one image"),
        (batch[:, :1], "channels"),
        (batch * 2 - 1, "Normalized"),
        (batch.clone().index_fill_(0, torch.tensor(0, device=batch.device), torch.nan), "NaN"),
        (batch.clone().index_fill_(0, torch.tensor(0, device=batch.device), torch.inf), "[0, 1]"),
    ]
    for images, words in wrong:
        for call in (adapter, adapter.predict):
            _raises(InputError, words, lambda call=call, images=images: call(images))  # type: ignore[misc]
    _promise(same_state(before, adapter.snapshot()), "a refused batch must change nothing")


@_check
def refuses_wrong_options(make: Make) -> None:
    """Unknown options are refused with the nearest name, wrong values with what is accepted."""
    _raises(AcclimateError, "'seed'", lambda: make(sead=1))
    _raises(AcclimateError, "'seed' option", lambda: make(seed=-1))
    _raises(AcclimateError, "'window' option", lambda: make(window=0))
    _raises(AcclimateError, "nn.Module", lambda: make.__call__(model=_NotAModule()))  # type: ignore[arg-type]
    _raises(AcclimateError, "no parameters", lambda: make(nn.Flatten()))


class _NotAModule:
    def to(self, device: str) -> "_NotAModule":
        return self


@_check
def asks_for_preparation(make: Make) -> None:
    """A method that needs source data says so when it is used without, and only then."""
    ready = make()
    adapter = type(ready)(
        TinyClassifier().to(next(ready.student.parameters()).device), ready.config
    )
    (batch,) = _batches(adapter, 1)
    if not adapter.needs_source:
        _promise(bool(adapter(batch).isfinite().all()), "it must work unprepared")
        _promise(adapter.prepare() is adapter, "prepare must return the adapter")
        return
    for call in (
        lambda: adapter(batch),
        lambda: adapter.predict(batch),
        adapter.snapshot,
        adapter.reset,
        adapter.export,
    ):
        _raises(NotPreparedError, "prepare(source)", call)
    images, labels = tiny_source()
    _raises(InputError, "class indices", lambda: adapter.prepare((images, labels + CLASSES)))
    _raises(InputError, "class indices", lambda: adapter.prepare((images, labels - 1)))
    _raises(InputError, "Normalized", lambda: adapter.prepare((images * 2 - 1, labels)))
    _raises(NotPreparedError, "prepare(source)", lambda: adapter(batch))
    adapter.prepare(tiny_source())
    _promise(torch.equal(adapter(batch), ready(batch)), "a failed prepare must leave no trace")
    _raises(StateError, "prepared already", lambda: adapter.prepare(tiny_source()))


@_check
def slides_over_single_images(make: Make) -> None:
    """A window takes images one at a time or many at once, alike, and survives a snapshot."""
    single, many = make(window=3), make(window=3)
    (batch,) = _batches(single, 1, size=7)
    rows = torch.cat([single(row) for row in batch.split(1)])
    _promise(torch.equal(rows, many(batch)), "one at a time or at once must not matter")
    _promise(same_state(single.snapshot(), many.snapshot()), "and must end in the same state")
    snapshot = single.snapshot()
    (more,) = _batches(single, 1, size=4, seed=1)
    expected = single(more)
    _promise(torch.equal(expected, single.restore(snapshot)(more)), "restore must bring it back")
    before = single.snapshot()
    single.predict(more)
    _promise(same_state(before, single.snapshot()), "predict must not enter the window")


@_check
def exports_what_it_predicts(make: Make) -> None:
    """The exported module is plain, independent, and predicts as ``predict`` does on batches."""
    adapter = make(precision="fp32", window=None)
    first, second = _batches(adapter, 2)
    adapter(first)
    module = adapter.export()
    _promise(not isinstance(module, Adapter), "the export must not be an adapter")
    with torch.no_grad():
        exported = module(second)
        _promise(torch.equal(exported, adapter.predict(second)), "it must predict alike")
        adapter(first)
        _promise(torch.equal(exported, module(second)), "adapting on must not change it")
        _promise(torch.equal(exported, module.eval()(second)), "eval() must not change it")


@_check
def reports_steps(make: Make) -> None:
    """Observers hear of every step, do not change it, and can leave."""
    watched, unwatched = make(window=None), make(window=None)
    reports: list[StepReport] = []
    handle = watched.observe(reports.append)
    first, second = _batches(watched, 2)
    same = torch.equal(watched(first), unwatched(first))
    _promise(same, "an observer must not change what happens")
    _promise(len(reports) >= 1, "every batch must be reported")
    for report in reports:
        _promise(report.batch == 0 and report.entropy >= 0, "the report must fit the batch")
        trained = report.loss is not None
        _promise(trained == (watched.trains != "nothing"), "a loss is what training has")
        _promise((report.update_norm > 0) <= trained, "only training moves parameters")
    handle.remove()
    heard = len(reports)
    _promise(torch.equal(watched(second), unwatched(second)), "nor must its leaving")
    _promise(len(reports) == heard, "a removed observer must hear nothing")
