"""What the two processes of `process_pair` do with a tiny Llama of sharded frozen weights; and one, by itself."""

from __future__ import annotations

import warnings

import model_zoo as zoo
import peft
import torch
from optnoise.finetune import make_private, make_zeroth_order, shard_frozen
from optnoise.mechanisms import Gaussian

RECORDS = 14
BATCH = zoo.data("llama", RECORDS)


def llama(*, seed=0, dtype=torch.float64, checkpointing=None):
    """With LoRA; `checkpointing`: None, or whether it is the reentrant kind. `seed` moves all weights."""
    model = zoo.with_adapters(zoo.build("llama")).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype))
    if checkpointing is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": checkpointing})
        model.enable_input_require_grads()
    return model


def adapters(model):
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def private(model, **changes):
    settings = {
        "mechanism": Gaussian(1.0),
        "clipping_norm": 0.5,
        "dataset_size": RECORDS,
        "sampling_rate": 0.4,
        "divisor": 6.0,
        "seed": 1,
        **changes,
    }
    held = [p for p in model.parameters() if p.requires_grad]
    return make_private(model, torch.optim.AdamW(held, lr=0.05), **settings)


def train(training, steps, *, size=2):
    """Steps; by step, the shares and which microbatches counted."""
    losses, log = zoo.losses_of(training.model, "llama", BATCH), []
    for batch in training.logical_batches(steps):
        counted = []
        for indices in batch.microbatches(size):
            with training.record(len(indices)) as recording:
                recording.backward(losses(indices))
            counted.append(recording.counts)
        training.step()
        log.append((batch.indices.tolist(), counted))
    return log


def flat(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors.values()]).double().numpy()


def trained(rank, *, sharded, steps=4, size=2, own_weights=False, by_hand=False, dtype=torch.float64, **changes):
    """Adapters after `steps`, and what each process did and held."""
    options = {name: changes.pop(name) for name in ("checkpointing",) if name in changes}
    model = llama(seed=rank if own_weights else 0, dtype=dtype, **options)
    policy = changes.pop("mp_policy", None)
    if by_hand:
        shard_by_hand(model)
    elif sharded:
        assert shard_frozen(model, mp_policy=policy) is model
    before, frozen = flat(adapters(model)), bytes_here(model)
    training = private(model, **changes)
    log = train(training, steps, size=size)
    return {
        "before": before,
        "adapters": flat(adapters(model)),
        "log": log,
        "frozen bytes": (frozen, bytes_here(model)),
        "plain": all(type(p.data) is torch.Tensor for p in training.clipping.parameters.values()),
        "epsilon": training.epsilon(delta=1e-5).upper,
        "recorded": training.ledger.steps,
        "whole": gathered(model),
    }


def shard_by_hand(model):
    """As torch's documentation has it; the blocks only, without the model itself."""
    from torch.distributed.fsdp import fully_shard

    mesh, ignored = _pair_mesh(), {p for p in model.parameters() if p.requires_grad}
    for block in model.base_model.model.model.layers:
        fully_shard(block, mesh=mesh, ignored_params=ignored)


def bytes_here(model):
    """Bytes of storage of the frozen parameters in this process, padding included, each storage once."""
    local = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters() if not p.requires_grad]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in local}.values())


def gathered(model):
    """The frozen weights as a whole; collective."""
    whole = {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad}
    return flat({n: p.full_tensor() if hasattr(p, "full_tensor") else p for n, p in whole.items()})


def resumed(rank, *, folder, stop, steps):
    """As `trained`, but begun anew after `stop` steps from adapters, optimizer and private state."""
    path, model = folder / "ledger.jsonl", shard_frozen(llama())
    training = private(model, ledger=path)
    train(training, stop)
    if rank == 0:
        held = {"adapters": peft.get_peft_model_state_dict(model), "optimizer": training.optimizer.state_dict()}
        torch.save({**held, "private": training.state_dict()}, folder / "state.pt")
    torch.distributed.barrier()
    state = torch.load(folder / "state.pt")
    model = llama()
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.zero_()
    shard_frozen(model)
    peft.set_peft_model_state_dict(model, state["adapters"])
    training = private(model, ledger=path)
    training.optimizer.load_state_dict(state["optimizer"])
    training.load_state_dict(state["private"])
    train(training, steps - stop)
    return {"adapters": flat(adapters(model)), "recorded": training.ledger.steps}


def evaluated_between(rank, *, steps):
    """An evaluation before make_private and after each step leaves whole weights behind; the optimizer holds all."""
    model = shard_frozen(llama())
    losses, found = zoo.losses_of(model, "llama", BATCH), []

    def evaluate():
        with torch.no_grad():
            found.append(losses(torch.arange(3)).sum().item())

    evaluate()
    for module in (m for m in model.modules() if hasattr(m, "reshard")):
        module.reshard()  # the optimizer is to hold the pieces
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    evaluate()
    settings = {"mechanism": Gaussian(1.0), "clipping_norm": 0.5, "dataset_size": RECORDS, "seed": 1}
    training = make_private(model, optimizer, sampling_rate=0.05, divisor=1.0, **settings)
    sizes = []
    for _ in range(steps):
        sizes += [len(share) for share, _ in train(training, 1)]
        evaluate()
    return {"losses": found, "sizes": sizes, "adapters": flat(adapters(model))}


def errors_then_training(rank, *, how):
    """The second process, or both, do something wrong once; then both go on. The error and the adapters."""
    model = shard_frozen(llama())
    training = private(model, seed=7)
    batch = training.next_batch()
    losses = zoo.losses_of(model, "llama", BATCH)
    indices = next(batch.microbatches(3))
    wrong = rank == 1 or how.endswith("in all")
    error = None
    fault = fails_in(model, how)
    try:
        with training.record(99 if how == "too many" and wrong else len(indices)) as recording:
            found = losses(indices)
            if how.startswith("mixed") and wrong:
                found = found + found.flip(0)
            recording.backward(found.mean() if how == "mean" and wrong else found)
    except (ValueError, RuntimeError) as caught:
        error = f"{type(caught).__name__}: {caught}"
    fault.remove()
    for indices in batch.microbatches(3):
        with training.record(len(indices)) as recording:
            recording.backward(losses(indices))
    training.step()
    train(training, 2)
    return {"error": error, "adapters": flat(adapters(model))}


def fails_in(model, how):
    """A hook that fails in the middle of a pass, inside of a block; remove it in the end."""

    def fail(*_):
        raise RuntimeError(how)

    inner = model.base_model.model.model.layers[0].mlp.up_proj
    if how == "forward in all":
        return inner.register_forward_hook(fail)
    return inner.register_full_backward_hook(fail if how == "backward in all" else lambda *_: None)


def unequal_numbers(rank):
    """Microbatches of another size in each process."""
    train(private(shard_frozen(llama()), sampling_rate=1.0), 1, size=(2, 4)[rank])


def recorded_for_nothing(rank):
    """All examples were recorded, then one more microbatch in all processes."""
    training = private(shard_frozen(llama()))
    batch = training.next_batch()
    losses = zoo.losses_of(training.model, "llama", BATCH)
    for indices in [*batch.microbatches(3), torch.tensor([0])]:
        with training.record(len(indices)) as recording:
            recording.backward(losses(indices))


def refused(rank, *, how):
    """What make_private refuses, or what comes before it does."""
    private(_REFUSED[how](rank, llama()), **({"process_group": None} if how == "alone" else {}))


def _pair_mesh(shape=(2,), **more):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape, **more)


def _shard_all(rank, model):
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=_pair_mesh())


def _train_a_piece(rank, model):
    next(p for p in shard_frozen(model).parameters() if not p.requires_grad).requires_grad_(True)
    return model


def _split_the_head(rank, model):
    from torch.distributed.tensor import Shard, distribute_tensor

    head = model.base_model.model.lm_head
    head.weight = torch.nn.Parameter(distribute_tensor(head.weight.detach(), _pair_mesh(), [Shard(0)]), False)
    return model


def _without_a_rule(rank, model):
    shard_frozen(model).base_model.model.model.layers[0].gate = torch.nn.Parameter(torch.ones(()))
    return model


def _without_gradients(rank, model):
    settings = {"mechanism": Gaussian(1.0), "clipping_norm": 1.0, "dataset_size": RECORDS, "sampling_rate": 0.5}
    shard_frozen(model).eval()
    make_zeroth_order(model, **settings, divisor=6.0, smoothing=1e-3, learning_rate=0.1)


_REFUSED = {
    "trained": _shard_all,
    "trained later": _train_a_piece,
    "tensor parallel": _split_the_head,
    "fallback": _without_a_rule,
    "zeroth order": _without_gradients,
    "alone": lambda rank, model: shard_frozen(model),
    "twice": lambda rank, model: shard_frozen(shard_frozen(model)),
    "all trained": lambda rank, model: shard_frozen(model.requires_grad_(True)),
    "none trained": lambda rank, model: shard_frozen(model.requires_grad_(False)),
    "meta": lambda rank, model: shard_frozen(model.to("meta")),
    "foreign block": lambda rank, model: shard_frozen(model, blocks=[torch.nn.Linear(2, 2)]),
    "two-dimensional mesh": lambda rank, model: shard_frozen(model, mesh=_pair_mesh((1, 2), mesh_dim_names=("a", "b"))),
    "unlike models": lambda rank, model: shard_frozen(llama(dtype=torch.float32) if rank else model),
}


def blocks_of(rank, *, mesh):
    """`blocks` chosen by hand, an outer and an inner one, on a mesh that is given; which modules were sharded."""
    from torch.distributed.fsdp import FSDPModule

    model = llama()
    layers = model.base_model.model.model.layers
    options = {"mesh": _pair_mesh()} if mesh else {}
    shard_frozen(model, blocks=[layers[1], layers[1].mlp], **options)
    train(private(model), 2)
    sharded = [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]
    return {"sharded": sharded, "adapters": flat(adapters(model))}
