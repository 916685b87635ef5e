"""The common corruptions of Hendrycks and Dietterich (2019), as functions of arrays.

The 15 corruptions of CIFAR-10-C and ImageNet-C and the 4 they keep for validation, each at five
severities, for images of any size. Nothing but NumPy, OpenCV and Pillow is needed: scikit-image's
and ImageMagick's share of the original is done here, quirks included where they show in the
statistics. What is not the original's:

- An image's randomness follows from the image, not from its place in a data set.
- Images need not be square; what the original does with the side is done with each axis.
- Frost on an image larger than its photographs is a part of one, enlarged; fog repeats itself on
  an image of more than 4,096 pixels a side.
- Water that does not spatter on a small image leaves it as it was, not black, and liquid beyond
  white stays white, where the original's overflows.

Reference: "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
https://arxiv.org/abs/1903.12261.
"""

from acclimate.corruptions.api import corrupt
from acclimate.corruptions.constants import CORRUPTIONS, EXTRA_CORRUPTIONS

__all__ = ["CORRUPTIONS", "EXTRA_CORRUPTIONS", "corrupt"]
