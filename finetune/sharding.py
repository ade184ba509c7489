"""Models whose frozen weights lie in pieces in several processes (torch's `fully_shard`), whose trainable ones do not.

Ghost clipping needs the whole of what is trained, and of the frozen weights only that forward and backward pass run. So
`fully_shard` may have the frozen ones; adapters stay whole and equal in all processes, and the clipped sums of them are
added up as for whole copies. See docs/scaling.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from .lockstep import FREE, Lockstep
from .processes import Processes, find_processes
from .replicas import check_not_wrapped, is_piece, shapes
from .support import TrainableLayer

_WAY_OUT = (
    "train adapters (LoRA), and shard the frozen parameters only: optnoise.finetune.shard_frozen(model), or "
    "fully_shard(..., ignored_params=set of the trainable parameters)"
)


def shard_frozen(
    model: nn.Module,
    *,
    blocks: Sequence[nn.Module] | None = None,
    mesh: Any = None,
    mp_policy: Any = None,
    offload_policy: Any = None,
) -> nn.Module:
    """Spread `model`'s frozen parameters over the processes, 1/N of them in each; what is trained stays whole.

    Each process loads the whole model (on its CPU if it does not fit the GPU), freezes it or adds adapters, calls this,
    then builds the optimizer. The first process's frozen weights are copied to all, then `fully_shard` of
    `torch.distributed.fsdp` is applied to each block and to the model, with the trainable parameters ignored. The model
    stays the object it is. In one process nothing is done.

    Args:
        model: parameters with requires_grad=True now are kept whole, and moved to the mesh's device.
        blocks: modules whose weights are gathered together, a layer of the model each: of one of them at a time the
            whole weights are in memory. None: the members of the outermost `nn.ModuleList`s, the layers of the models
            of transformers. What is outside of all blocks (embeddings) is gathered for the whole of a pass.
        mesh: a `DeviceMesh` of one dimension; None: the default group, on GPUs if its backend is nccl.
        mp_policy: a `MixedPrecisionPolicy`, such as param_dtype=torch.bfloat16; None: the weights' own dtype.
        offload_policy: an `OffloadPolicy`, such as `CPUOffloadPolicy()`; None: the pieces stay on the device.

    Returns:
        The model itself.

    Raises:
        ValueError: nothing is frozen, or nothing trained; the model is wrapped or sharded already, or on the meta
            device; `blocks` are none of the model's; the models of the processes differ in form.
    """
    processes = find_processes("auto") if mesh is None else find_processes(_group_of(mesh))
    if not processes.are_several:
        return model
    units = processes.agreed("shard_frozen", lambda: _units(model, blocks))
    named = dict(model.named_parameters())
    processes.same(
        "shard_frozen",
        lambda: {
            "parameters": [f"{line} {p.requires_grad}" for line, p in zip(shapes(named), named.values(), strict=True)],
            "number of blocks": len(units),
        },
    )
    _shard(units, _whole(named.values()), processes, mesh, _given(mp_policy=mp_policy, offload_policy=offload_policy))
    return model


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _whole(parameters: Iterable[nn.Parameter]) -> set[nn.Parameter]:
    """What is not sharded: the trainable ones, and single numbers, which have no axis to cut."""
    return {parameter for parameter in parameters if parameter.requires_grad or not parameter.dim()}


def _shard(
    units: Sequence[nn.Module], whole: set[nn.Parameter], processes: Processes, mesh: Any, options: dict[str, Any]
) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = mesh or init_device_mesh("cuda" if processes.uses_gpus else "cpu", (processes.size,))
    device = torch.device("cuda", torch.cuda.current_device()) if mesh.device_type == "cuda" else mesh.device_type
    for parameter in whole:
        parameter.data = parameter.data.to(device)
    for unit in units:
        frozen = [p for p in unit.parameters() if p not in whole and not is_piece(p)]
        processes.copy_from_first(frozen)
        fully_shard(unit, mesh=mesh, ignored_params=whole, **options)


def _group_of(mesh: Any) -> Any:
    if getattr(mesh, "ndim", None) != 1:
        raise ValueError(
            f"expected mesh to be a DeviceMesh of one dimension, got {mesh!r}; for others call fully_shard with "
            "ignored_params=set of the trainable parameters"
        )
    return mesh.get_group()


def _units(model: nn.Module, blocks: Sequence[nn.Module] | None) -> list[nn.Module]:
    """The blocks, inner ones before outer ones, then the model. Raises ValueError for what cannot be sharded."""
    check_not_wrapped(model)
    parameters = list(model.parameters())
    if _sharded_modules(model) or any(is_piece(p) for p in parameters):
        raise ValueError("the model is sharded already; call shard_frozen once, on the whole model as it was loaded")
    if any(p.is_meta for p in parameters):
        raise ValueError("the model is on the meta device, without weights; load them before shard_frozen")
    if not any(p.requires_grad for p in parameters) or all(p.requires_grad for p in parameters):
        some = "no" if not any(p.requires_grad for p in parameters) else "only"
        raise ValueError(
            f"expected frozen and trainable parameters, got {some} trainable ones: the frozen ones are spread over the "
            "processes, the trainable ones stay whole; add adapters (LoRA), or freeze what is not trained"
        )
    chosen = _outermost_members(model) if blocks is None else list(blocks)
    inner_first = [module for module in reversed(list(model.modules())) if any(module is block for block in chosen)]
    if len(inner_first) != len({id(block) for block in chosen}) or model in inner_first:
        raise ValueError("expected blocks to be modules inside the model, got others, or the model itself")
    return [*(block for block in inner_first if _has_frozen(block)), model]


def _has_frozen(module: nn.Module) -> bool:
    return any(not parameter.requires_grad for parameter in module.parameters())


def _outermost_members(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, nn.ModuleList):
        return list(module)
    return [block for child in module.children() for block in _outermost_members(child)]


# ---- what make_private asks -------------------------------------------------------------------------------------


def find_lockstep(model: nn.Module, processes: Processes) -> Lockstep:
    """How the passes of the model go together; `FREE` if it is in one piece.

    Raises ValueError if a trainable parameter is in pieces, if frozen ones are so otherwise than by `fully_shard`, or
    in processes that do not train the model together.
    """
    shards = _sharded_modules(model)
    for module in shards:
        module.reshard()  # an evaluation may have left whole weights in their place
    pieces = {name: parameter for name, parameter in model.named_parameters() if is_piece(parameter)}
    trained = [name for name, parameter in pieces.items() if parameter.requires_grad]
    if trained:
        raise ValueError(
            f"the trainable {_some(trained)} in pieces (DTensor): ghost clipping needs them whole; {_WAY_OUT}"
        )
    managed = {id(parameter) for module in shards for parameter in module.parameters()}
    foreign = [name for name, p in pieces.items() if id(p) not in managed or not _is_fully_sharded(p)]
    if foreign:
        raise ValueError(
            f"the frozen {_some(foreign)} in pieces otherwise than by fully_shard (tensor parallelism); a model is "
            "sharded by optnoise.finetune.shard_frozen(model), and in no other way"
        )
    holders = {rank for p in pieces.values() for rank in p.device_mesh.mesh.flatten().tolist()}  # type: ignore[attr-defined]
    if not holders <= set(processes.ranks):
        raise ValueError(
            f"the frozen parameters lie in pieces in the processes {sorted(holders)}, the model is trained by "
            f"{sorted(processes.ranks)}: each pass needs all of the former; give the same processes to both"
        )
    return Lockstep(processes, _outermost(model, shards)) if shards and processes.are_several else FREE


def check_layers(layers: Iterable[TrainableLayer]) -> None:
    """Raise ValueError for a layer without a rule that holds frozen parameters in pieces: its fallback runs it again
    for each example, and each run would gather them from all processes."""
    for layer in layers:
        if layer.rule is None and any(is_piece(parameter) for parameter in layer.module.parameters()):
            raise ValueError(
                f"{layer.label} has no clipping rule and holds sharded parameters, which its fallback cannot gather; "
                "register a rule, or freeze it"
            )


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:3])}{' …' * (len(names) > 3)} {'lies' if len(names) == 1 else 'lie'}"


def _is_fully_sharded(parameter: Any) -> bool:
    """Cut along one axis by one dimension of the mesh, and copied along the others."""
    return sum(not placement.is_replicate() for placement in parameter.placements) <= 1


def _sharded_modules(model: nn.Module) -> list[Any]:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # never imported: then nothing is sharded by it
    kind = getattr(fsdp, "FSDPModule", None)
    return [] if kind is None else [module for module in model.modules() if isinstance(module, kind)]


def _outermost(model: nn.Module, shards: Sequence[nn.Module]) -> list[nn.Module]:
    inside = {id(inner) for module in shards for inner in module.modules() if inner is not module}
    return [module for module in shards if id(module) not in inside]
