import numpy as np
import torch

import acclimate
from acclimate.bench.compare import compare
from acclimate.data.streams import Domain, continual
from acclimate.testing import TinyClassifier


def stream():
    rng = np.random.default_rng(0)
    domains = [
        Domain(name, rng.integers(0, 256, (7, 8, 8, 3), np.uint8), rng.integers(0, 5, 7))
        for name in ("fog", "snow")
    ]
    return list(continual(domains, batch_size=3))


def test_every_method_sees_the_whole_stream_as_if_alone() -> None:
    adapters = {"a": acclimate.Source(TinyClassifier()), "b": acclimate.Tent(TinyClassifier())}
    *_, runs = compare(adapters, stream())
    alone = acclimate.Tent(TinyClassifier())
    wrong = [(alone(x.x_NCHW).argmax(1) != x.y_N).sum().item() for x in stream()]
    assert [batch.wrong for batch in runs[1].batches] == wrong
    assert [batch.domain for batch in runs[1].batches] == ["fog"] * 3 + ["snow"] * 3
    assert [batch.images for batch in runs[0].batches] == [3, 3, 1, 3, 3, 1]
    source = TinyClassifier()
    with torch.no_grad():
        first = sum((source(x.x_NCHW).argmax(1) != x.y_N).sum().item() for x in stream()[:3])
    assert runs[0].errors()["fog"] == 100 * first / 7


def test_runs_grow_batch_by_batch_in_the_order_of_the_methods() -> None:
    adapters = {"a": acclimate.Source(TinyClassifier()), "b": acclimate.BN1(TinyClassifier())}
    sizes = [[len(run.batches) for run in runs] for runs in compare(adapters, stream()[:2])]
    assert sizes == [[1, 0], [1, 1], [2, 1], [2, 2]]


def test_a_run_says_which_method_and_options_it_is_of() -> None:
    *_, (run,) = compare({"slow": acclimate.Tent(TinyClassifier(), lr=1e-5)}, stream()[:1])
    assert (run.method, run.label, run.options["lr"]) == ("tent", "slow", 1e-5)
    assert run.seconds() > 0
