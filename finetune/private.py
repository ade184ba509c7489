"""Private training for a person's own loop: `make_private` ties model, optimizer, noise and ledger together."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, final

import torch
from torch import nn

from ..accounting import Ledger, Release
from ..mechanisms import Noise, _validate, independent
from .clipping import GhostClipping, Recording
from .layer_rules import LAYER_RULES, Rules
from .modes import ClippingMode
from .noise import release
from .processes import Processes, find_processes
from .randomness import Randomness
from .replicas import check_not_wrapped, fingerprint, make_equal, trained
from .rounds import UNSTEPPED, Rounds, planned
from .sampling import PoissonSampler, SharedSampler
from .sharding import check_layers, find_lockstep
from .shared_ledger import LedgerLike, open_ledger


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    mechanism: Noise,
    clipping_norm: float | ClippingMode,
    dataset_size: int,
    sampling_rate: float,
    divisor: float,
    ledger: LedgerLike = None,
    adjacency: str = "add_or_remove_one",
    seed: int | None = None,
    secure: bool = False,
    rules: Rules = LAYER_RULES,
    fallback: bool = True,
    process_group: Any = "auto",
) -> PrivateTraining:
    """Make the training of `model`'s trainable parameters by `optimizer` differentially private.

    Freeze and move the model first, then build the optimizer, then call this. Model, optimizer and learning-rate
    schedulers stay the objects they are; nothing is replaced.

    With several processes (`torch.distributed`), each calls this with the same arguments, a model of the same form and
    the same records in the same order. They start from the first one's weights, compute the clipped gradients of their
    shares of one Poisson sample, and get the same noisy gradient: docs/scaling.md. The model is not wrapped; its frozen
    parameters may lie in pieces in the processes: `shard_frozen`.

    Args:
        model: trains the parameters that have requires_grad=True now. Its first axis is always the batch.
        optimizer: any `torch.optim` optimizer that holds those very parameters (and no tensor from elsewhere), also
            behind accelerate's wrapper; none that asks for a closure, such as LBFGS.
        mechanism: noise in units of C, calibrated for the number of steps that will be run; spherical noise is for
            vectors of all trainable parameters.
        clipping_norm: C > 0, the L2 bound on one example's gradient, or a mode of clipping: `Flat`, `Automatic`,
            `PerLayer`, `GroupWise`. Noise and ledger are for the mode's joint bound.
        dataset_size: number of training records n.
        sampling_rate: q in (0, 1], the probability of every record to be in a logical batch.
        divisor: constant > 0 that divides the noisy sum, such as the expected batch size. Choose it before seeing the
            data; the actual batch size is private. It is for the whole sum, whatever the number of processes.
        ledger: where each noisy step is recorded before it is used: a `Ledger`, the path of its file, or None to keep
            it in memory only (a crash then loses the record). Only the first process writes the file.
        adjacency: what one record's presence means; see `accounting.Release`.
        seed: leave None. A seed makes noise and samples reproducible, and the run *not private*.
        secure: noise and samples from ChaCha20, the noisy sum rounded to a grid: see `finetune.secure` for what this
            removes and what not. Needs `pip install 'optnoise[secure]'`; draws on the CPU, some ten times slower.
        rules: layer rules; `LAYER_RULES` extended by your own.
        fallback: whether modules without a rule may be clipped by `torch.func.vmap`; see `GhostClipping`.
        process_group: the processes that train this model together: a `torch.distributed.ProcessGroup`; "auto": the
            default one if it was initialised, else this process alone; None: this process alone.

    Raises:
        UnsupportedModelError: lists every module that cannot be trained privately.
        ValueError: a bad argument; the optimizer does not hold the model's own trainable parameters; the model is
            wrapped (DistributedDataParallel), or its trainable parameters are sharded; arguments differ between
            processes; `secure` with several of them, or with spherical noise.
        ImportError: `secure` without its package.
        ProcessError: another process failed or ended.

    Example:
        >>> import torch
        >>> from optnoise.mechanisms import Gaussian
        >>> model = torch.nn.Linear(3, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> features, labels = torch.randn(100, 3), torch.randint(0, 2, (100,))
        >>> training = make_private(
        ...     model, optimizer, mechanism=Gaussian(1.0), clipping_norm=0.5,
        ...     dataset_size=100, sampling_rate=0.1, divisor=10,
        ... )
        >>> for batch in training.logical_batches(5):
        ...     for indices in batch.microbatches(4):
        ...         with training.record(len(indices)) as recording:
        ...             logits = model(features[indices])
        ...             losses = torch.nn.functional.cross_entropy(logits, labels[indices], reduction="none")
        ...             recording.backward(losses)
        ...     training.step()
        >>> training.epsilon(delta=1e-5).upper < 3.0
        True
    """
    processes = find_processes(process_group)

    def prepare() -> tuple[GhostClipping, torch.optim.Optimizer, Release, SharedSampler, Randomness]:
        check_not_wrapped(model)
        lockstep = find_lockstep(model, processes)
        _check_secure_sum(secure, mechanism, processes)
        if not isinstance(clipping_norm, ClippingMode):
            _validate.positive("clipping_norm", clipping_norm)
        _validate.positive("divisor", divisor)
        own = innermost(optimizer)
        clipping = GhostClipping(model, clipping_norm, rules=rules, fallback=fallback, lockstep=lockstep)
        check_layers(clipping.layers)
        check_optimizer(clipping.model, own, clipping.parameters)
        device = next(iter(clipping.parameters.values())).device
        randomness = Randomness.chosen(seed=seed, secure=secure, device=device)
        poisson = PoissonSampler(dataset_size, sampling_rate, randomness.sampling)
        sampler = SharedSampler(poisson, processes, in_step=lockstep.is_needed)
        one_step = Release(mechanism, sampling_rate=sampling_rate, dimension=clipping.dimension, adjacency=adjacency)
        one_step_is_bounded(one_step)
        return clipping, own, one_step, sampler, randomness

    clipping, own, one_step, sampler, randomness = processes.agreed("make_private", prepare)
    processes.same(
        "make_private",
        lambda: {
            "mechanism, sampling_rate, dimension and adjacency": one_step,
            "clipping_norm": repr(clipping.mode),
            "divisor": divisor,
            "dataset_size": dataset_size,
            "seed": seed,
            "secure": secure,
            "trainable parameters": trained(clipping.parameters),
        },
    )
    make_equal(clipping.model, processes)
    return PrivateTraining(
        clipping, own, one_step, divisor, open_ledger(ledger, processes), sampler, randomness, processes
    )


def _check_secure_sum(secure: bool, mechanism: Noise, processes: Processes) -> None:
    """Sum and noise are added without rounding in one place, coordinate by coordinate, before anything is rounded."""
    if secure and processes.are_several:
        raise ValueError("expected one process with secure=True: the sum of several is rounded before the grid")
    if secure:
        independent(mechanism)


@final
class PrivateTraining(Rounds):
    """A model in private training; built by `make_private`.

    One round is: take a logical batch, `record` each of its microbatches, `step`. Every logical batch is stepped, the
    empty ones too. ε can be asked at any time and changes nothing.
    """

    def __init__(
        self,
        clipping: GhostClipping,
        optimizer: torch.optim.Optimizer,
        release: Release,
        divisor: float,
        ledger: Ledger,
        sampler: SharedSampler,
        randomness: Randomness,
        processes: Processes,
    ) -> None:
        super().__init__(release, ledger, sampler, randomness, processes)
        self.optimizer = optimizer
        self.divisor = divisor
        self._clipping = clipping
        self._step_is_due = False  # noise was added, and the optimizer has not used the gradient yet
        self._guards = (
            optimizer.register_step_pre_hook(self._refuse_foreign_step),
            optimizer.register_step_post_hook(self._stepped),
        )
        self._attached = True

    # ---- what is being done -------------------------------------------------------------------------------------

    @property
    def model(self) -> nn.Module:
        """The model, unchanged: its names, forward and state_dict are its own."""
        return self._clipping.model

    @property
    def clipping_norm(self) -> float:
        """C, the L2 bound on one example's contribution to the sum."""
        return self._clipping.clipping_norm

    @property
    def dimension(self) -> int:
        """The number of trainable parameters: the coordinates of one release."""
        return self._clipping.dimension

    @property
    def clipping(self) -> GhostClipping:
        """The clipping and its running sum, which is private data: for audits."""
        return self._clipping

    @property
    def processes(self) -> Processes:
        """The processes that train the model together, this one among them."""
        return self._processes

    # ---- one round ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def record(self, batch_size: int) -> Iterator[Recording]:
        """Record one microbatch of `batch_size` examples of the logical batch; call `backward(losses)` inside.

        If the model lies in pieces in several processes, all call this together, and where no example is left what is
        recorded is discarded. Raises ValueError if that is more examples than the logical batch has, RuntimeError
        without one.
        """
        counts = self._clipping.lockstep.begin(lambda: self._examples_left(batch_size))
        with self._clipping.record(batch_size, counts=counts) as recording:
            yield recording

    def _check_stepped(self) -> None:
        self._check_attached()
        super()._check_stepped()
        if self._step_is_due:
            raise RuntimeError(UNSTEPPED)

    def _examples_left(self, batch_size: int) -> int:
        self._check_attached()
        if self._batch is None:
            raise RuntimeError("record() needs a logical batch: take one from logical_batches(steps) or next_batch()")
        left = len(self._batch) - self._clipping.clipped_sum.examples
        if batch_size > left and (left or not self._clipping.lockstep.is_needed):
            raise ValueError(
                f"expected batch_size <= {left}, the examples left of this logical batch, got {batch_size=}; Poisson "
                "batches vary in size: take it from the microbatch"
            )
        return left

    def step(self) -> None:
        """Record the release, add the noise, put the result into `.grad` and step the optimizer, once per batch.

        The ledger has the step on disk before the noise is drawn. Raises RuntimeError without a logical batch, or if
        some of its examples were not recorded.
        """
        self.privatise()
        self.optimizer.step()

    def privatise(self) -> None:
        """`step()` up to the optimizer: record the release, add the noise, put the result into `.grad`.

        For loops whose owner steps the optimizer: one `optimizer.step()` without a closure must follow before the next
        batch. What is done with the noisy gradient in between (a look at its norm, a rescaling) costs no privacy; a
        backward pass into it would.
        """
        self._processes.same("step()", self._check_step)
        self._processes.agreed(
            "recording the step",
            lambda: self.ledger.record(self.release, clipping_norm=self.clipping_norm, divisor=self.divisor),
        )
        release(
            self._clipping.take(),
            mechanism=self.mechanism,
            noise_scales=self._clipping.noise_scales,
            divisor=self.divisor,
            generator=self._randomness.noise,
            processes=self._processes,
        )
        self._batch = None
        self._step_is_due = True

    def _check_step(self) -> dict[str, str]:
        """What must be the same in all processes."""
        self._check_attached()
        if self._batch is None:
            raise RuntimeError("step() needs a logical batch, each is stepped once; take the next one first")
        recorded = self._clipping.clipped_sum.examples
        if recorded != len(self._batch):
            raise RuntimeError(
                f"the logical batch has {len(self._batch)} examples, {recorded} of them went through record(); Poisson "
                "batches vary in size: go through all microbatches"
            )
        self._clipping.check_unchanged()
        self._clipping.lockstep.settle()
        check_optimizer(self.model, self.optimizer, self._clipping.parameters)
        _refuse_other_gradients(self.optimizer, self._clipping.parameters)
        parameters = self._clipping.parameters.values()
        return {"weights": fingerprint(parameters)} if self._processes.are_several else {}

    # ---- ending, saving -----------------------------------------------------------------------------------------

    def detach(self) -> None:
        """Give model and optimizer back for use without privacy; nothing of this object stays on them."""
        for guard in self._guards:
            guard.remove()
        self._clipping.lockstep.settle()
        self._attached = False

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: generator states of a seeded run only. Raises RuntimeError inside a logical batch."""
        if self._batch is not None or self._step_is_due:
            raise RuntimeError("a checkpoint is taken between logical batches: call step() first")
        return self._randomness.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave. A seeded run repeats its draws; a private one draws fresh noise and samples,
        and every step that is taken again is charged again."""
        self._randomness.load_state_dict(state)

    def _check_attached(self) -> None:
        if not self._attached:
            raise RuntimeError("this training was detached; call make_private again")

    def _refuse_foreign_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        positional = [value for value in args if value is not optimizer]
        if any(value is not None for value in (*positional, kwargs.get("closure"))) or not self._step_is_due:
            raise RuntimeError(
                "optimizer.step() outside PrivateTraining.step() would not be private (a closure computes gradients "
                "without noise); call training.step(), or training.detach() first"
            )

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._step_is_due = False


def innermost(optimizer: Any) -> torch.optim.Optimizer:
    """torch's own optimizer behind wrappers such as accelerate's, whose steps go through it.

    Raises ValueError if it is none of `torch.optim`, or steps only with a closure.
    """
    found = optimizer
    while (inner := getattr(found, "optimizer", None)) is not None:
        found = inner
    if not isinstance(found, torch.optim.Optimizer):
        raise ValueError(f"expected optimizer to be of torch.optim, or derived from it, got {type(found).__name__}")
    closure = inspect.signature(found.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"expected an optimizer whose step() needs no closure, got {type(found).__name__}: a closure computes "
            "gradients anew, without noise; use one such as torch.optim.AdamW"
        )
    return found


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, trainable: Mapping[str, nn.Parameter]) -> None:
    """Raise ValueError unless the optimizer holds the very tensors that the model trains, and none from elsewhere."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    missing = [name for name, parameter in trainable.items() if id(parameter) not in held]
    if missing:
        raise ValueError(
            f"the optimizer does not hold the model's trainable parameters {', '.join(missing)}; build it from the "
            "model's parameters after moving and wrapping the model"
        )
    foreign = held - {id(parameter) for parameter in model.parameters()}
    if foreign:
        raise ValueError(
            f"the optimizer holds {len(foreign)} tensors that are not parameters of the model: they would be trained "
            "without privacy, or not at all; build the optimizer from the model's parameters"
        )


def _refuse_other_gradients(optimizer: torch.optim.Optimizer, trainable: Mapping[str, nn.Parameter]) -> None:
    """Raise ValueError if a frozen parameter held by the optimizer has a gradient: it would go in without noise."""
    private = {id(parameter) for parameter in trainable.values()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(id(parameter) not in private and parameter.grad is not None for parameter in held):
        raise ValueError(
            "the optimizer holds frozen parameters with a gradient, which would be applied without noise; "
            "clear it: optimizer.zero_grad(set_to_none=True)"
        )


def one_step_is_bounded(release: Release) -> None:
    """Raise ValueError now rather than after training if no accountant has a bound for this kind of release."""
    planned(release, delta=1e-5, steps=1)
