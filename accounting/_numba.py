"""The one numba alias of this package: cached, IEEE division, never fastmath (infinity carries meaning here)."""

from __future__ import annotations

from typing import Any

import numba


def njit(*, parallel: bool = False) -> Any:
    """Decorator: compile on first call, keep the machine code on disk, release the GIL."""
    return numba.njit(cache=True, error_model="numpy", nogil=True, parallel=parallel)


FEW_CELLS = 8
"""Up to here a loop over cells runs in the caller's thread: a refinement asks for one cell thousands of times, and
waking threads costs more than the cell, much more on a busy machine."""
