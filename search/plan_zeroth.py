"""Batch size, steps, clip, noise and number of directions of a zeroth-order run: the least error of its estimate.

The error of one step by its parts is that of `clipped_slopes`: direction 1, sample, noise, in units of |g|²·d/k. The
mean of T steps at one point has the T-th part, so a plan minimises

    (1 + sample + noise)/(k·T)      with b·k·T within the examples,

and d times that is the mean estimate's squared error over |g|². Here k directions are measured on one batch and
released as one vector (dimension k); k scalars, each on a batch of its own, are k = 1 with k times the steps.

It stands on an assumed signal ρ = |g|/S, which falls during training: it speaks of the start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from rich.table import Table

from ..mechanisms import Mechanism, _validate
from ..mechanisms._json import write_json
from .clipped_slopes import SlopeError, best_clip, check_signal, slope_error
from .exact import SearchError
from .plan import FIRST_ORDER, PLAN_FORMAT, SCALAR, PlanRow, Work, fitting, geometric, largest_of
from .problem import Problem
from .runner import Families

_GRID = 13


@final
@dataclasses.dataclass(frozen=True)
class ZerothRow:
    """One way to spend the examples: k joint directions, a batch size with its steps and noise, a clip c = C/S."""

    directions: int
    row: PlanRow
    clip: float
    error: SlopeError

    @property
    def mean_error(self) -> float:
        """(1 + sample + noise)/(k·T): squared error of the mean of all estimates over |g|²·d; what is minimised."""
        return self.error.total / (self.directions * self.row.steps)

    def document(self, trainable: int | None) -> dict[str, Any]:
        total = self.error.total
        return {
            "directions": self.directions,
            "clip": self.clip,
            "mean_error": self.mean_error,
            "relative_error": None if trainable is None else trainable * self.mean_error,
            "direction_share": self.error.direction / total,
            "sample_share": self.error.sample / total,
            "noise_share": self.error.noise_share,
            **self.row.document(),
        }


@final
@dataclasses.dataclass(frozen=True)
class ZerothPlan:
    """Rows by directions and batch size, and what was refused and why. `best` has the least `mean_error`."""

    records: int
    examples: int
    epsilon: float
    delta: float
    signal: float
    trainable: int | None
    rms_slope: float | None
    rows: tuple[ZerothRow, ...]
    refused: tuple[str, ...]

    @property
    def best(self) -> ZerothRow:
        return min(self.rows, key=lambda row: row.mean_error)

    @property
    def mechanism(self) -> Mechanism:
        """The noise of the best row, in units of C."""
        return self.best.row.entry.mechanism

    def recipe(self) -> dict[str, dict[str, Any]]:
        """The keys of a recipe that the plan decides, by section; the clipping norm only where S was given."""
        best = self.best
        privacy = {"epsilon": self.epsilon, "delta": self.delta}
        if self.rms_slope is not None:
            privacy["clipping_norm"] = best.clip * self.rms_slope
        return {
            "privacy": privacy,
            "training": {
                "steps": best.row.steps,
                "sampling_rate": best.row.sampling_rate,
                "batch_size": float(best.row.batch_size),
                "directions": best.directions,
            },
        }

    def overrides(self) -> list[str]:
        """The same as `--set` options of `optnoise finetune --method zeroth-order`."""
        return [f"{name}.{key}={value!r}" for name, section in self.recipe().items() for key, value in section.items()]

    def document(self) -> dict[str, Any]:
        """JSON-ready. `results` holds the rows, best first, so that the file serves as a noise file too."""
        return {
            "format": PLAN_FORMAT,
            "method": "zeroth_order",
            "records": self.records,
            "examples": self.examples,
            "signal": self.signal,
            "trainable": self.trainable,
            "rms_slope": self.rms_slope,
            "recipe": self.recipe(),
            "overrides": self.overrides(),
            "results": [row.document(self.trainable) for row in sorted(self.rows, key=lambda row: row.mean_error)],
            "refused": list(self.refused),
        }

    def save(self, path: str | Path) -> None:
        """Write the JSON file, whole or not at all."""
        write_json(Path(path), self.document())


def plan_zeroth_order(
    *,
    records: int,
    examples: int,
    epsilon: float,
    delta: float,
    directions: Sequence[int] = (1,),
    signal: float = 0.1,
    clip: float | None = None,
    trainable: int | None = None,
    rms_slope: float | None = None,
    families: Families | None = None,
    least_steps: int = 1,
    largest_batch: int | None = None,
    batch_sizes: Sequence[int] | None = None,
    n_jobs: int | None = None,
    progress: bool = True,
    resume: str | Path | None = None,
) -> ZerothPlan:
    """Choose directions, batch size, steps, clip and noise with the least error of the estimate; see the module's text.

    Args:
        records: as for `plan`, and so is everything that is not listed here.
        examples: slopes of one example along one direction that one can afford: b·k·T stays within it.
        directions: the numbers k >= 1 of joint directions to look at.
        signal: ρ = |g|/S in (0, 1], assumed. It holds at the start only.
        clip: c = C/S > 0; the best one of every row if not given.
        trainable: D, the number of trainable parameters, for the relative error; it does not move the choice.
        rms_slope: S > 0, assumed or of public data; then the recipe gets the clipping norm c·S.
        families: of noise; three for one direction, the Gaussian for several if not given.

    Raises:
        ValueError: an argument is out of range, or no batch size fits.
        SearchError: nothing is proven for any row.
    """
    records = _validate.integer("records", records, minimum=1)
    examples = _validate.integer("examples", examples, minimum=1)
    least_steps = _validate.integer("least_steps", least_steps, minimum=1)
    signal = check_signal(signal)
    clip = None if clip is None else _validate.positive("clip", clip)
    trainable = None if trainable is None else _validate.integer("trainable", trainable, minimum=1)
    rms_slope = None if rms_slope is None else _validate.length("rms_slope", rms_slope)
    numbers = sorted({_validate.integer("directions", k, minimum=1) for k in directions})
    if not numbers:
        raise ValueError("expected directions to hold a number k >= 1, got none")
    jobs = []
    for k in numbers:
        most = largest_of(records, examples // k, least_steps, largest_batch)
        sizes = None if batch_sizes is None else [fitting(size, most) for size in batch_sizes]
        asked = Problem(epsilon, delta, 1, 1.0, k, "variance")
        chosen = families or (SCALAR if k == 1 else FIRST_ORDER)
        jobs.append((k, most, sizes, Work(asked, records, examples // k, chosen, n_jobs, progress, resume)))
    rows, refused = [], []
    for k, most, sizes, work in jobs:
        found, reasons = _rows(work, k, most, sizes, signal, clip)
        rows += found
        refused += [f"{k} direction{'s' * (k > 1)}, {reason}" for reason in reasons]
    if not rows:
        raise SearchError(f"no batch size has a proven noise: {'; '.join(refused)}")
    return ZerothPlan(records, examples, epsilon, delta, signal, trainable, rms_slope, tuple(rows), tuple(refused))


def _rows(
    work: Work, k: int, most: int, sizes: list[int] | None, signal: float, clip: float | None
) -> tuple[list[ZerothRow], list[str]]:
    """The rows of one number of directions, by batch size."""

    def judged(row: PlanRow) -> ZerothRow:
        use = {"noise": row.noise, "batch_size": row.batch_size, "sampling_rate": row.sampling_rate, "directions": k}
        c = best_clip(**use, signal=signal) if clip is None else clip
        return ZerothRow(k, row, c, slope_error(c, **use, signal=signal))

    if sizes is not None:
        found, refused = work.rows(sizes)
    else:
        grid = geometric(max(1.0, most / 1_000), most, _GRID)
        found, refused = work.refined(grid, lambda row: judged(row).mean_error)
    return [judged(row) for row in sorted(found, key=lambda row: row.batch_size)], refused


def render_zeroth_plan(found: ZerothPlan) -> Table:
    """The rows as a table, the best one bold. Shares are of the error: of direction, sample and noise."""
    title = (
        f"{found.records} records, {found.examples} slopes, ε <= {found.epsilon:g} at δ = {found.delta:g}, "
        f"signal {found.signal:g} (assumed; at the start)"
    )
    caption = "share of the error: direction, sample, noise; the last is what a better noise can lower at most"
    table = Table(title=title, caption=caption)
    error = "error [|g|²]" if found.trainable is not None else "error [d|g|²]"
    for heading in ("k", "batch", "steps", "noise", "σ [C]", "C/S", "shares %", error):
        table.add_column(heading, justify="right", overflow="fold")
    for one in found.rows:
        total = one.error.total
        parts = [100 * part / total for part in (one.error.direction, one.error.sample, one.error.noise)]
        table.add_row(
            *(str(one.directions), str(one.row.batch_size), str(one.row.steps), one.row.entry.family),
            *(f"{one.row.noise:.4g}", f"{one.clip:.3g}", "{:.0f}, {:.0f}, {:.1f}".format(*parts)),
            f"{one.mean_error * (found.trainable or 1):.4g}",
            style="bold" if one is found.best else None,
        )
    return table
