"""Advice to the C library's allocator that makes training on a CPU faster."""

import ctypes
import sys

__all__ = ["keep_freed_memory"]

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_memory() -> bool:
    """Let this process keep the memory it frees, so that the next step need not ask for it anew.

    An update step frees some hundreds of megabytes of activations. By default glibc returns them
    to the system, which hands them out again page by page in the next step: docs/performance.md
    says what that costs. The advice holds for the whole process, which is why nothing in
    acclimate calls this unasked except its own commands.

    Returns:
        Whether the allocator took the advice; False where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    largest = 32 << 20  # glibc's maximum for blocks that are taken from the heap
    return bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1) and mallopt(_M_MMAP_THRESHOLD, largest))
