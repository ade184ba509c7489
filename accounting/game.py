"""The distinguishing game on noise alone: draw what is released with and without a record, and bound ε from below.

One record contributes a vector u of L2 norm 1 (units of C), or nothing. The adversary sees all T outputs, knows u and
all other records, and scores them with the log-likelihood ratio of the two laws. `empirical` turns scores into a lower
bound on ε with a stated confidence; a bound above the proven upper end contradicts the proof, the claim or the sampler.

What one release draws is noise + a·u, a random as follows (q: sampling rate).

| batches, adjacency | record present | absent or replaced |
|---|---|---|
| Poisson, add or remove, replace by zero | a = 1 w.p. q, else 0 | 0 |
| Poisson, replace one (all records ±u) | a = 1 w.p. q, else 0 | −1 w.p. q, else 0 |
| fixed size, replace one (other records −u; counted from their sum) | a = 2 w.p. q, else 0 | 0 |
| fixed size, add or remove (other records −u) | a = 2 w.p. q, else 0: it pushes another one out | 0 |
| shuffled epochs, add or remove | a = 1 in one of the 1/q steps of each epoch, 0 in the others | 0 |

The last two rows have no proven ε here: played against the ε that holds for Poisson batches, they show what a loader
with fixed batches gives away under a Poisson guarantee.

Directions u. Independent noise: one coordinate; diagonals over √d and over d coordinates; a random direction. d is cut
at 1000 (a record may leave the other coordinates alone). Where u_i = 0 the output carries nothing and is not drawn.
Isotropic and spherical noise: one direction, as all are alike.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ..mechanisms import SphericalGamma, _validate
from .api import compose_epsilon
from .empirical import EmpiricalEpsilon, choose_test, judge_test
from .interval import EpsilonInterval
from .release import FIXED_SIZE, POISSON, REPLACE_ONE, REPLACE_SPECIAL, Release

if TYPE_CHECKING:  # torch is imported where noise is drawn, so that accounting starts without it
    import torch

Array = NDArray[np.float64]
Sampler = Callable[[tuple[int, ...]], "torch.Tensor | Array"]

SHUFFLED = "shuffled"
BATCHES = (POISSON, FIXED_SIZE, SHUFFLED)
CONSISTENT = "consistent"
"""Verdict of a game that shows no more than is allowed."""
CONTRADICTION = "CONTRADICTION"
"""Verdict of a game that shows more than is allowed: noise, claim or proof is wrong."""

_WIDEST = 1000  # coordinates that a direction spreads over
_CHUNK = 2**21  # noise coordinates drawn at a time
_WORK = 3e7  # noise coordinates in all, unless the number of draws is given
_MOST_DRAWS, _LEAST_DRAWS = 200_000, 1_000


@dataclasses.dataclass(frozen=True)
class Direction:
    """What the record contributes: the vector (k,) of its non-zero coordinates, of L2 norm 1 (units of C)."""

    label: str
    vector: Array


@dataclasses.dataclass(frozen=True)
class GameResult:
    """ε >= `shown.lower` at `delta`, with `confidence`, by `draws` draws of each side along `direction`.

    Attributes:
        release: what was claimed to be released.
        proven: its interval at `delta`, or None where nothing is proven and only `claim` was tested.
        claim: an ε that somebody states, or None.
        batches: how batches were drawn in the game.
        by_direction: the bound that each direction shows by its own; `direction` looked best on the half of the draws
            that does not judge.
    """

    release: Release
    delta: float
    confidence: float
    draws: int
    batches: str
    proven: EpsilonInterval | None
    claim: float | None
    direction: str
    shown: EmpiricalEpsilon
    by_direction: Mapping[str, float]

    @property
    def lower(self) -> float:
        """The ε that is shown, at least 0."""
        return max(self.shown.lower, 0.0)

    @property
    def allowed(self) -> float:
        """The smallest ε that the game was played against: the claim, the proven upper end, or the lesser of both."""
        ends = [math.inf if self.proven is None else self.proven.upper, math.inf if self.claim is None else self.claim]
        return min(ends)

    @property
    def contradicted(self) -> bool:
        """True if more is shown than is allowed: right code is accused with probability at most 1 − confidence."""
        return self.lower > self.allowed

    @property
    def verdict(self) -> str:
        """`consistent` or `CONTRADICTION`."""
        return CONTRADICTION if self.contradicted else CONSISTENT


def distinguishing_game(
    release: Release,
    *,
    delta: float,
    generator: torch.Generator,
    draws: int | None = None,
    confidence: float = 0.999,
    claim: float | None = None,
    batches: str | None = None,
    sampler: Sampler | None = None,
) -> GameResult:
    """Play the game of the module against the proven ε of `release` at `delta`, or against a `claim`.

    Args:
        release: noise, steps, sampling rate, dimension and adjacency of what is said to be released.
        delta: a probability in (0, 1). Larger ones need fewer draws to show much.
        generator: where noise and batches are drawn from (CPU).
        draws: of each of the two laws and each direction, at least 100; half of them choose, half judge. Default: as
            many as need about 3·10^7 noise coordinates, from 1,000 to 200,000.
        confidence: of the bound, in (0, 1).
        claim: an ε to test in place of what is proven here; also where nothing is proven.
        batches: `poisson`, `fixed_size` or `shuffled`: how batches are really drawn. Default: `release.sampling`.
        sampler: gives noise of a shape in units of C, for noise code other than `release.mechanism.sample`.

    Raises:
        ValueError: an argument is out of range; nothing is proven and there is no claim; a game of `shuffled` batches
            whose steps are not whole epochs.
    """
    _validate.open_unit("delta", delta)
    _validate.open_unit("confidence", confidence)
    batches = _validate.one_of("batches", release.sampling if batches is None else batches, BATCHES)
    _check_playable(release, batches)
    if claim is not None:
        _validate.non_negative("claim", claim)
    proven = _proven(release, delta, claim)
    directions = list(_directions(release, generator))
    draws = _draws(draws, release, directions)
    sampler = sampler or (lambda shape: release.mechanism.sample(shape, generator=generator, dtype=_float64()))
    limits = {"delta": delta, "confidence": confidence}
    tests, shown = {}, {}
    for direction in directions:
        table = _Table(release, batches, direction, sampler, generator)
        present, absent = table.scores(draws, present=True), table.scores(draws, present=False)
        tests[direction.label] = test = choose_test(present[::2], absent[::2], **limits)
        shown[direction.label] = judge_test(test, present[1::2], absent[1::2], **limits)
    best = max(tests, key=lambda label: tests[label].expected)
    lowers = {label: found.lower for label, found in shown.items()}
    return GameResult(release, delta, confidence, draws, batches, proven, claim, best, shown[best], lowers)


# ---- what is asked -------------------------------------------------------------------------------------------------


def _check_playable(release: Release, batches: str) -> None:
    if release.steps < 1 or release.sampling_rate == 0:
        raise ValueError(
            f"expected a release that happens, got steps={release.steps} and sampling_rate={release.sampling_rate}: "
            "its epsilon is 0"
        )
    if batches != SHUFFLED:
        return
    if release.adjacency == REPLACE_ONE:
        raise ValueError(f"expected adjacency=add_or_remove_one with batches={SHUFFLED}, got {release.adjacency}")
    epoch = round(1 / release.sampling_rate)
    if abs(epoch * release.sampling_rate - 1) > 1e-9 or release.steps % epoch:
        raise ValueError(
            f"expected whole epochs of 1/sampling_rate steps with batches={SHUFFLED}, got steps={release.steps} and "
            f"sampling_rate={release.sampling_rate}"
        )


def _proven(release: Release, delta: float, claim: float | None) -> EpsilonInterval | None:
    try:
        return compose_epsilon([release], delta=delta)
    except ValueError:
        if claim is None:
            raise
        return None


def _directions(release: Release, generator: torch.Generator) -> Iterator[Direction]:
    import torch

    noise = release.mechanism
    yield Direction("one coordinate", np.ones(1))
    dimension = release.dimension
    if isinstance(noise, SphericalGamma) or noise.isotropic or dimension is None or dimension == 1:
        return
    most = int(min(dimension, _WIDEST))
    for k in sorted({math.isqrt(most), most} - {1}):
        yield Direction(f"diagonal of {k} coordinates", np.full(k, 1 / math.sqrt(k)))
    vector = torch.randn(most, generator=generator, dtype=torch.float64).numpy()
    yield Direction(f"random in {most} coordinates", vector / np.linalg.norm(vector))


def _draws(draws: int | None, release: Release, directions: list[Direction]) -> int:
    if draws is not None:
        return _validate.integer("draws", draws, minimum=100)
    noise = release.mechanism
    each = noise.dimension if isinstance(noise, SphericalGamma) else sum(len(d.vector) for d in directions)
    return int(min(max(_WORK / (2 * each * release.steps), _LEAST_DRAWS), _MOST_DRAWS))


def _float64() -> torch.dtype:
    import torch

    return torch.float64


# ---- the table -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Table:
    """Draws outputs along one direction and scores them."""

    release: Release
    batches: str
    direction: Direction
    sampler: Sampler
    generator: torch.Generator

    @property
    def _laws(self) -> tuple[dict[float, float], dict[float, float]]:
        """P and Q of one release: multiple of u -> its probability (see the module; epochs are drawn as a whole)."""
        q, adjacency = float(self.release.sampling_rate), self.release.adjacency
        if self.batches == POISSON and adjacency == REPLACE_ONE:
            return _law(1.0, q), _law(-1.0, q)
        pushes = self.batches == FIXED_SIZE and adjacency != REPLACE_SPECIAL and (q < 1 or adjacency == REPLACE_ONE)
        return _law(2.0 if pushes else 1.0, q), {0.0: 1.0}

    def scores(self, draws: int, *, present: bool) -> Array:
        """Log-likelihood ratios (draws,) of outputs with or without the record; nan, where both are 0, becomes 0."""
        steps, noise = self.release.steps, self.release.mechanism
        width = noise.dimension if isinstance(noise, SphericalGamma) else len(self.direction.vector)
        size = max(1, _CHUNK // (steps * width))
        parts = []
        for start in range(0, draws, size):
            count = min(size, draws - start)
            outputs = np.asarray(self.sampler((count, steps, width)), dtype=np.float64)
            multiples = self._multiples(count, present)
            outputs[..., : len(self.direction.vector)] += multiples[..., None] * self.direction.vector
            parts.append(np.nan_to_num(self._ratio(outputs), nan=0.0, posinf=math.inf, neginf=-math.inf))
        return np.concatenate(parts)

    def _multiples(self, count: int, present: bool) -> Array:
        """Which multiple of u each release has, shape (count, steps)."""
        import torch

        steps = self.release.steps
        if self.batches == SHUFFLED:
            epoch = round(1 / self.release.sampling_rate)
            where = torch.randint(epoch, (count, steps // epoch, 1), generator=self.generator).numpy()
            return (present * (np.arange(epoch) == where)).reshape(count, steps).astype(np.float64)
        law = self._laws[0 if present else 1]
        tosses = torch.rand((count, steps), generator=self.generator, dtype=torch.float64).numpy()
        bounds = np.cumsum(list(law.values()))[:-1]
        return np.array(list(law))[np.searchsorted(bounds, tosses, side="right")]

    def _ratio(self, outputs: Array) -> Array:
        """log P/Q of whole transcripts (count, steps, width) -> (count,)."""
        with np.errstate(invalid="ignore", divide="ignore"):
            if self.batches == SHUFFLED:
                epoch = round(1 / self.release.sampling_rate)
                loss = self._log_likelihood(outputs, 1.0) - self._log_likelihood(outputs, 0.0)
                return (special.logsumexp(loss.reshape(len(loss), -1, epoch), axis=2) - math.log(epoch)).sum(axis=1)
            p, q = self._laws
            logs = {a: self._log_likelihood(outputs, a) for a in {*p, *q}}
            return (_mixture(p, logs) - _mixture(q, logs)).sum(axis=1)

    def _log_likelihood(self, outputs: Array, multiple: float) -> Array:
        """log density of each release (count, steps) if it had this multiple of u; common factors left out."""
        noise, vector = self.release.mechanism, self.direction.vector
        moved = outputs.copy()
        moved[..., : len(vector)] -= multiple * vector
        if isinstance(noise, SphericalGamma):
            return noise.log_density(np.linalg.norm(moved, axis=-1))
        return noise.log_density(moved).sum(axis=-1)


def _law(multiple: float, rate: float) -> dict[float, float]:
    return {multiple: 1.0} if rate == 1 else {multiple: rate, 0.0: 1 - rate}


def _mixture(law: Mapping[float, float], logs: Mapping[float, Array]) -> Array:
    terms = [math.log(weight) + logs[multiple] for multiple, weight in law.items()]
    return terms[0] if len(terms) == 1 else np.logaddexp(*terms)
