"""The copies of one model in several processes: what may be copied, made equal at the start, and seen to stay equal."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from .processes import Processes

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def check_not_wrapped(model: nn.Module) -> None:
    """Raise ValueError if a wrapper averages gradients between processes, or owns the parameters."""
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
        if _is_fsdp1(module):
            raise ValueError(
                f"{label}, which shards what is trained too; train adapters (LoRA), and shard the frozen parameters by "
                "optnoise.finetune.shard_frozen(model) instead"
            )


def _is_fsdp1(module: nn.Module) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # never imported: then nothing is wrapped by it
    return fsdp is not None and isinstance(module, fsdp.FullyShardedDataParallel)


def check_in_one_piece(model: nn.Module) -> None:
    """Raise ValueError if a parameter is in pieces in several processes."""
    pieces = [name for name, parameter in model.named_parameters() if is_piece(parameter)]
    if pieces:
        raise ValueError(
            f"the parameters {', '.join(pieces[:3])}{' …' * (len(pieces) > 3)} lie in pieces on several devices "
            "(DTensor); training without gradients takes whole copies only: leave the sharding out"
        )


def is_piece(parameter: Tensor) -> bool:
    """Whether only a part of the parameter is here (a DTensor)."""
    return type(parameter.data).__name__ == "DTensor"


def make_equal(model: nn.Module, processes: Processes) -> None:
    """Give every process the first one's parameters and buffers, but those in pieces, of which each has its own.

    Raises ValueError if names or shapes differ.
    """
    if not processes.are_several:
        return
    tensors: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    processes.same("comparing the models", lambda: {"model": _digest(shapes(tensors))})
    processes.copy_from_first([tensor for tensor in tensors.values() if not is_piece(tensor)])


def shapes(tensors: Mapping[str, Tensor]) -> list[str]:
    """A line for each tensor, for a comparison between processes: its name, whole shape and dtype."""
    return [f"{name} {tuple(t.shape)} {t.dtype}" for name, t in tensors.items()]


def trained(parameters: Mapping[str, nn.Parameter]) -> list[str]:
    """What is trained, for a comparison between processes."""
    return shapes(parameters)


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
