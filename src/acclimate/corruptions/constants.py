"""How strong each corruption is: five severities for CIFAR-10-C and five for ImageNet-C.

Lengths are in pixels, intensities in fractions of the full range. The values do not scale with
the image: the row "cifar" was made for images of 32×32, the row "imagenet" for 224×224.
"""

__all__ = ["CORRUPTIONS", "EXTRA_CORRUPTIONS", "TABLE"]

Parameters = tuple[float, ...]

CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
"""The 15 corruptions of the benchmarks, in their order."""

EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""The 4 corruptions that the benchmarks keep for validation."""


def _single(*values: float) -> tuple[Parameters, ...]:
    return tuple((value,) for value in values)


TABLE: dict[str, dict[str, tuple[Parameters, ...]]] = {
    # standard deviation
    "gaussian_noise": {
        "cifar": _single(0.04, 0.06, 0.08, 0.09, 0.10),
        "imagenet": _single(0.08, 0.12, 0.18, 0.26, 0.38),
    },
    # photons a white pixel receives
    "shot_noise": {
        "cifar": _single(500, 250, 100, 75, 50),
        "imagenet": _single(60, 25, 12, 5, 3),
    },
    # fraction of the values replaced
    "impulse_noise": {
        "cifar": _single(0.01, 0.02, 0.03, 0.05, 0.07),
        "imagenet": _single(0.03, 0.06, 0.09, 0.17, 0.27),
    },
    # radius of the disk, sigma that smooths its edge
    "defocus_blur": {
        "cifar": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        "imagenet": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    },
    # sigma of the blur before and after, reach of a shift, sweeps
    "glass_blur": {
        "cifar": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        "imagenet": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    },
    # radius, sigma
    "motion_blur": {
        "cifar": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        "imagenet": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    },
    # where the zoom factors end, their step
    "zoom_blur": {
        "cifar": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        "imagenet": ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    },
    # flakes: mean, deviation, zoom, threshold, radius and sigma of their motion;
    # share of the image that is not whitened
    "snow": {
        "cifar": (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        "imagenet": (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    },
    # weight of the image, weight of the frost, scale of the photograph
    "frost": {
        "cifar": (
            (1, 0.2, 0.2),
            (1, 0.3, 0.2),
            (0.9, 0.4, 0.2),
            (0.85, 0.4, 0.2),
            (0.75, 0.45, 0.2),
        ),
        "imagenet": ((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
    },
    # density, factor by which the fog's details shrink from scale to scale
    "fog": {
        "cifar": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        "imagenet": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    },
    # added to the value of HSV
    "brightness": {
        "cifar": _single(0.05, 0.1, 0.15, 0.2, 0.3),
        "imagenet": _single(0.1, 0.2, 0.3, 0.4, 0.5),
    },
    # factor
    "contrast": {
        "cifar": _single(0.75, 0.5, 0.4, 0.3, 0.15),
        "imagenet": _single(0.4, 0.3, 0.2, 0.1, 0.05),
    },
    # amplitude and sigma of the displacement, reach of the affine map's three points
    "elastic_transform": {
        "cifar": (
            (0, 0, 32 * 0.08),
            (32 * 0.05, 32 * 0.2, 32 * 0.07),
            (32 * 0.08, 32 * 0.06, 32 * 0.06),
            (32 * 0.1, 32 * 0.04, 32 * 0.05),
            (32 * 0.1, 32 * 0.03, 32 * 0.03),
        ),
        # 244 is the original's, for images of 224.
        "imagenet": (
            (244 * 2, 244 * 0.7, 244 * 0.1),
            (244 * 2, 244 * 0.08, 244 * 0.2),
            (244 * 0.05, 244 * 0.01, 244 * 0.02),
            (244 * 0.07, 244 * 0.01, 244 * 0.02),
            (244 * 0.12, 244 * 0.01, 244 * 0.02),
        ),
    },
    # scale of the small image
    "pixelate": {
        "cifar": _single(0.95, 0.9, 0.85, 0.75, 0.65),
        "imagenet": _single(0.6, 0.5, 0.4, 0.3, 0.25),
    },
    # JPEG quality
    "jpeg_compression": {
        "cifar": _single(80, 65, 58, 50, 40),
        "imagenet": _single(25, 18, 15, 10, 7),
    },
    # standard deviation in a white pixel
    "speckle_noise": {
        "cifar": _single(0.06, 0.1, 0.12, 0.16, 0.2),
        "imagenet": _single(0.15, 0.2, 0.35, 0.45, 0.6),
    },
    # sigma
    "gaussian_blur": {
        "cifar": _single(0.4, 0.6, 0.7, 0.8, 1),
        "imagenet": _single(1, 2, 3, 4, 6),
    },
    # liquid: mean, deviation, sigma, threshold; opacity of water or sigma of mud, whether mud
    "spatter": {
        "cifar": (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
        "imagenet": (
            (0.65, 0.3, 4, 0.69, 0.6, 0),
            (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ),
    },
    # factor of the saturation of HSV, added to it
    "saturate": {
        "cifar": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        "imagenet": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    },
}
"""The parameters of each corruption at severities 1 to 5, in the order of its function."""
