"""The map of where other noise beats the Gaussian: cost ratios over numbers of releases and of coordinates.

A cell is a problem; for each family it holds the least cost found over that of the exactly calibrated Gaussian, at a
guarantee that is proven for the cell's dimension. In one coordinate `optimum` is the noise of `search.convex`; in more,
`l2_mechanism` is the spherical density ∝ e^{−|x|/b}. Cells are computed once and kept in a folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import joblib

from .. import __version__
from ..accounting import calibrate
from ..mechanisms import Gaussian, SphericalGamma, _validate
from ..mechanisms._json import write_json
from ._progress import track
from .convex import convex_optimum
from .families import PROPOSERS
from .problem import Problem
from .runner import SearchError, search

OPTIMUM, L2_MECHANISM = "optimum", "l2_mechanism"
QUICK = ("laplace", "gamma_laplace", OPTIMUM, L2_MECHANISM)
"""Families of the default map: seconds a cell. The LMO grid takes longer."""
_WRITTEN = 1  # version of a cell's file


@final
@dataclasses.dataclass(frozen=True)
class Cell:
    """Ratios to the Gaussian's cost by family (None: nothing proven, or no finite cost), and why where None."""

    problem: Problem
    gaussian_cost: float
    ratios: dict[str, float | None]
    reasons: dict[str, str]

    @property
    def best(self) -> tuple[str, float]:
        """(family, ratio) of the least ratio; the Gaussian, 1, if nothing is below it."""
        found = {family: ratio for family, ratio in self.ratios.items() if ratio is not None}
        family = min(found, key=lambda name: found[name], default="gaussian")
        return (family, found[family]) if found and found[family] < 1 - 1e-4 else ("gaussian", 1.0)

    def document(self) -> dict[str, Any]:
        return {
            "format": _WRITTEN,
            "problem": self.problem.document(),
            "gaussian_cost": self.gaussian_cost,
            "ratios": self.ratios,
            "reasons": self.reasons,
        }

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Cell:
        """The cell that `document` wrote; ValueError names what is wrong."""
        fields = {"format", "problem", "gaussian_cost", "ratios", "reasons"}
        if not isinstance(document, dict) or set(document) != fields or document["format"] != _WRITTEN:
            raise ValueError(f"expected a map cell with the fields {', '.join(sorted(fields))}, format={_WRITTEN}")
        problem = Problem.from_document(document["problem"])
        return cls(problem, document["gaussian_cost"], document["ratios"], document["reasons"])


@final
@dataclasses.dataclass(frozen=True)
class RegimeMap:
    """Cells over `steps` (columns) and `dimensions` (rows); `cells[row][column]`."""

    steps: tuple[int, ...]
    dimensions: tuple[float, ...]
    families: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]

    def ratios(self, family: str | None = None) -> list[list[float]]:
        """Ratio of `family`, or of the best, per row and column; NaN where there is none."""
        if family is None:
            return [[cell.best[1] for cell in row] for row in self.cells]
        return [[_number(cell.ratios.get(family)) for cell in row] for row in self.cells]

    def document(self) -> dict[str, Any]:
        """JSON-ready: all cells, row by row."""
        return {
            "steps": list(self.steps),
            "dimensions": [None if d == math.inf else d for d in self.dimensions],
            "families": list(self.families),
            "cells": [[cell.document() for cell in row] for row in self.cells],
        }


def regime_map(
    template: Problem,
    *,
    steps: Sequence[int],
    dimensions: Sequence[float],
    families: Sequence[str] = QUICK,
    folder: str | Path | None = None,
    n_jobs: int = 1,
    progress: bool = True,
) -> RegimeMap:
    """Compute the map for the budget, sampling rate and cost of `template`.

    Args:
        template: its steps and dimension are replaced by those of each cell.
        steps: numbers of releases T, each >= 1.
        dimensions: numbers of coordinates, integers >= 1 or `math.inf`.
        families: names of searched families, "optimum" (one coordinate) and "l2_mechanism" (2 <= d < inf).
        folder: cells are written here as they are done, and read again by the next call; None keeps nothing.
        n_jobs: processes, as in joblib; any joblib backend may be chosen around the call.

    Raises:
        ValueError: an empty list, an unknown family, a template with several budgets, or values that `Problem` refuses.
    """
    families = _check_families(families)
    if template.also:
        raise ValueError(f"the map is for one budget, got {len(template.constraints)} (also={template.also!r})")
    if not steps or not dimensions:
        raise ValueError(f"expected at least one of each, got steps={list(steps)} and dimensions={list(dimensions)}")
    problems = [[dataclasses.replace(template, steps=t, dimension=d) for t in steps] for d in dimensions]
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    tasks = [joblib.delayed(_cell)(problem, families, folder) for row in problems for problem in row]
    done: Any = joblib.Parallel(n_jobs=n_jobs, return_as="generator")(tasks)
    cells = list(track(done, f"map of {len(tasks)} cells", show=progress, total=len(tasks)))
    width = len(steps)
    rows = tuple(tuple(cells[i : i + width]) for i in range(0, len(cells), width))
    return RegimeMap(tuple(steps), tuple(dimensions), families, rows)


def _check_families(families: Sequence[str]) -> tuple[str, ...]:
    known = (*PROPOSERS, OPTIMUM, L2_MECHANISM)
    if isinstance(families, str) or not families:
        raise ValueError(f"expected families to be a non-empty list of names, got families={families!r}")
    for family in families:
        _validate.one_of("family", family, known)
    return tuple(dict.fromkeys(families))


def _cell(problem: Problem, families: tuple[str, ...], folder: str | Path | None) -> Cell:
    path = None if folder is None else Path(folder) / f"cell-{_key(problem, families)}.json"
    if path is not None and path.exists():
        try:
            return Cell.from_document(json.loads(path.read_text(encoding="utf-8")))
        except ValueError:
            path.unlink()  # a file that was cut off: computed anew
    cell = compute_cell(problem, families)
    if path is not None:
        write_json(path, cell.document())
    return cell


def _key(problem: Problem, families: tuple[str, ...]) -> str:
    text = json.dumps([_WRITTEN, __version__, problem.document(), sorted(families)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compute_cell(problem: Problem, families: Sequence[str]) -> Cell:
    """One cell, all its families; what cannot be computed gets a reason."""
    gaussian = calibrate(Gaussian(1.0), epsilon=problem.epsilon, **problem.budget())
    cost = problem.cost_of(gaussian)
    ratios: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for family in families:
        try:
            ratios[family] = _family_cost(problem, family) / cost
        except (ValueError, ArithmeticError, SearchError) as error:
            ratios[family], reasons[family] = None, str(error)
    return Cell(problem, cost, ratios, reasons)


def _family_cost(problem: Problem, family: str) -> float:
    if family == OPTIMUM:
        return convex_optimum(problem, certify=False).cost
    if family == L2_MECHANISM:
        return _l2_cost(problem)
    return search(problem, families=(family,), progress=False, top=1).best.cost


def _l2_cost(problem: Problem) -> float:
    if not 2 <= problem.dimension < math.inf:
        raise ValueError(
            f"the l2 mechanism is mapped for 2 <= dimension < inf (in one it is the Laplace), "
            f"got dimension={problem.dimension:g}"
        )
    if problem.cost_kind != "variance":
        raise ValueError(f"the l2 mechanism is mapped for cost=variance, got cost={problem.cost_name!r}")
    shape = SphericalGamma.l2_mechanism(int(problem.dimension), 1.0)
    return calibrate(shape, epsilon=problem.epsilon, **problem.budget()).variance


def _number(ratio: float | None) -> float:
    return math.nan if ratio is None else ratio
