"""Losses against hand-computed values, slow plain-Python versions and autograd in float64."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from acclimate import losses

PAIRED = [losses.cross_entropy, losses.reverse_cross_entropy, losses.symmetric_cross_entropy]


def logits(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def softmax(row: list[float]) -> list[float]:
    total = sum(math.exp(value) for value in row)
    return [math.exp(value) / total for value in row]


def plain_cross_entropy(p: list[float], q: list[float]) -> float:
    return -sum(b * math.log(a) for a, b in zip(softmax(p), softmax(q), strict=True))


def test_entropy_by_hand() -> None:
    # Probabilities 1/2, 1/4, 1/4 have 1.5 bits.
    row = torch.tensor([[2.0, 1.0, 1.0]]).log()
    torch.testing.assert_close(losses.entropy(row), torch.tensor([1.5 * math.log(2)]))


def test_cross_entropy_by_hand() -> None:
    p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.8, 0.2]]).log()
    log2 = torch.tensor([math.log(2)])
    reverse = torch.tensor([-(math.log(0.8) + math.log(0.2)) / 2])
    torch.testing.assert_close(losses.cross_entropy(p, q), log2)
    torch.testing.assert_close(losses.reverse_cross_entropy(p, q), reverse)
    torch.testing.assert_close(losses.symmetric_cross_entropy(p, q), log2 + reverse)


def test_paired_losses_against_plain_python() -> None:
    p, q = logits(5, 4), logits(5, 4, seed=1)
    forth = [plain_cross_entropy(a, b) for a, b in zip(p.tolist(), q.tolist(), strict=True)]
    back = [plain_cross_entropy(b, a) for a, b in zip(p.tolist(), q.tolist(), strict=True)]
    expected = [forth, back, [a + b for a, b in zip(forth, back, strict=True)]]
    for loss, values in zip(PAIRED, expected, strict=True):
        torch.testing.assert_close(loss(p, q), torch.tensor(values, dtype=torch.float64))


@pytest.mark.parametrize("loss", PAIRED)
def test_paired_gradients(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    p, q = logits(3, 4).requires_grad_(), logits(3, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(loss, (p, q))


def test_reverse_cross_entropy_has_the_papers_gradient() -> None:
    """Paper, eq. 5: dL/dz_j = p_j (sum_c p_c log q_c - log q_j)."""
    z, q_logits = logits(1, 5).requires_grad_(), logits(1, 5, seed=1)
    losses.reverse_cross_entropy(z, q_logits).sum().backward()
    p, log_q = z.detach().softmax(1), q_logits.log_softmax(1)
    torch.testing.assert_close(z.grad, p * ((p * log_q).sum() - log_q))


def test_symmetric_gradient_in_the_binary_case() -> None:
    """Paper, eq. 4: the derivative by p is (p - q) / (p - p²) + log(1/q - 1)."""
    p = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    q = torch.tensor(0.9, dtype=torch.float64)
    pair = [torch.stack([value, 1 - value]).log()[None] for value in (p, q)]
    losses.symmetric_cross_entropy(*pair).sum().backward()
    expected = (0.7 - 0.9) / (0.7 - 0.49) + math.log(1 / 0.9 - 1)
    assert p.grad is not None
    assert p.grad.item() == pytest.approx(expected)


def test_contrastive_against_plain_python() -> None:
    views, temperature = logits(4, 3, 6), 0.2
    z = [[v / math.hypot(*row) for v in row] for row in views.flatten(0, 1).tolist()]

    def similarity(i: int, j: int) -> float:
        return sum(a * b for a, b in zip(z[i], z[j], strict=True)) / temperature

    expected = []
    for sample in range(4):
        total = 0.0
        for view in range(3):
            i = 3 * sample + view
            everything = sum(math.exp(similarity(i, a)) for a in range(12) if a != i)
            for v in range(3 * sample, 3 * sample + 3):
                if v != i:
                    total -= (similarity(i, v) - math.log(everything)) / 2
        expected.append(total / 3)
    ours = losses.contrastive(views, temperature)
    torch.testing.assert_close(ours, torch.tensor(expected, dtype=torch.float64))


def test_contrastive_gradient() -> None:
    views = logits(2, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: losses.contrastive(x, 0.5), views)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1e4, 1.0])
def test_extreme_logits_stay_finite(dtype: torch.dtype, size: float) -> None:
    rows = [[size, -size, 0.0], [-size, size, size], [0.0, 0.0, 0.0], [-size, -size, -size]]
    p = torch.tensor(rows, dtype=dtype, requires_grad=True)
    q = p.detach().flip(0)
    for value in (losses.entropy(p), *(loss(p, q) for loss in PAIRED)):
        assert value.dtype == torch.float32
        assert value.isfinite().all()
        (gradient,) = torch.autograd.grad(value.sum(), p)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_features_stay_finite(dtype: torch.dtype) -> None:
    views = torch.zeros(3, 3, 4, dtype=dtype)
    views[0] = 1e4
    views[1] = -1e4
    views.requires_grad_()
    for temperature in (0.01, 1.0):
        value = losses.contrastive(views, temperature)
        assert value.isfinite().all()
        (gradient,) = torch.autograd.grad(value.sum(), views)
        assert gradient.isfinite().all()


def test_one_value_per_sample() -> None:
    p, q = logits(7, 3), logits(7, 3, seed=1)
    for value in (
        losses.entropy(p),
        losses.cross_entropy(p, q),
        losses.contrastive(p[:, None].expand(7, 2, 3), 1),
    ):
        assert value.shape == (7,)


def test_wrong_shapes_are_explained() -> None:
    with pytest.raises(ValueError, match=r"\(samples, classes\)"):
        losses.entropy(torch.zeros(3))
    with pytest.raises(ValueError, match="same shape"):
        losses.cross_entropy(torch.zeros(2, 3), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="views >= 2"):
        losses.contrastive(torch.zeros(2, 1, 3), 0.1)
    with pytest.raises(ValueError, match="temperature"):
        losses.contrastive(torch.zeros(2, 2, 3), 0.0)


def test_info_nce_against_plain_python() -> None:
    query, key, negatives = logits(4, 6), logits(4, 6, seed=1), logits(7, 6, seed=2)
    negatives = negatives / negatives.norm(dim=1, keepdim=True)
    ignored = logits(4, 7, seed=3) > 0.5
    ignored[0], ignored[1] = False, True
    ours = losses.info_nce(query, key, negatives, ignored, temperature=0.3)

    def cosine(a: list[float], b: list[float]) -> float:
        lengths = math.hypot(*a) * math.hypot(*b)
        return sum(x * y for x, y in zip(a, b, strict=True)) / lengths

    for i in range(4):
        positive = math.exp(cosine(query[i].tolist(), key[i].tolist()) / 0.3)
        total = positive
        for m in range(7):
            if not ignored[i, m]:
                total += math.exp(cosine(query[i].tolist(), negatives[m].tolist()) / 0.3)
        assert ours[i].item() == pytest.approx(-math.log(positive / total), rel=1e-12)
    assert ours[1].item() == 0  # nothing to be told from


def test_info_nce_gradient() -> None:
    query, key = logits(3, 4).requires_grad_(), logits(3, 4, seed=1)
    negatives, ignored = logits(5, 4, seed=2), logits(3, 5, seed=3) > 0
    ignored[0] = True

    def loss(q: Tensor) -> Tensor:
        return losses.info_nce(q, key, negatives, ignored, 0.5)

    assert torch.autograd.gradcheck(loss, query)
    loss(query).sum().backward()
    assert query.grad.isfinite().all()


def test_info_nce_takes_half_precision_and_refuses_other_shapes() -> None:
    query, ignored = logits(3, 4).to(torch.bfloat16), torch.zeros(3, 2, dtype=torch.bool)
    assert losses.info_nce(query, query, query[:2], ignored, 0.1).dtype == torch.float32
    with pytest.raises(ValueError, match="same shape"):
        losses.info_nce(query, query[:2], query[:2], ignored, 0.1)
    with pytest.raises(ValueError, match="above 0"):
        losses.info_nce(query, query, query[:2], ignored, 0.0)


def test_diversity_by_hand() -> None:
    p = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.5 - 1e-9, 1e-9]], dtype=torch.float64)
    mean = [0.5, 0.375, 0.125]
    expected = -sum(value * math.log(value + 1e-8) for value in mean)
    assert losses.diversity(p.log()).item() == pytest.approx(expected, rel=1e-8)
    # A class that is never predicted counts as next to nothing, not as NaN.
    certain = torch.tensor([[1e4, -1e4]], requires_grad=True)
    losses.diversity(certain).backward()
    assert certain.grad.isfinite().all()


def test_diversity_gradient() -> None:
    assert torch.autograd.gradcheck(losses.diversity, logits(4, 5).requires_grad_())
