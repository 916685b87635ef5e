"""Checks of images and labels, in the words of the person who passed them."""

import torch
from torch import Tensor

from acclimate.errors import InputError

__all__ = ["check_images", "check_labels"]


def check_images(images: object, what: str, channels: int | None = None) -> Tensor:
    """Return ``images`` if it is a batch (N, C, H, W) of floats in [0, 1], else explain."""
    wanted = "a 4-D float tensor (N, C, H, W) with values in [0, 1]"
    if not isinstance(images, Tensor):
        raise InputError(f"{what} must be {wanted}. Got {type(images).__name__} instead.")
    shape = tuple(images.shape)
    if images.ndim != 4:
        hint = " Add a batch dimension with images[None]." if images.ndim == 3 else ""
        raise InputError(f"{what} must be {wanted}. Got the shape {shape} instead.{hint}")
    if not images.is_floating_point():
        raise InputError(
            f"{what} must be {wanted}. Got {images.dtype} instead. "
            "Convert pixels with images.float() / 255."
        )
    if images.numel() == 0:
        raise InputError(f"{what} must hold at least one image. Got the shape {shape} instead.")
    if channels is not None and shape[1] != channels:
        raise InputError(f"{what} must have {channels} channels. Got {shape[1]} ({shape}) instead.")
    # As one tensor, so that a GPU is waited for once.
    low, high = torch.stack(torch.aminmax(images)).tolist()
    if low != low or high != high:
        raise InputError(f"{what} must be finite. Got NaN among the values of {shape}.")
    if low < 0 or high > 1:
        raise InputError(
            f"{what} must lie in [0, 1]. Got values from {low:.9g} to {high:.9g}. Normalisation "
            "belongs to the model: wrap it in acclimate.Normalized(model, mean, std) and pass "
            "the pixels as they are, divided by 255."
        )
    return images


def check_labels(labels: object, images: Tensor, classes: int) -> Tensor:
    """Return ``labels`` as int64 if there is one class index per image, else explain."""
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        got = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise InputError(f"Source labels must be a tensor of class indices. Got {got} instead.")
    if labels.shape != images.shape[:1]:
        raise InputError(
            f"Source labels must be one class index per image, shape ({len(images)},). "
            f"Got the shape {tuple(labels.shape)} instead."
        )
    low, high = torch.stack(torch.aminmax(labels)).tolist()
    if low < 0 or high >= classes:
        raise InputError(
            f"Source labels must be class indices from 0 to {classes - 1}, as the model has "
            f"{classes} classes. Got labels from {low} to {high}."
        )
    return labels.long()
