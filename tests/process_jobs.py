"""What the two processes of `process_pair` are asked to do; the same with one process, where it is to be compared."""

from __future__ import annotations

import time

import torch
import torch.nn.functional as functional
from optnoise.finetune import make_private, make_zeroth_order
from optnoise.mechanisms import Gaussian
from torch import nn

RECORDS = 40


def data(inputs=5):
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(RECORDS, inputs, generator=generator, dtype=torch.float64)
    return features, torch.randint(0, 3, (RECORDS,), generator=generator)


def network(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3)).to(dtype)


def private(model, *, optimizer=torch.optim.Adam, lr=0.05, **changes):
    settings = {
        "mechanism": Gaussian(1.0),
        "clipping_norm": 0.5,
        "dataset_size": RECORDS,
        "sampling_rate": 0.3,
        "divisor": 12.0,
        "seed": 1,
        **changes,
    }
    return make_private(model, optimizer((p for p in model.parameters() if p.requires_grad), lr=lr), **settings)


def gradients(training, batch, *, size=4, skip=0):
    """Record all microbatches but the first `skip`."""
    features, labels = data()
    dtype = next(training.model.parameters()).dtype
    for indices in list(batch.microbatches(size))[skip:]:
        with training.record(len(indices)) as recording:
            logits = training.model(features[indices].to(dtype))
            recording.backward(functional.cross_entropy(logits, labels[indices], reduction="none"))


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).double().numpy()


def trained(rank, *, steps=6, sizes=(4, 4), dtype=torch.float64, own_weights=False, **changes):
    """Weights after `steps`, the shares of the batches, ε, and the ledger's steps."""
    model = network(seed=rank if own_weights else 0, dtype=dtype)
    training = private(model, **changes)
    shares = []
    for batch in training.logical_batches(steps):
        shares.append(batch.indices.tolist())
        gradients(training, batch, size=sizes[rank])
        training.step()
    epsilon = training.epsilon(delta=1e-5).upper
    return {"weights": weights(model), "shares": shares, "epsilon": epsilon, "recorded": training.ledger.steps}


def resumed(rank, *, folder, stop, steps):
    """As `trained`, but begun anew after `stop` steps from what the first process had saved."""
    path = folder / "ledger.jsonl"
    model = network()
    training = private(model, optimizer=torch.optim.SGD, ledger=path)
    for batch in training.logical_batches(stop):
        gradients(training, batch)
        training.step()
    if rank == 0:
        torch.save({"model": model.state_dict(), "private": training.state_dict()}, folder / "state.pt")
    torch.distributed.barrier()
    state = torch.load(folder / "state.pt")
    model = network(seed=9)
    model.load_state_dict(state["model"])
    training = private(model, optimizer=torch.optim.SGD, ledger=path)
    training.load_state_dict(state["private"])
    for batch in training.logical_batches(steps - stop):
        gradients(training, batch)
        training.step()
    return {"weights": weights(model), "recorded": training.ledger.steps}


def noise_alone(rank, *, steps, mechanism, outputs=6, **changes):
    """The released sums of records without a gradient, (steps, 4·outputs): the noise, in units of C."""
    model = nn.Linear(4, outputs, bias=False).double()
    training = private(model, optimizer=torch.optim.SGD, mechanism=mechanism, divisor=3.0, seed=None, **changes)
    released = []
    for batch in training.logical_batches(steps):
        if len(batch):
            with training.record(len(batch)) as recording:
                recording.backward(model(torch.zeros(len(batch), 4, dtype=torch.float64)).sum(1))
        training.step()
        released.append(model.weight.grad.flatten().clone())
    return (torch.stack(released) * 3.0 / training.clipping_norm).numpy()


def fails_in_second(rank, *, how, path):
    """A loop in which the second process does something wrong; the error, and seconds until it was raised."""
    model = network()
    training = private(model, ledger=path / "missing" / "ledger.jsonl" if how == "ledger" else None)
    wrong = rank == 1
    for step, batch in enumerate(training.logical_batches(3)):
        if how == "out of step" and wrong and step == 1:
            training.next_batch()
        gradients(training, batch, skip=1 if how == "skipped" and wrong and step == 1 else 0)
        if how == "moved" and wrong:
            with torch.no_grad():
                model[0].weight[0, 0] += 1e-9
        if how == "early" and wrong and step == 1:
            training.step()
        if how == "late" and not wrong and step == 1:
            continue
        training.step()


def made(rank, **changes):
    """make_private where the first and the second process have different arguments: {name: (first, second)}."""
    model = network()
    if changes.pop("frozen_in_second", False) and rank == 1:
        model[0].bias.requires_grad_(False)
    private(model, **{name: values[rank] for name, values in changes.items()})


def wrapped(rank):
    model = nn.parallel.DistributedDataParallel(network())
    private(model)


def sharded(rank):
    """A model that is trained as a whole, sharded by FSDP2."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    private(fully_shard(network(dtype=torch.float32), mesh=init_device_mesh("cpu", (2,))))


def ends_in_second(rank):
    """The second process ends in the middle of a batch. Seconds that the first one waited, and its error."""
    training = private(network())
    batch = training.next_batch()
    if rank == 1:
        raise SystemExit
    gradients(training, batch)
    begin = time.monotonic()
    try:
        training.step()
    except RuntimeError as error:
        return time.monotonic() - begin, type(error).__name__, str(error)
    return None


# ---- without gradients ------------------------------------------------------------------------------------------


def zeroth_order(model, **changes):
    settings = {
        "mechanism": Gaussian(1.0),
        "clipping_norm": 0.5,
        "dataset_size": RECORDS,
        "sampling_rate": 0.3,
        "divisor": 12.0,
        "smoothing": 1e-3,
        "learning_rate": 0.05,
        "seed": 1,
        **changes,
    }
    return make_zeroth_order(model, **settings)


def losses_of(model):
    features, labels = data()
    features = features.to(next(model.parameters()).dtype)
    return lambda index: functional.cross_entropy(model(features[index]).double(), labels[index], reduction="none")


def trained_without_gradients(rank, *, steps=6, dtype=torch.float64, own_weights=False, **changes):
    """Weights (their bits), releases, and what was sent to be added up: pairs of dtype and number of elements."""
    sent = []
    add_up = torch.distributed.all_reduce

    def noting(tensor, *args, **more):
        sent.append((str(tensor.dtype), tensor.numel()))
        return add_up(tensor, *args, **more)

    torch.distributed.all_reduce = noting
    try:
        model = network(seed=rank if own_weights else 0, dtype=dtype)
        training = zeroth_order(model, **changes)
        released, shares = [], []
        for batch in training.logical_batches(steps):
            shares.append(batch.indices.tolist())
            released += training.step(losses_of(model), batch.microbatches(1)).derivatives.tolist()
    finally:
        torch.distributed.all_reduce = add_up
    return {
        "weights": weights(model),
        "released": released,
        "shares": shares,
        "sent": sent,
        "recorded": training.ledger.steps,
        "direction_seed": training.direction_seed,
    }


def resumed_without_gradients(rank, *, stop, steps, path):
    """As the above, but begun anew after `stop` steps."""
    model = network()
    training = zeroth_order(model, ledger=path, directions=2, joint=False)
    for batch in training.logical_batches(stop):
        training.step(losses_of(model), batch.microbatches(1))
    state, saved = training.state_dict(), model.state_dict()
    model = network(seed=5)
    model.load_state_dict(saved)
    training = zeroth_order(model, ledger=path, directions=2, joint=False)
    training.load_state_dict(state)
    for batch in training.logical_batches(steps - stop):
        training.step(losses_of(model), batch.microbatches(1))
    return {"weights": weights(model), "recorded": training.ledger.steps}


def fails_without_gradients(rank, *, how):
    """The second process fails in its second step; then both try that step again."""
    model = network()
    training = zeroth_order(model, learning_rate=lambda updates: 0.1 if how != "rate" or rank == 0 else 0.2)
    losses, errors = losses_of(model), []
    faulty = (lambda index: losses(index).sum()) if rank == 1 else losses
    for step, batch in enumerate(training.logical_batches(3)):
        if how == "losses" and step == 1:
            try:
                training.step(faulty, batch.microbatches(1))
            except (ValueError, RuntimeError) as error:
                errors.append((type(error).__name__, str(error)))
        training.step(losses, batch.microbatches(1))
    return {"errors": errors, "weights": weights(model), "recorded": training.ledger.steps}
