"""Freed memory stays with the process: steps that allocate the same tensors again then meet no page faults."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_OWN_MAPPING = (2**27, 2**25)  # bytes; above, a block is mapped alone, or large tensors would leave holes in the heap


def keep_freed_memory() -> bool:
    """Tell malloc to keep what is freed instead of giving it back to the kernel; for a process that trains on a CPU.

    Every step of a training loop frees hundreds of megabytes and asks for them again. By default glibc returns them,
    and each page of 4 KiB costs a fault and is zeroed at its next use: more for per-example gradients than for training
    without privacy, and much more on virtual machines whose host takes free pages back. From this call on the resident
    size stays at its peak until the process ends; tensors of 128 MiB and more (32 MiB in older versions of glibc) are
    still given back, and the GPU's allocator is not concerned. Call it before the first step; the commands of
    `optnoise` that train do. Returns whether glibc's malloc took it: False without glibc. A malloc that is preloaded in
    its place is not concerned either.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library, such as musl
        return False
    # mallopt(3): trimming is off at −1. Older versions refuse thresholds above 32 MiB by returning 0.
    return bool(mallopt(_M_TRIM_THRESHOLD, -1)) and any(mallopt(_M_MMAP_THRESHOLD, size) for size in _OWN_MAPPING)
