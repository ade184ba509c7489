"""The one numba alias of this package: cached, IEEE division, never fastmath (infinity carries meaning here)."""

from __future__ import annotations

from typing import Any

import numba


def njit(*, parallel: bool = False) -> Any:
    """Decorator: compile on first call, keep the machine code on disk, release the GIL."""
    return numba.njit(cache=True, error_model="numpy", nogil=True, parallel=parallel)
