"""What first- and zeroth-order training have in common: one Poisson batch after another, each charged in a ledger."""

from __future__ import annotations

from collections.abc import Iterator

from ..accounting import EpsilonInterval, Ledger, Release, epsilon
from ..mechanisms import Noise
from .processes import Processes
from .randomness import Randomness
from .sampling import LogicalBatch, SharedSampler


class Rounds:
    """Rounds of private training: take a logical batch, work on it, step.

    Attributes:
        release: one step, as it is accounted.
        ledger: all steps so far.
    """

    def __init__(
        self, release: Release, ledger: Ledger, sampler: SharedSampler, randomness: Randomness, processes: Processes
    ) -> None:
        self.release, self.ledger = release, ledger
        self._sampler, self._randomness, self._processes = sampler, randomness, processes
        self._batch: LogicalBatch | None = None

    @property
    def mechanism(self) -> Noise:
        """The noise of each release, in units of C."""
        return self.release.mechanism

    @property
    def seeded(self) -> bool:
        """True if noise and samples come from a seed: such a run is *not private*."""
        return self._randomness.seeded

    @property
    def secure(self) -> bool:
        """True if noise and samples come from a cryptographic generator and noisy sums lie on a grid."""
        return self._randomness.secure

    @property
    def batch_size(self) -> int:
        """Number of examples of the logical batch now in work that this process has: never count on a fixed size."""
        return 0 if self._batch is None else len(self._batch)

    def epsilon(self, *, delta: float, further_steps: int = 0) -> EpsilonInterval:
        """ε of all steps so far (and of `further_steps` more like them) at `delta`; `upper` is the guarantee."""
        if self.ledger.steps == 0 and further_steps:
            return planned(self.release, delta=delta, steps=further_steps)
        return self.ledger.epsilon(delta=delta, further_steps=further_steps)

    def logical_batches(self, steps: int) -> Iterator[LogicalBatch]:
        """Draw `steps` Poisson batches, one after another. Raises RuntimeError if one was left without `step`."""
        for _ in range(steps):
            yield self.next_batch()
        if self._batch is not None:
            raise RuntimeError(UNSTEPPED)

    def next_batch(self) -> LogicalBatch:
        """Draw the next Poisson batch, or this process's share; it may be empty. Raises RuntimeError if the last one
        was not stepped."""
        self._batch = self._sampler.draw(self._check_stepped)
        return self._batch

    def _check_stepped(self) -> None:
        """Raise RuntimeError if a batch is still in work."""
        if self._batch is not None:
            raise RuntimeError(UNSTEPPED)


def planned(release: Release, *, delta: float, steps: int) -> EpsilonInterval:
    """ε of `steps` releases of this kind."""
    return epsilon(
        release.mechanism,
        delta=delta,
        steps=steps,
        sampling_rate=release.sampling_rate,
        dimension=release.dimension,
        adjacency=release.adjacency,
    )


UNSTEPPED = "the logical batch before this one was not stepped: call step() for every batch, the empty ones too"
