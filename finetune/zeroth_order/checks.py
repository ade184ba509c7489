"""What would let one record move the losses of others, and is refused before the first step.

Sensitivity C needs ℓ_i(θ ± φz) to be a function of record i, θ and z alone. Dropout breaks that: masks come from one
stream and are dealt out by the place in the batch, so a record that joins changes the masks of all after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from ..probe import bit_splits
from ..support import UnsupportedModelError, trainable_parameters

Losses = Callable[[Tensor], Tensor]
"""Indices (b,) of training records to their losses (b,)."""

_PROBED = 8  # examples of a probe
_GROSS = 1e-3  # relative: beyond it the loss is another one, below it is rounding


def check_modules(model: nn.Module) -> None:
    """Raise UnsupportedModelError that lists modules which mix examples or draw random masks in their present mode."""
    faults = []
    for name, module in model.named_modules():
        reason = _fault(module)
        if reason is not None:
            faults.append(f"{name or '(the model itself)'} ({type(module).__name__}): {reason}")
    if faults:
        raise UnsupportedModelError(faults)


def _fault(module: nn.Module) -> str | None:
    if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
        return "normalises each example with the others of its batch; call model.eval(), or use LayerNorm or GroupNorm"
    if isinstance(module, _InstanceNorm) and module.training and module.track_running_stats:
        return "keeps statistics of the data that no noise protects; call model.eval()"
    if module.training and _dropout_rate(module) > 0:
        return (
            f"drops out with p={_dropout_rate(module)}: masks are dealt out by the place in the batch, so one record "
            "would change the masks of others and the two passes would differ; call model.eval(), or set p=0"
        )
    return None


def _dropout_rate(module: nn.Module) -> float:
    if isinstance(module, _DropoutNd):
        return module.p
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return float(module.dropout)
    return 0.0


def check_same_parameters(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise RuntimeError if the model's trainable parameters are not `parameters` any more."""
    now = trainable_parameters(model)
    changed = {name for name in {*now, *parameters} if now.get(name) is not parameters.get(name)}
    if changed:
        raise RuntimeError(
            f"the trainable parameters changed since make_zeroth_order: {', '.join(sorted(changed))}; freeze, add and "
            "move parameters before, or call make_zeroth_order again"
        )


@contextlib.contextmanager
def nothing_written(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> Iterator[None]:
    """Raise ValueError if a buffer, or one of `parameters`, is written to or replaced inside the block."""
    before = _versions(model, parameters)
    yield
    after = _versions(model, parameters)
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    if changed:
        raise ValueError(
            f"computing the losses wrote to {', '.join(changed)}: buffers would carry data that no noise protects, and "
            "parameters would move without noise; turn that off (eval mode, momentum 0, no optimizer inside)"
        )


def _versions(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> dict[str, tuple[int, int, int]]:
    named = {**dict(model.named_buffers()), **parameters}
    return {name: (id(tensor), tensor.data_ptr(), tensor._version) for name, tensor in named.items()}


def per_example_losses(losses: Losses, indices: Tensor) -> Tensor:
    """The losses (b,) of the records `indices` (b,), float64 on the CPU. Raises ValueError unless that is one each."""
    with torch.no_grad():
        found = losses(indices)
    if not isinstance(found, Tensor) or tuple(found.shape) != (len(indices),) or not found.is_floating_point():
        got = f"shape {tuple(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else repr(found)
        raise ValueError(
            f'expected one loss per example, shape ({len(indices)},), got {got}; use reduction="none", and take the '
            "batch size from the batch (Poisson batches vary in size)"
        )
    return found.detach().to(device="cpu", dtype=torch.float64)


def probe(losses: Losses, indices: Tensor, *, tolerance: float) -> None:
    """Raise ValueError if losses differ from one call to the next, or with the company that an example is in.

    Of up to 8 examples of a microbatch, at θ: all of them twice, then parts that tell any two of them apart. Losses
    may move by `tolerance`, since another shape or padding is rounded otherwise inside the model.
    """
    indices = indices[:_PROBED]
    whole = per_example_losses(losses, indices)
    again = per_example_losses(losses, indices)
    if (index := _first_off(again, whole, tolerance)) is not None:
        raise ValueError(
            f"the loss of record {int(indices[index])} is another one when it is computed again: something in it is "
            "random (dropout inside attention, a random crop); call model.eval(), or draw from a generator that is "
            "seeded by the record's index and the step"
        )
    for mask in bit_splits(len(indices)):
        positions = mask.nonzero().flatten()
        if len(positions):
            found = per_example_losses(losses, indices[positions])
            index = _first_off(found, whole[positions], tolerance)
            if index is not None:
                _refuse(int(indices[positions[index]]), found[index], whole[positions[index]], tolerance)


def _refuse(record: int, found: Tensor, wanted: Tensor, tolerance: float) -> None:
    if bool(torch.isclose(found, wanted, rtol=_GROSS, atol=0)):
        raise ValueError(
            f"rounding moves the loss of record {record} by {float((found - wanted).abs()):.1e} when other examples "
            f"leave the batch; expected at most {tolerance:.1e}, a thousandth of the change that C lets through. "
            "Compute each record alone (batch.microbatches(1)), in float32, or with a larger smoothing"
        )
    raise ValueError(
        f"the loss of record {record} changes when other examples leave the batch: it is not a loss of that example "
        "alone; divide by its own valid tokens (mean_over_own_tokens), not by the batch's"
    )


def _first_off(found: Tensor, wanted: Tensor, tolerance: float) -> int | None:
    off = ~torch.isclose(found, wanted, rtol=0, atol=tolerance, equal_nan=True)
    return int(off.nonzero()[0]) if bool(off.any()) else None
