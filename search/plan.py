"""Batch size, number of steps and noise together, for a data set, a privacy budget and a number of examples.

A step samples each of n records with probability q, sums their gradients, each clipped to norm C, adds noise of
standard deviation σ·C per coordinate, and divides by the expected batch b = q·n. So the noise in one averaged update is
σ/b per coordinate, and in the mean of the updates of all T steps

    σ(q, T) / (b·√T),

in units of C; the clipped gradients average to at most C, so this is the noise-to-signal ratio that the privacy budget
forces on the direction that the run can learn. It is what a plan minimises, for b·T within the number of examples that
one can afford: with E = b·T it is σ·√T/E, so a step more must be paid by a smaller σ. It counts the noise added for
privacy alone: neither the sampling error of the gradients (which also falls with E) nor how far T steps can go. The
last is why a plan takes a least number of steps, as large as the optimizer needs: without one the least noise is
usually that of the largest batch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from rich.table import Table

from ..mechanisms import Mechanism, _validate
from ..mechanisms._json import write_json
from .exact import SearchError
from .many import Refused, search_many
from .problem import Problem
from .result import SearchEntry
from .runner import Families

PLAN_FORMAT = 1
FIRST_ORDER = ("gaussian",)
SCALAR = ("gaussian", "laplace", "generalised_gaussian")
"""Families tried by default: where vectors are released, and where one scalar per step is."""
_GRID, _REFINED = 13, 6


@final
@dataclasses.dataclass(frozen=True)
class PlanRow:
    """One way to spend the examples. Noise is a standard deviation per coordinate, in units of C.

    Attributes:
        batch_size: expected batch b = q·n.
        steps: T, the most that b·T <= examples allows.
        sampling_rate: q = b/n.
        entry: the noise with the least variance at this guarantee, over the families asked for.
    """

    batch_size: int
    steps: int
    sampling_rate: float
    entry: SearchEntry

    @property
    def noise(self) -> float:
        """σ: of the noise on the sum of clipped gradients."""
        return math.sqrt(self.entry.cost)

    @property
    def noise_per_update(self) -> float:
        """σ/b: of the noise in one averaged update."""
        return self.noise / self.batch_size

    @property
    def effective_noise(self) -> float:
        """σ/(b·√T): of the noise in the mean of all averaged updates; what a plan minimises."""
        return self.noise_per_update / math.sqrt(self.steps)

    def document(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "steps": self.steps,
            "sampling_rate": self.sampling_rate,
            "noise": self.noise,
            "noise_per_update": self.noise_per_update,
            "effective_noise": self.effective_noise,
            **self.entry.document(),
        }


@final
@dataclasses.dataclass(frozen=True)
class Plan:
    """Rows by increasing batch size, and what was refused and why. `best` has the least effective noise."""

    records: int
    examples: int
    epsilon: float
    delta: float
    dimension: float
    rows: tuple[PlanRow, ...]
    refused: tuple[str, ...]

    @property
    def best(self) -> PlanRow:
        return min(self.rows, key=lambda row: row.effective_noise)

    @property
    def mechanism(self) -> Mechanism:
        """The noise of the best row, in units of C."""
        return self.best.entry.mechanism

    def recipe(self) -> dict[str, dict[str, Any]]:
        """The keys of a recipe that the plan decides, by section; clipping norm and learning rate are yours."""
        best = self.best
        return {
            "privacy": {"epsilon": self.epsilon, "delta": self.delta},
            "training": {
                "steps": best.steps,
                "sampling_rate": best.sampling_rate,
                "batch_size": float(best.batch_size),
            },
        }

    def overrides(self) -> list[str]:
        """The same as `--set` options of `optnoise finetune`."""
        return [f"{name}.{key}={value!r}" for name, section in self.recipe().items() for key, value in section.items()]

    def document(self) -> dict[str, Any]:
        """JSON-ready. `results` holds the rows, best first, so that the file serves as a noise file too."""
        rows = sorted(self.rows, key=lambda row: row.effective_noise)
        return {
            "format": PLAN_FORMAT,
            "records": self.records,
            "examples": self.examples,
            "dimension": None if self.dimension == math.inf else self.dimension,
            "recipe": self.recipe(),
            "overrides": self.overrides(),
            "results": [row.document() for row in rows],
            "refused": list(self.refused),
        }

    def save(self, path: str | Path) -> None:
        """Write the JSON file, whole or not at all."""
        write_json(Path(path), self.document())


def plan(
    *,
    records: int,
    examples: int,
    epsilon: float,
    delta: float,
    dimension: float = math.inf,
    families: Families | None = None,
    least_steps: int = 1,
    largest_batch: int | None = None,
    batch_sizes: Sequence[int] | None = None,
    n_jobs: int | None = None,
    progress: bool = True,
    resume: str | Path | None = None,
) -> Plan:
    """Choose batch size, steps and noise with the least effective noise σ/(b·√T); see the module's text.

    Args:
        records: n, the (public) number of records of the data set.
        examples: how many gradients of one example one can afford, epochs·n: b·T stays within it.
        epsilon: target ε of the whole run.
        delta: its δ.
        dimension: coordinates released per step: the number of trainable parameters (or inf) for first-order training,
            1 for one scalar per step (zeroth-order).
        families: of noise, as for `search`; the Gaussian for vectors, three families for scalars if not given.
        least_steps: T is at least this.
        largest_batch: b is at most this (memory and time of one step); n if not given.
        batch_sizes: the expected batch sizes to look at; else a geometric grid and a finer one around its best.
        n_jobs: processes, as for `search_many`.
        progress: show bars on standard error.
        resume: a folder for finished parts, as for `search`.

    Raises:
        ValueError: an argument is out of range, or no batch size fits.
        SearchError: nothing is proven for any row.
    """
    records = _validate.integer("records", records, minimum=1)
    examples = _validate.integer("examples", examples, minimum=1)
    least_steps = _validate.integer("least_steps", least_steps, minimum=1)
    most = largest_of(records, examples, least_steps, largest_batch)
    asked = Problem(epsilon, delta, 1, 1.0, dimension, "variance")
    families = families or (SCALAR if asked.dimension == 1 else FIRST_ORDER)
    work = Work(asked, records, examples, families, n_jobs, progress, resume)
    if batch_sizes is not None:
        rows, refused = work.rows([fitting(size, most) for size in batch_sizes])
        return work.plan(rows, refused)
    rows, refused = work.refined(geometric(max(1.0, most / 1000), most, _GRID), lambda row: row.effective_noise)
    return work.plan(rows, refused)


def largest_of(records: int, examples: int, least_steps: int, largest_batch: int | None) -> int:
    """The largest batch size that the limits of `plan` leave, or a ValueError; whole numbers >= 1 but for the last."""
    most = records if largest_batch is None else _validate.integer("largest_batch", largest_batch, minimum=1)
    most = min(most, records, examples // least_steps)
    if most < 1:
        raise ValueError(f"expected examples >= least_steps, got examples={examples} and least_steps={least_steps}")
    return most


def fitting(size: int, most: int) -> int:
    """`size` if it is a batch size within the limits of `plan`, or a ValueError."""
    size = _validate.integer("batch size", size, minimum=1)
    if size > most:
        raise ValueError(
            f"expected batch sizes <= {most} (the records, largest_batch and examples/least_steps), got {size}"
        )
    return size


def geometric(low: float, high: float, count: int) -> list[int]:
    """At most `count` whole numbers, increasing, evenly spread over the logarithms."""
    return sorted({round(size) for size in np.geomspace(low, high, count)})


@dataclasses.dataclass(frozen=True)
class Work:
    """What a plan computes for batch sizes: the least noise for `asked` (its T and q set by the size)."""

    asked: Problem
    records: int
    examples: int
    families: Families
    n_jobs: int | None
    progress: bool
    resume: str | Path | None

    def rows(self, sizes: Sequence[int]) -> tuple[list[PlanRow], list[str]]:
        problems, refused = {}, []
        for size in sizes:
            try:
                problems[size] = dataclasses.replace(
                    self.asked, steps=self.examples // size, sampling_rate=size / self.records
                )
            except ValueError as error:
                refused.append(f"batch size {size}: {error}")
        if not problems:
            return [], refused
        found = search_many(
            problems.values(),
            families=self.families,
            n_jobs=self.n_jobs,
            progress=self.progress,
            resume=self.resume,
        )
        rows = []
        for size, result in zip(problems, found, strict=True):
            if isinstance(result, Refused):
                refused.append(f"batch size {size}: {result.reason}")
            else:
                rows.append(PlanRow(size, result.problem.steps, result.problem.sampling_rate, result.best))
        return rows, refused

    def refined(self, sizes: list[int], value: Callable[[PlanRow], float]) -> tuple[list[PlanRow], list[str]]:
        """Rows of a grid and of a finer one around the row of the least `value`; and what was refused."""
        rows, refused = self.rows(sizes)
        if not rows:
            return rows, refused
        i = sizes.index(min(rows, key=value).batch_size)
        around = geometric(sizes[max(i - 1, 0)], sizes[min(i + 1, len(sizes) - 1)], _REFINED)
        more, more_refused = self.rows([size for size in around if size not in sizes])
        return rows + more, refused + more_refused

    def plan(self, rows: list[PlanRow], refused: list[str]) -> Plan:
        if not rows:
            raise SearchError(f"no batch size has a proven noise: {'; '.join(refused)}")
        rows.sort(key=lambda row: row.batch_size)
        asked = self.asked
        return Plan(
            self.records, self.examples, asked.epsilon, asked.delta, asked.dimension, tuple(rows), tuple(refused)
        )


def render_plan(found: Plan) -> Table:
    """The rows as a table, the best one bold."""
    title = f"{found.records} records, {found.examples} examples, ε <= {found.epsilon:g} at δ = {found.delta:g}, " + (
        "every dimension" if found.dimension == math.inf else f"dimension {found.dimension:g}"
    )
    table = Table(title=title)
    headings = ("batch", "steps", "q", "noise", "σ [C]", "σ/b [C]", "σ/(b√T) [C]")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in found.rows:
        cells = (
            str(row.batch_size),
            str(row.steps),
            f"{row.sampling_rate:.4g}",
            row.entry.family,
            *(f"{value:.4g}" for value in (row.noise, row.noise_per_update, row.effective_noise)),
        )
        table.add_row(*cells, style="bold" if row is found.best else None)
    return table
