"""The zeroth-order training loop: two forward passes per direction, one noisy release per step, update along z."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from ...accounting import Ledger, Release
from ...mechanisms import _validate
from ..checkpoint import check_fields
from ..processes import Processes
from ..randomness import Randomness
from ..replicas import fingerprint
from ..rounds import Rounds
from ..sampling import SharedSampler
from .checks import Losses, check_modules, check_same_parameters, nothing_written, per_example_losses, probe
from .contributions import contributions, noisy_sum
from .directions import Directions
from .perturbation import Perturbation

Rate = float | Callable[[int], float]
"""A learning rate, or a function from the number of updates made so far to one."""


@final
@dataclasses.dataclass(frozen=True)
class Settings:
    """The constants of a run, all chosen before seeing the data."""

    clipping_norm: float
    divisor: float
    smoothing: float
    directions: int
    joint: bool
    weight_decay: float


@final
@dataclasses.dataclass(frozen=True)
class Estimate:
    """What one step released, with its noise: as public as the trained model.

    Attributes:
        numbers: the directions, to be made again from `ZerothOrderTraining.direction_seed`.
        derivatives: (numbers,) float64, the noisy sums over the divisor: estimates of the slope along each direction.
    """

    numbers: tuple[int, ...]
    derivatives: Tensor


@final
class ZerothOrderTraining(Rounds):
    """A model in private training without gradients; built by `make_zeroth_order`.

    One round is: take a logical batch, call `step`. Every logical batch is stepped, the empty ones too. Between steps
    the parameters are those of the model alone. ε can be asked at any time and changes nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        settings: Settings,
        learning_rate: Rate,
        release: Release,
        ledger: Ledger,
        sampler: SharedSampler,
        randomness: Randomness,
        directions: Directions,
        processes: Processes,
    ) -> None:
        super().__init__(release, ledger, sampler, randomness, processes)
        self.model, self.settings, self.learning_rate = model, settings, learning_rate
        self._parameters, self._directions = dict(parameters), directions
        self._perturbation = Perturbation(parameters, directions, settings.smoothing)
        self._probed: set[tuple[bool, bool]] = set()
        self._used = self._updates = 0
        self._waiting: list[Estimate] = []  # scalar releases of an update that is not complete

    # ---- what is being done -------------------------------------------------------------------------------------

    @property
    def direction_seed(self) -> int:
        """The public seed of all directions: independent of data, noise and samples."""
        return self._directions.seed

    @property
    def dimension(self) -> int:
        """The number of trainable parameters. It does not enter ε: `release.dimension` numbers are released."""
        return self._directions.dimension

    # ---- one round ----------------------------------------------------------------------------------------------

    def step(self, losses: Losses, microbatches: Iterable[Tensor] | None = None) -> Estimate:
        """One private step on the logical batch: forward passes at θ ± φz, one release, the update.

        Args:
            losses: indices (b,) of training records to their losses (b,), computed with the model as it then stands.
                Called without gradients, two times per direction for every microbatch. The loss of a record must not
                depend on other records. If it raises, the parameters are restored and the step can be tried again.
            microbatches: the logical batch in parts (`batch.microbatches(size)`); None for all at once. The release
                does not depend on the split, up to rounding inside the model. Low-precision models need size 1: in
                company, rounding alone would let one record move the losses of others.

        The ledger has the step on disk before the noise is drawn.

        Raises:
            RuntimeError: no logical batch, or it was stepped already; the trainable parameters changed; ProcessError:
                the step failed in another process, and was not taken here either.
            ValueError: the microbatches are not the logical batch; the losses are not one per example, are random, mix
                examples or write to buffers.
            UnsupportedModelError: a module draws random masks or mixes examples in its present mode.
        """
        numbers = tuple(range(self._used, self._used + (self.settings.directions if self.settings.joint else 1)))
        parts: list[Tensor] = []

        def check() -> dict[str, Any]:
            parts.extend(self._check_step(microbatches))
            return self._common_state()

        def evaluate() -> Tensor:
            self._probe(losses, parts)
            return self._clipped_sum(losses, parts, numbers)

        rate = self._processes.same("step()", check)["learning rate"]
        try:
            total = self._processes.agreed("computing the losses", evaluate)
            estimate = self._release(total, numbers)
            self._update(estimate, rate)
        finally:
            self._perturbation.restore()
        return estimate

    def _common_state(self) -> dict[str, Any]:
        """What decides the next update, and must be the same in all processes. Raises ValueError for a bad rate."""
        state = {"learning rate": self._rate(), "number of directions used": self._used}
        if self._processes.are_several:
            state["seed of the directions"] = self.direction_seed
            state["weights"] = fingerprint(self._parameters.values())
        return state

    def _check_step(self, microbatches: Iterable[Tensor] | None) -> list[Tensor]:
        """The microbatches, none of them empty."""
        if self._batch is None:
            raise RuntimeError("step() needs a logical batch, each is stepped once; take the next one first")
        check_same_parameters(self.model, self._parameters)
        check_modules(self.model)
        indices = self._batch.indices
        parts = [indices] if microbatches is None else [torch.as_tensor(part) for part in microbatches]
        parts = [part for part in parts if len(part)]
        given = torch.cat(parts).cpu().sort().values if parts else indices[:0]
        if not torch.equal(given, indices):
            raise ValueError(
                f"expected microbatches that hold each of the {len(indices)} examples of the logical batch once, got "
                f"{len(given)} examples; take them from batch.microbatches(size)"
            )
        return parts

    def _probe(self, losses: Losses, parts: list[Tensor]) -> None:
        """Once in each stage: train or eval mode, before and after the first update."""
        stage = self.model.training, self._updates > 0
        largest = max(parts, key=len, default=torch.empty(0))
        if stage not in self._probed and len(largest) > 1:
            with nothing_written(self.model, self._parameters):
                probe(losses, largest, tolerance=_COMPANY * 2 * self.settings.smoothing * self.settings.clipping_norm)
            self._probed.add(stage)

    def _clipped_sum(self, losses: Losses, parts: list[Tensor], numbers: tuple[int, ...]) -> Tensor:
        """Σ over the batch of the clipped differences, (directions,) int64 multiples of C/GRID: private data."""
        if not parts:
            return torch.zeros(len(numbers), dtype=torch.int64)
        columns = []
        for number in numbers:
            higher = self._losses_at(losses, parts, number, +1)
            lower = self._losses_at(losses, parts, number, -1)
            if len(numbers) > 1:
                self._perturbation.restore()
            columns.append((higher - lower) / (2 * self.settings.smoothing))
        return contributions(torch.stack(columns, dim=1), self.settings.clipping_norm).sum(dim=0)

    def _losses_at(self, losses: Losses, parts: list[Tensor], number: int, sign: int) -> Tensor:
        self._perturbation.move_to(number, sign)
        with nothing_written(self.model, self._parameters):
            return torch.cat([per_example_losses(losses, part) for part in parts])

    def _release(self, total: Tensor, numbers: tuple[int, ...]) -> Estimate:
        self._processes.agreed(
            "recording the step",
            lambda: self.ledger.record(
                self.release, clipping_norm=self.settings.clipping_norm, divisor=self.settings.divisor
            ),
        )
        self._batch = None
        self._used += len(numbers)
        noisy = noisy_sum(
            total,
            mechanism=self.mechanism,
            clipping_norm=self.settings.clipping_norm,
            generator=self._randomness.noise,
            processes=self._processes,
        )
        return Estimate(numbers, noisy / self.settings.divisor)

    def _update(self, estimate: Estimate, rate: float) -> None:
        """Along the directions of a joint release, or of the last k scalar ones once there are k."""
        self._waiting.append(estimate)
        numbers = [number for each in self._waiting for number in each.numbers]
        if len(numbers) < self.settings.directions:
            return
        rates = [rate * float(slope) / len(numbers) for each in self._waiting for slope in each.derivatives]
        decay = rate * self.settings.weight_decay
        self._perturbation.restore_and_update(numbers, rates, decay=decay)
        self._waiting = []
        self._updates += 1

    def _rate(self) -> float:
        rate = self.learning_rate(self._updates) if callable(self.learning_rate) else self.learning_rate
        return _validate.non_negative("learning_rate", rate)

    # ---- saving -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint, with the model's own: counters, the public seed, noisy releases not yet applied, and the
        generator states of a seeded run only. Raises RuntimeError inside a logical batch."""
        if self._batch is not None:
            raise RuntimeError("a checkpoint is taken between logical batches: call step() first")
        return {
            "randomness": self._randomness.state_dict(),
            "direction_seed": self.direction_seed,
            "used": self._used,
            "updates": self._updates,
            "waiting": [{"numbers": list(e.numbers), "derivatives": e.derivatives.clone()} for e in self._waiting],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave; directions go on where they stood. A seeded run repeats its draws; a private
        one draws fresh noise and samples, and every step that is taken again is charged again. Raises ValueError naming
        the entry that is missing, or not of its type."""
        if self._batch is not None:
            raise RuntimeError("a checkpoint is loaded between logical batches: call step() first")
        waiting = _waiting(state)
        self._randomness.load_state_dict(state["randomness"])
        self._directions.seed = state["direction_seed"]
        self._used, self._updates = state["used"], state["updates"]
        self._waiting = waiting


def _waiting(state: Any) -> list[Estimate]:
    """The releases not yet applied, of a `state_dict` whose entries are checked."""
    check_fields(state, {"randomness": dict, "direction_seed": int, "used": int, "updates": int, "waiting": list})
    found = []
    for entry in state["waiting"]:
        check_fields(entry, {"numbers": list, "derivatives": Tensor})
        numbers, slopes = tuple(entry["numbers"]), entry["derivatives"]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(f"expected waiting.numbers to be integers >= 0, got {numbers!r}")
        if slopes.shape != (len(numbers),) or slopes.dtype != torch.float64:
            raise ValueError(f"expected waiting.derivatives of shape ({len(numbers)},), got {tuple(slopes.shape)}")
        found.append(Estimate(numbers, slopes.clone()))
    return found


_COMPANY = 1e-3  # of C: how much rounding may move a record's slope when its company changes
