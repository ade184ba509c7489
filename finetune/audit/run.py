"""`audit_run`: one training run with canaries, and the ε that it shows beside the ε that is proven for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...accounting import CONSISTENT, CONTRADICTION, EmpiricalEpsilon, EpsilonInterval, epsilon_from_scores
from ...mechanisms import Mechanism, _validate
from ..private import PrivateTraining
from ..progress import progress_bar
from ..sampling import LogicalBatch
from .canaries import GradientCanaries, Placed, sampled_loss, secret_bits
from .contributions import ContributionCheck, check_contributions
from .one_run import OneRunBound, epsilon_from_one_run, guess_options
from .sampling import BatchCheck, check_batches

Losses = Callable[..., Tensor]
"""(model, *columns of a microbatch) -> losses (b,), one for each example."""
Build = Callable[[int], PrivateTraining]
"""Number of records -> a fresh training on so many, made by `make_private`."""


@dataclasses.dataclass(frozen=True, eq=False)
class AuditResult:
    """ε >= `lower` at `delta`, with `confidence`: shown by one run whose proven interval is `proven`.

    Attributes:
        bound: right guesses, guesses, lower bound.
        scores: (m,), one for each canary, larger if it looks included.
        included: (m,) booleans, the coins.
        batches: whether the run's batches were Poisson samples (`check_batches`, at its own confidence of 0.999); None
            for a run of one step.
        games: where each canary was a distinguishing game of its own (coordinate canaries, no data): what they show as
            so many independent draws. Sharper than `bound`, and true of code whose noise and batches are independent;
            other code can be accused by it, but not of exactly that ε.
        contributions: what single canaries add to the clipped sum (input canaries only).
    """

    bound: OneRunBound
    proven: EpsilonInterval
    delta: float
    confidence: float
    scores: NDArray[np.float64]
    included: NDArray[np.bool_]
    batches: BatchCheck | None = None
    games: EmpiricalEpsilon | None = None
    contributions: ContributionCheck | None = None

    @property
    def lower(self) -> float:
        """The ε that is shown, whatever the code does."""
        return self.bound.lower

    @property
    def contradicted(self) -> bool:
        """True if `bound` or `games` shows more than is proven, `batches` are no Poisson samples, or one of the
        `contributions` is larger than the clipping norm.

        Right code is accused by each of the first three with at most its own failure probability, never by the last.
        """
        shown = self.lower if self.games is None else max(self.lower, self.games.lower)
        checks = [check for check in (self.batches, self.contributions) if check is not None]
        return shown > self.proven.upper or any(check.contradicted for check in checks)

    @property
    def verdict(self) -> str:
        """`consistent` or `CONTRADICTION`."""
        return CONTRADICTION if self.contradicted else CONSISTENT

    def __str__(self) -> str:
        games = "" if self.games is None else f"as independent games: epsilon >= {max(self.games.lower, 0.0):.4g}; "
        checks = "" if self.batches is None else f"; Poisson batches: {self.batches.verdict}"
        if (sizes := self.contributions) is not None:
            checks += f"; contributions up to {sizes.largest:.4g} of the clipping norm: {sizes.verdict}"
        return (
            f"{self.verdict}: shown epsilon >= {self.lower:.4g} with confidence {self.confidence:g} "
            f"({self.bound.correct} of {sum(self.bound.guesses)} guesses right, {len(self.scores)} canaries); "
            f"{games}proven epsilon in {self.proven.text()} at delta = {self.delta:g}{checks}"
        )


def audit_run(
    build: Build,
    losses: Losses,
    data: Sequence[Tensor],
    canaries: Sequence[Tensor] | GradientCanaries,
    *,
    steps: int,
    delta: float,
    generator: torch.Generator,
    confidence: float = 0.95,
    microbatch: int = 256,
    guesses: Sequence[tuple[int, int]] | None = None,
    progress: bool = False,
) -> AuditResult:
    """Train once on `data` and a random half of `canaries`; tell from the result which half, and so bound ε.

    Args:
        build: called once with the number of records (data and included canaries). Clipping norm, sampling rate and
            divisor must not depend on it. The model may be any, its weights must not come from the canaries.
        losses: losses of examples, from the model and the columns of a microbatch.
        data: columns, tensors whose first axis are the n records; may be empty for gradient canaries.
        canaries: columns of m further examples, like `data` (see `mislabelled`), or `GradientCanaries`. They must be
            fixed before the run, and their presence may show nowhere but in the run.
        steps: logical batches T.
        delta: of both ends, in (0, 1); m·delta should be well below 1.
        generator: of the coins and the canaries' directions (CPU). The training draws from its own.
        confidence: of the lower bound.
        microbatch: examples that are recorded together.
        guesses: see `epsilon_from_one_run`.
        progress: show a bar over the steps on the error stream.

    Raises:
        ValueError: an argument is not what it should be; scores are nan.

    Example: `docs/audits.md`.
    """
    _validate.open_unit("delta", delta)
    _validate.open_unit("confidence", confidence)
    steps = _validate.integer("steps", steps, minimum=1)
    if not isinstance(canaries, GradientCanaries):
        _check_columns(data, canaries)
    records = _rows("data", data)
    count = canaries.count if isinstance(canaries, GradientCanaries) else _rows("canaries", canaries)
    coins = secret_bits(count, generator=generator)
    guesses = guess_options(guesses, count)  # refused now rather than after the run
    training = build(records + int(coins.sum()))
    if training.processes.are_several:
        raise ValueError(
            f"expected a training in one process, got {training.processes.size}: coins and scores are one process's; "
            "build it with process_group=None"
        )
    score: _GradientScore | _LossScore
    if isinstance(canaries, GradientCanaries):
        columns = data
        score = _GradientScore(canaries.place(training, generator=generator), coins, records, training)
    else:
        columns = [torch.cat([column, extra[coins]]) for column, extra in zip(data, canaries, strict=True)]
        score = _LossScore(training.model, losses, canaries, microbatch)
    drawn = []
    with progress_bar(f"audit with {count} canaries", shown=progress) as update:
        for batch in training.logical_batches(steps):
            drawn.append(batch.indices)
            _record(training, losses, columns, score.examples(batch), microbatch)
            training.privatise()
            score.see()
            training.optimizer.step()
            update(len(drawn), steps, "steps")
    apart = isinstance(canaries, GradientCanaries) and canaries.kind == "coordinate" and not records
    apart = apart and isinstance(training.mechanism, Mechanism)  # drawn independently per coordinate
    result = _judge(training, score.scores(), coins.numpy(), drawn, records, delta, confidence, guesses, as_games=apart)
    if isinstance(canaries, GradientCanaries):
        return result
    return dataclasses.replace(result, contributions=check_contributions(training, losses, canaries))


def _judge(
    training: PrivateTraining,
    scores: NDArray[np.float64],
    included: NDArray[np.bool_],
    drawn: Sequence[Tensor],
    records: int,
    delta: float,
    confidence: float,
    guesses: Sequence[tuple[int, int]] | None,
    *,
    as_games: bool,
) -> AuditResult:
    bound = epsilon_from_one_run(scores, included, delta=delta, confidence=confidence, guesses=guesses)
    batches = games = None
    if len(drawn) > 1:
        size, rate = records + int(included.sum()), training.release.sampling_rate
        batches = check_batches(drawn, dataset_size=size, sampling_rate=rate)
    if as_games and 2 <= included.sum() <= len(included) - 2:
        games = epsilon_from_scores(scores[included], scores[~included], delta=delta, confidence=confidence)
    return AuditResult(bound, training.epsilon(delta=delta), delta, confidence, scores, included, batches, games)


def _record(
    training: PrivateTraining, losses: Losses, columns: Sequence[Tensor], examples: Tensor, microbatch: int
) -> None:
    for indices in LogicalBatch(examples).microbatches(microbatch):
        with training.record(len(indices)) as recording:
            recording.backward(losses(training.model, *(column[indices] for column in columns)))


class _LossScore:
    """How far the loss of each canary fell from the initial model to the last (Steinke et al., black box)."""

    def __init__(self, model: nn.Module, losses: Losses, canaries: Sequence[Tensor], microbatch: int) -> None:
        self._model, self._losses, self._canaries, self._microbatch = model, losses, canaries, microbatch
        self._before = self._now()

    def examples(self, batch: LogicalBatch) -> Tensor:
        return batch.indices

    def see(self) -> None:
        pass

    def scores(self) -> NDArray[np.float64]:
        return self._before - self._now()

    def _now(self) -> NDArray[np.float64]:
        modes, found = {module: module.training for module in self._model.modules()}, []
        self._model.eval()
        with torch.no_grad():
            for indices in torch.arange(len(self._canaries[0])).split(self._microbatch):
                found.append(self._losses(self._model, *(column[indices] for column in self._canaries)))
        for module, training in modes.items():
            module.training = training
        return torch.cat(found).double().cpu().numpy()


class _GradientScore:
    """The summed privacy losses of the noisy sums along each canary's direction (white box)."""

    def __init__(self, placed: Placed, coins: Tensor, records: int, training: PrivateTraining) -> None:
        self._placed, self._records, self._rate = placed, records, training.release.sampling_rate
        self._members = coins.nonzero().flatten()
        self._total = np.zeros(len(coins))

    def examples(self, batch: LogicalBatch) -> Tensor:
        """The examples of the batch; its canaries, numbered after the records, are added here."""
        indices = batch.indices
        self._placed.contribute(self._members[indices[indices >= self._records] - self._records])
        return indices[indices < self._records]

    def see(self) -> None:
        self._total += sampled_loss(self._placed.losses(), self._rate)

    def scores(self) -> NDArray[np.float64]:
        return self._total


def _rows(name: str, columns: Sequence[Tensor]) -> int:
    if isinstance(columns, Tensor):
        raise ValueError(f"expected {name} to be a sequence of columns, got one tensor; write ({name},)")
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        raise ValueError(f"expected {name} to be columns of one length, got lengths {sorted(lengths)}")
    return lengths.pop() if lengths else 0


def _check_columns(data: Sequence[Tensor], canaries: Sequence[Tensor]) -> None:
    if len(data) != len(canaries) or not canaries:
        raise ValueError(f"expected canaries to have the columns of data, got {len(canaries)} and {len(data)}")
    for i, (column, extra) in enumerate(zip(data, canaries, strict=True)):
        if column.shape[1:] != extra.shape[1:] or column.dtype != extra.dtype:
            raise ValueError(
                f"expected canaries[{i}] to be like data[{i}], {column.dtype} of shape (m, *{tuple(column.shape[1:])}),"
                f" got {extra.dtype} of shape {tuple(extra.shape)}"
            )
