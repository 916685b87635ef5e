r"""The mathematics of the methods: pure functions that return one value per sample.

Only :func:`diversity` is of a whole batch. Shapes: N samples, K classes, V views, D feature
dimensions, M negatives.

Logits may be float16, bfloat16, float32 or float64. Half-precision logits are computed in
float32. Everything goes through log-softmax, so that logits of ±1e4 give finite values and
finite gradients.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = [
    "contrastive",
    "cross_entropy",
    "diversity",
    "entropy",
    "info_nce",
    "reverse_cross_entropy",
    "symmetric_cross_entropy",
]


def entropy(logits_NK: Tensor) -> Tensor:
    r"""Entropy of the softmax prediction, the loss of TENT.

    .. math:: H(p) = -\sum_{c=1}^{K} p_c \log p_c

    Args:
        logits_NK: logits of the prediction :math:`p`.

    Returns:
        The entropy of each sample in nats, shape ``(N,)``.

    >>> entropy(torch.zeros(1, 2))
    tensor([0.6931])
    """
    log_p_NK = _log_softmax(logits_NK, "logits_NK")
    return -(log_p_NK.exp() * log_p_NK).sum(1)


def cross_entropy(logits_NK: Tensor, target_NK: Tensor) -> Tensor:
    r"""Cross-entropy of a prediction under a target prediction (paper, eq. 1).

    .. math:: L_{CE}(q, p) = -\sum_{c=1}^{K} q_c \log p_c

    Args:
        logits_NK: logits of the student's prediction :math:`p`.
        target_NK: logits of the teacher's prediction :math:`q`.

    Returns:
        The loss of each sample, shape ``(N,)``.

    >>> cross_entropy(torch.zeros(1, 2), torch.tensor([[3.0, 0.0]]))
    tensor([0.6931])
    """
    log_p_NK, log_q_NK = _pair(logits_NK, target_NK)
    return -(log_q_NK.exp() * log_p_NK).sum(1)


def reverse_cross_entropy(logits_NK: Tensor, target_NK: Tensor) -> Tensor:
    r"""Cross-entropy with the roles of student and teacher exchanged (paper, eq. 3, second sum).

    .. math:: L_{RCE}(q, p) = -\sum_{c=1}^{K} p_c \log q_c

    Args:
        logits_NK: logits of the student's prediction :math:`p`.
        target_NK: logits of the teacher's prediction :math:`q`.

    Returns:
        The loss of each sample, shape ``(N,)``.

    >>> reverse_cross_entropy(torch.tensor([[3.0, 0.0]]), torch.zeros(1, 2))
    tensor([0.6931])
    """
    return cross_entropy(target_NK, logits_NK)


def symmetric_cross_entropy(logits_NK: Tensor, target_NK: Tensor) -> Tensor:
    r"""Symmetric cross-entropy, the consistency loss of RMT (paper, eq. 3).

    .. math:: L_{SCE}(q, p) = -\sum_{c=1}^{K} q_c \log p_c - \sum_{c=1}^{K} p_c \log q_c

    Args:
        logits_NK: logits of the student's prediction :math:`p`.
        target_NK: logits of the teacher's prediction :math:`q`.

    Returns:
        The loss of each sample, shape ``(N,)``.

    >>> symmetric_cross_entropy(torch.zeros(1, 2), torch.zeros(1, 2))
    tensor([1.3863])
    """
    log_p_NK, log_q_NK = _pair(logits_NK, target_NK)
    return -(log_q_NK.exp() * log_p_NK + log_p_NK.exp() * log_q_NK).sum(1)


def contrastive(views_NVD: Tensor, temperature: float) -> Tensor:
    r"""Multi-view contrastive loss (paper, eq. 7), averaged over positives and anchors.

    .. math::

        L_{CL} = -\frac{1}{|I|} \sum_{i \in I} \frac{1}{|V(i)|} \sum_{v \in V(i)} \log
        \frac{\exp(\mathrm{sim}(z_i, z_v) / \tau)}
        {\sum_{a \in I \setminus \{i\}} \exp(\mathrm{sim}(z_i, z_a) / \tau)}

    Every view of every sample is an anchor; its positives are the other views of the same
    sample, and all remaining views of the batch stand in the denominator.

    Args:
        views_NVD: V views of each sample; they are normalised to unit length here.
        temperature: :math:`\tau`, above 0.

    Returns:
        The loss of each sample, averaged over its views, shape ``(N,)``.

    >>> contrastive(torch.ones(1, 3, 4), temperature=0.1)
    tensor([0.6931])
    """
    if views_NVD.ndim != 3 or views_NVD.shape[1] < 2:
        raise ValueError(
            "views_NVD must have the shape (samples, views >= 2, dimensions). "
            f"Got {tuple(views_NVD.shape)} instead."
        )
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0. Got {temperature!r} instead.")
    n, v, _ = views_NVD.shape
    z_MD = F.normalize(_at_least_float32(views_NVD), dim=2).flatten(0, 1)
    similarity_MM = (z_MD @ z_MD.T) / temperature
    itself_MM = torch.eye(n * v, dtype=torch.bool, device=z_MD.device)
    log_all_M = similarity_MM.masked_fill(itself_MM, -torch.inf).logsumexp(1)
    # The positives of a sample's views lie in its own V×V block on the diagonal.
    block_NVV = similarity_MM.view(n, v, n, v).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    positives_NV = block_NVV.sum(2) - block_NVV.diagonal(dim1=1, dim2=2)
    return (log_all_M.view(n, v) - positives_NV / (v - 1)).mean(1)


def info_nce(
    query_ND: Tensor, key_ND: Tensor, negatives_MD: Tensor, ignored_NM: Tensor, temperature: float
) -> Tensor:
    r"""Contrast each query with its key and with negatives, the InfoNCE loss of AdaContrast.

    .. math::

        L(q, k) = -\log \frac{\exp(q \cdot k / \tau)}
        {\exp(q \cdot k / \tau) + \sum_{m} \exp(q \cdot n_m / \tau)}

    Args:
        query_ND: queries; they are normalised to unit length here.
        key_ND: a key for each query; they are normalised to unit length here.
        negatives_MD: negatives of unit length, the same for all queries.
        ignored_NM: which negatives a query is not contrasted with.
        temperature: :math:`\tau`, above 0.

    Returns:
        The loss of each query, shape ``(N,)``.

    >>> one = torch.ones(1, 1)
    >>> info_nce(one, one, one, torch.tensor([[False]]), temperature=0.07)
    tensor([0.6931])
    """
    if query_ND.shape != key_ND.shape or query_ND.shape[1:] != negatives_MD.shape[1:]:
        raise ValueError(
            "query_ND and key_ND must have the same shape, and negatives_MD as many dimensions. "
            f"Got {tuple(query_ND.shape)}, {tuple(key_ND.shape)}, {tuple(negatives_MD.shape)}."
        )
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0. Got {temperature!r} instead.")
    query_ND = F.normalize(_at_least_float32(query_ND)) / temperature
    positive_N = (query_ND * F.normalize(_at_least_float32(key_ND))).sum(1)
    negative_NM = (query_ND @ negatives_MD.to(query_ND).T).masked_fill(ignored_NM, -torch.inf)
    return torch.logaddexp(positive_N, negative_NM.logsumexp(1)) - positive_N


def diversity(logits_NK: Tensor) -> Tensor:
    r"""Entropy of the mean prediction of a batch: high where all classes are predicted.

    .. math:: H(\bar p) = -\sum_{c=1}^{K} \bar p_c \log(\bar p_c + 10^{-8}),
        \quad \bar p = \frac{1}{N} \sum_{i=1}^{N} p_i

    Args:
        logits_NK: logits of the predictions :math:`p_i`.

    Returns:
        The entropy in nats, a scalar.

    >>> diversity(torch.tensor([[9.0, -9.0], [-9.0, 9.0]]))
    tensor(0.6931)
    """
    mean_K = _log_softmax(logits_NK, "logits_NK").exp().mean(0)
    return -(mean_K * (mean_K + 1e-8).log()).sum()


def _pair(logits_NK: Tensor, target_NK: Tensor) -> tuple[Tensor, Tensor]:
    if logits_NK.shape != target_NK.shape:
        raise ValueError(
            "logits_NK and target_NK must have the same shape. "
            f"Got {tuple(logits_NK.shape)} and {tuple(target_NK.shape)} instead."
        )
    return _log_softmax(logits_NK, "logits_NK"), _log_softmax(target_NK, "target_NK")


def _log_softmax(logits_NK: Tensor, name: str) -> Tensor:
    if logits_NK.ndim != 2:
        raise ValueError(
            f"{name} must have the shape (samples, classes). Got {tuple(logits_NK.shape)} instead."
        )
    return _at_least_float32(logits_NK).log_softmax(1)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
