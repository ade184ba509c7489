"""The copies of one model in several processes: what may be copied, made equal at the start, and seen to stay equal."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from .processes import Processes

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SHARDED = ("torch.distributed.fsdp", ("FullyShardedDataParallel", "FSDPModule"))


def check_not_wrapped(model: nn.Module) -> None:
    """Raise ValueError if a wrapper averages gradients between processes, or a parameter is in pieces."""
    for name, module in model.named_modules():
        label = f"{name or 'the model'} is wrapped in {type(module).__name__}"
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise ValueError(
                f"{label}, which averages gradients between the processes inside the backward pass, before noise and "
                "outside the clipping; pass the model itself (model.module): the clipped sums are added up in step()"
            )
        if isinstance(module, nn.DataParallel):
            raise ValueError(
                f"{label}, which splits the batch past the clipping; pass the model itself (model.module) and start "
                "one process per GPU with torchrun"
            )
        if _is_sharded(module):
            raise ValueError(
                f"{label}, which shards parameters over the processes; private training takes whole copies only: leave "
                "the sharding out, and train adapters (LoRA) or in bfloat16 if memory is short"
            )
    pieces = [name for name, p in model.named_parameters() if type(p.data).__name__ == "DTensor"]
    if pieces:
        raise ValueError(
            f"the parameters {', '.join(pieces[:3])}{' …' * (len(pieces) > 3)} lie in pieces on several devices "
            "(DTensor); private training takes whole copies only: leave the sharding out"
        )


def _is_sharded(module: nn.Module) -> bool:
    place, names = _SHARDED
    fsdp = sys.modules.get(place)  # never imported: then nothing is wrapped by it
    return fsdp is not None and any(isinstance(module, getattr(fsdp, n)) for n in names if hasattr(fsdp, n))


def make_equal(model: nn.Module, processes: Processes) -> None:
    """Give every process the first one's parameters and buffers. Raises ValueError if names or shapes differ."""
    if not processes.are_several:
        return
    tensors: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    processes.same("comparing the models", lambda: {"model": _digest(_shapes(tensors))})
    processes.copy_from_first(list(tensors.values()))


def _shapes(tensors: Mapping[str, Tensor]) -> list[str]:
    return [f"{name} {tuple(t.shape)} {t.dtype}" for name, t in tensors.items()]


def trained(parameters: Mapping[str, nn.Parameter]) -> list[str]:
    """What is trained, for a comparison between processes."""
    return _shapes(parameters)


@torch.no_grad()
def fingerprint(parameters: Iterable[nn.Parameter]) -> str:
    """A short text that changes when a bit of a parameter does: from the sum of the bits of each, read as integers."""
    sums = [p.reshape(-1).view(_WORDS[p.element_size()]).sum(dtype=torch.int64) for p in parameters]
    by_device: dict[torch.device, list[Tensor]] = {}
    for total in sums:
        by_device.setdefault(total.device, []).append(total)
    return _digest([str(torch.stack(totals).tolist()) for totals in by_device.values()])


def _digest(lines: list[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()
