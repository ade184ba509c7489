"""The trainable parameters as one-dimensional blocks of their own memory: what a direction is added to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from .displacement import DTYPES

_CPU_BLOCK = 2**16  # elements; in float64 a few blocks fit the cache of a core
_DEVICE_BLOCK = 2**22  # elements on an accelerator, where every call costs a launch


def blocks(parameters: Mapping[str, nn.Parameter]) -> Iterator[Tensor]:
    """Views (n,) of all elements of all parameters, in a fixed order; writing to them writes to the parameters."""
    for parameter in parameters.values():
        flat = _flat(parameter.detach())
        yield from flat.split(_CPU_BLOCK if flat.device.type == "cpu" else _DEVICE_BLOCK)


def layout(parameters: Mapping[str, nn.Parameter]) -> list[tuple[int, torch.device]]:
    """Size and device of every block."""
    return [(len(block), block.device) for block in blocks(parameters)]


def check_parameters(parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise ValueError for parameters that cannot be moved and restored, naming them."""
    if not any(parameter.numel() for parameter in parameters.values()):
        raise ValueError("expected a model with trainable parameters, got none with requires_grad=True")
    for name, parameter in parameters.items():
        if parameter.dtype not in DTYPES:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise ValueError(f"expected trainable parameters of {known}, got {name} of {parameter.dtype}; freeze it")
        if parameter.layout is not torch.strided or parameter.device.type == "meta" or _order(parameter) is None:
            raise ValueError(
                f"the elements of the trainable parameter {name} do not lie side by side in memory; make it "
                "contiguous, or freeze it"
            )
        if not all(bool(torch.isfinite(block).all()) for block in blocks({name: parameter})):
            raise ValueError(f"the trainable parameter {name} has elements that are not finite")
    _refuse_shared_memory(parameters)


def _flat(tensor: Tensor) -> Tensor:
    order = _order(tensor)
    if order is None:
        raise RuntimeError("a trainable parameter was replaced by one whose elements do not lie side by side in memory")
    return tensor.permute(order).view(-1)


def _order(tensor: Tensor) -> list[int] | None:
    """An order of the axes in which the tensor is contiguous; None if there is none."""
    order = sorted(range(tensor.dim()), key=lambda axis: (tensor.stride(axis), tensor.size(axis)), reverse=True)
    return order if tensor.permute(order).is_contiguous() else None


def _refuse_shared_memory(parameters: Mapping[str, nn.Parameter]) -> None:
    ends: dict[torch.device, tuple[int, str]] = {}
    for name, parameter in sorted(parameters.items(), key=lambda item: item[1].data_ptr()):
        if not parameter.numel():
            continue
        end, other = ends.get(parameter.device, (0, ""))
        if parameter.data_ptr() < end:
            raise ValueError(
                f"the trainable parameters {other} and {name} lie in the same memory and would be moved twice; use "
                "one nn.Parameter in both places"
            )
        ends[parameter.device] = parameter.data_ptr() + parameter.numel() * parameter.element_size(), name
