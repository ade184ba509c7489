"""The arithmetic that the rounding bounds speak of: float32 products made in float32."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def plain_arithmetic(device: torch.device) -> Iterator[None]:
    """No gradient, no autocast, and none of the modes that make float32 products in TF32 or bfloat16.

    Such products would void every rounding bound. The caller's settings come back at the end.
    """
    mkldnn: Any = torch.backends.mkldnn  # its stub lacks `matmul`
    backends = [torch.backends.cuda.matmul, mkldnn.matmul]
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "ieee"
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        for backend, value in zip(backends, before, strict=True):
            backend.fp32_precision = value
