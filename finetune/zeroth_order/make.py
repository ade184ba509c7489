"""`make_zeroth_order`: private training by forward passes alone, for a person's own loop."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

from torch import nn

from ...accounting import Release
from ...mechanisms import Noise, _validate
from ..processes import find_processes
from ..randomness import Randomness
from ..replicas import check_in_one_piece, check_not_wrapped, make_equal
from ..rounds import planned
from ..sampling import PoissonSampler, SharedSampler
from ..shared_ledger import LedgerLike, open_ledger
from ..support import trainable_parameters
from .blocks import check_parameters, layout
from .checks import check_modules
from .contributions import MOST_RECORDS
from .directions import KINDS, Directions, Kind
from .training import Rate, Settings, ZerothOrderTraining


def make_zeroth_order(
    model: nn.Module,
    *,
    mechanism: Noise,
    clipping_norm: float,
    dataset_size: int,
    sampling_rate: float,
    divisor: float,
    smoothing: float,
    learning_rate: Rate,
    weight_decay: float = 0.0,
    directions: int = 1,
    joint: bool = True,
    direction: Kind = "gaussian",
    ledger: LedgerLike = None,
    adjacency: str = "add_or_remove_one",
    seed: int | None = None,
    secure: bool = False,
    direction_seed: int | None = None,
    process_group: Any = "auto",
) -> ZerothOrderTraining:
    """Train `model`'s trainable parameters privately without a backward pass (DP-ZO, arXiv 2401.04343).

    A step compares each example's loss at θ + φz and θ − φz along a random public direction z, clips the slope
    (difference over 2φ) to [−C, C], sums over the Poisson batch, adds noise to that one number, divides it by a
    constant and moves θ along z. Memory is that of a forward pass; any model that gives per-example losses will do.
    docs/zeroth_order.md has the proof.

    With several processes (`torch.distributed`), each calls this with the same arguments, a model of the same form on a
    device of the same kind, and the same records in the same order. They share one Poisson sample; in a step they tell
    each other k integers, and all make the same update: docs/scaling.md.

    Args:
        model: trains the parameters that have requires_grad=True now. Dropout must be off: call `model.eval()`.
        mechanism: noise in units of C, calibrated for the number of steps that will be run.
        clipping_norm: C > 0, the bound on what one example adds to the sum: on its slope, or with `joint` on the L2
            norm of its vector of slopes.
        dataset_size: number of training records n, at most 2^29.
        sampling_rate: q in (0, 1], the probability of every record to be in a logical batch.
        divisor: constant > 0 that divides the noisy sum, such as the expected batch size. Choose it before seeing the
            data; the actual batch size is private.
        smoothing: φ > 0, how far the parameters are moved along z (whose coordinates have variance 1); 1e-3 is usual.
            In low precision it must not vanish beside the weights.
        learning_rate: a number, or a function of the number of updates made so far.
        weight_decay: θ shrinks by learning_rate · weight_decay in every update.
        directions: k, the directions of one update; the update is their average.
        joint: with k > 1: True measures the k slopes on one batch and releases them as one vector (dimension k, one
            ledger entry). False releases k scalars one after another, each on a Poisson batch of its own: k calls of
            `step` make one update, and each is a step of dimension 1 for the accountant.
        direction: "gaussian" or "sphere" (uniform, radius √d).
        ledger: where each noisy step is recorded before it is used: a `Ledger`, the path of its file, or None to keep
            it in memory only (a crash then loses the record). Only the first process writes the file.
        adjacency: what one record's presence means; see `accounting.Release`.
        seed: leave None. A seed makes noise and samples reproducible, and the run *not private*.
        secure: noise and samples from ChaCha20: see `finetune.secure` for what this removes and what not. Sums are
            on a grid, C·2^−32, in either mode. Needs `pip install 'optnoise[secure]'`.
        direction_seed: the public seed of the directions, chosen without looking at the data; None takes a random one.
        process_group: as for `make_private`.

    Raises:
        UnsupportedModelError: lists every module that draws random masks or mixes examples in its present mode.
        ValueError: a bad argument, no proven bound for this noise in this dimension, or arguments that differ between
            processes.
        ImportError: `secure` without its package.

    Example:
        >>> import torch
        >>> from optnoise.mechanisms import Laplace
        >>> model = torch.nn.Linear(3, 2)
        >>> features, labels = torch.randn(100, 3), torch.randint(0, 2, (100,))
        >>> training = make_zeroth_order(
        ...     model, mechanism=Laplace(1.0), clipping_norm=0.5, dataset_size=100, sampling_rate=0.1, divisor=10,
        ...     smoothing=1e-3, learning_rate=0.1,
        ... )
        >>> def losses(indices):
        ...     logits = model(features[indices])
        ...     return torch.nn.functional.cross_entropy(logits, labels[indices], reduction="none")
        >>> for batch in training.logical_batches(5):
        ...     estimate = training.step(losses, batch.microbatches(4))
        >>> training.epsilon(delta=1e-5).upper < 2.0
        True
    """
    processes = find_processes(process_group)

    def prepare() -> tuple[Settings, Release, SharedSampler, Randomness]:
        check_not_wrapped(model)
        check_in_one_piece(model)
        settings = _settings(clipping_norm, divisor, smoothing, directions, joint, weight_decay)
        _check_choices(learning_rate, direction, dataset_size)
        check_parameters(trainable_parameters(model))
        check_modules(model)
        randomness = Randomness.chosen(seed=seed, secure=secure)
        sampler = SharedSampler(PoissonSampler(dataset_size, sampling_rate, randomness.sampling), processes)
        released = settings.directions if settings.joint else 1
        one_step = Release(mechanism, sampling_rate=sampling_rate, dimension=released, adjacency=adjacency)
        _check_bounded(one_step)
        return settings, one_step, sampler, randomness

    settings, one_step, sampler, randomness = processes.agreed("make_zeroth_order", prepare)
    parameters = trainable_parameters(model)
    sizes = layout(parameters)
    processes.same(
        "make_zeroth_order",
        lambda: {
            "mechanism, sampling_rate, dimension and adjacency": one_step,
            "settings": settings,
            "dataset_size": dataset_size,
            "seed": seed,
            "secure": secure,
            "direction": direction,
            "sizes and kinds of device of the trainable parameters": [(size, device.type) for size, device in sizes],
        },
    )
    make_equal(model, processes)
    chosen = processes.from_first("the seed of the directions", lambda: _direction_seed(direction_seed, seed))
    return ZerothOrderTraining(
        model,
        parameters,
        settings,
        learning_rate,
        one_step,
        open_ledger(ledger, processes),
        sampler,
        randomness,
        Directions(sizes, seed=chosen, kind=direction),
        processes,
    )


def _settings(
    clipping_norm: float, divisor: float, smoothing: float, directions: int, joint: bool, weight_decay: float
) -> Settings:
    if not isinstance(joint, bool):
        raise ValueError(f"expected joint to be True or False, got {joint=}")
    return Settings(
        clipping_norm=_validate.length("clipping_norm", clipping_norm),
        divisor=_validate.positive("divisor", divisor),
        smoothing=_validate.length("smoothing", smoothing),
        directions=_validate.integer("directions", directions, minimum=1),
        joint=joint,
        weight_decay=_validate.non_negative("weight_decay", weight_decay),
    )


def _check_choices(learning_rate: Rate, direction: str, dataset_size: int) -> None:
    if not callable(learning_rate):
        _validate.non_negative("learning_rate", learning_rate)
    _validate.one_of("direction", direction, KINDS)
    if dataset_size > MOST_RECORDS:
        raise ValueError(f"expected dataset_size <= {MOST_RECORDS}, got {dataset_size=}: sums are kept in 64 bits")


def _check_bounded(one_step: Release) -> None:
    """Raise ValueError now rather than after training if no accountant has a bound for this kind of release."""
    try:
        planned(one_step, delta=1e-5, steps=1)
    except ValueError as error:
        several = one_step.dimension != 1
        way_out = "; joint=False releases scalars, one batch each" if several else ""
        raise ValueError(
            f"no proven bound for {one_step.mechanism.family} noise on {one_step.dimension:g} released number"
            f"{'s' * several} with adjacency={one_step.adjacency}, sampling_rate={one_step.sampling_rate:g}"
            f"{way_out}: {error}"
        ) from error


def _direction_seed(direction_seed: int | None, seed: int | None) -> int:
    if direction_seed is not None:
        return _validate.integer("direction_seed", direction_seed, minimum=0)
    if seed is None:
        return secrets.randbits(63)
    return int.from_bytes(hashlib.blake2b(f"directions of {seed}".encode(), digest_size=7).digest(), "big")
