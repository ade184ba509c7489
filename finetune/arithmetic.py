"""The arithmetic that the rounding bounds speak of: float32 products made in float32."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def plain_arithmetic() -> Iterator[None]:
    """No gradient, no autocast on any device, and none of the modes that make float32 products in TF32 or bfloat16.

    Such products would void every rounding bound. The caller's settings come back at the end.
    """
    mkldnn: Any = torch.backends.mkldnn  # its stub lacks `matmul`
    backends = [torch.backends.cuda.matmul, mkldnn.matmul]
    before = [backend.fp32_precision for backend in backends]
    with contextlib.ExitStack() as stack:
        for backend, value in zip(backends, before, strict=True):
            stack.callback(setattr, backend, "fp32_precision", value)
            backend.fp32_precision = "ieee"
        for device in _DEVICES:
            stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(torch.no_grad())
        yield


def _devices() -> list[str]:
    accelerator = torch.accelerator.current_accelerator()
    return ["cpu"] if accelerator is None else ["cpu", accelerator.type]


_DEVICES = _devices()
