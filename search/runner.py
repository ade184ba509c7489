"""`search`: each family proposes shapes, `accounting` calibrates and checks them, the cheapest come first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..accounting import calibrate, epsilon
from ..mechanisms import Gaussian, Laplace, Mechanism, _validate
from ._progress import track
from .families import PROPOSERS, NoFiniteCost
from .problem import Problem
from .result import SearchEntry, SearchResult

_SAME_AS_LAPLACE = 0.02  # relative difference of costs below which an LMO noise counts as a Laplace
_LOOSE = 0.98  # lower over upper end of an ε interval below which a note says that the bound may be loose


class SearchError(RuntimeError):
    """A calibrated noise did not pass its own check, or no family has a noise for the problem."""


def search(
    problem: Problem,
    *,
    families: Sequence[str] = tuple(PROPOSERS),
    progress: bool = True,
    top: int = 3,
) -> SearchResult:
    """The cheapest noises for `problem`, best first.

    Args:
        problem: budget, use and cost.
        families: names among "lmo", "gaussian", "laplace", "gamma_laplace". With the Gaussian among them (the
            default) the best result is never worse than the calibrated Gaussian.
        progress: show progress bars on standard error.
        top: how many LMO noises to list at most; the other families have one.

    Every noise listed was calibrated by `accounting.calibrate` and its proven ε was computed once more as it stands:
    `epsilon.upper` never exceeds the target. A family without a finite cost, or for which nothing is proven, is left
    out with a note. The search is deterministic.

    Raises:
        ValueError: a bad argument, or a budget for which nothing is proven even for the Gaussian.
        SearchError: no family is left.
    """
    families = _check_families(families)
    top = _validate.integer("top", top, minimum=1)
    gaussian = _entry(problem, Gaussian(1.0), None)
    references = [gaussian, *_laplace_reference(problem, gaussian)]
    entries: list[SearchEntry] = []
    notes: list[str] = []
    for family in families:
        try:
            entries += _of_family(problem, family, references, top=top, progress=progress)
        except (NoFiniteCost, ValueError) as error:
            notes.append(f"{family} is left out: {error}")
    if not entries:
        raise SearchError("no family has a noise for this problem; " + "; ".join(notes))
    entries.sort(key=lambda entry: entry.cost)
    return SearchResult(problem, tuple(entries), tuple(references), (*notes, *_findings(problem, entries, references)))


def _check_families(families: Sequence[str]) -> tuple[str, ...]:
    if isinstance(families, str) or not families:
        raise ValueError(f"expected families to be a non-empty list of names, got families={families!r}")
    for family in families:
        _validate.one_of("family", family, tuple(PROPOSERS))
    return tuple(dict.fromkeys(families))


def _entry(problem: Problem, shape: Mechanism, gaussian_cost: float | None) -> SearchEntry:
    """The shape at the budget, its proven ε and its cost."""
    mechanism = calibrate(shape, epsilon=problem.epsilon, **problem.budget())
    interval = epsilon(mechanism, **problem.budget(), verify=True)
    if not interval.upper <= problem.epsilon:
        raise SearchError(f"calibrated {mechanism!r} has epsilon {interval.upper} > target {problem.epsilon}")
    cost = problem.cost_of(mechanism)
    return SearchEntry(mechanism, cost, cost if gaussian_cost is None else gaussian_cost, interval)


def _laplace_reference(problem: Problem, gaussian: SearchEntry) -> list[SearchEntry]:
    try:
        return [_entry(problem, Laplace(1.0), gaussian.gaussian_cost)]
    except ValueError:  # nothing is proven for it here; the note comes with its family
        return []


def _of_family(
    problem: Problem, family: str, references: Sequence[SearchEntry], *, top: int, progress: bool
) -> list[SearchEntry]:
    for entry in references:
        if entry.family == family:
            found = [entry]
            break
    else:
        shapes = PROPOSERS[family](problem, top=top, progress=progress)
        gaussian_cost = references[0].gaussian_cost
        found = [_entry(problem, shape, gaussian_cost) for shape in track(shapes, f"proof: {family}", show=progress)]
    finite = [entry for entry in found if math.isfinite(entry.cost)]
    if not finite:
        raise NoFiniteCost(f"its {problem.cost_label} is infinite")
    return finite


def _findings(problem: Problem, entries: Sequence[SearchEntry], references: Sequence[SearchEntry]) -> list[str]:
    """Sentences on what the search ran into, with its numbers."""
    notes = []
    mixtures = [entry for entry in entries if entry.family in ("lmo", "gamma_laplace")]
    laplace = [entry for entry in references if entry.family == Laplace.family]
    if mixtures and laplace:
        gain = 1 - mixtures[0].cost / laplace[0].cost
        if abs(gain) <= _SAME_AS_LAPLACE:
            notes.append(
                f"the best mixture of Laplace noises costs within {100 * _SAME_AS_LAPLACE:g} % of plain Laplace noise: "
                "the search tends to a Laplace"
            )
    loose = [entry for entry in entries if entry.epsilon.lower < _LOOSE * entry.epsilon.upper]
    if loose:
        notes.append(
            f"the guarantee of {', '.join(dict.fromkeys(entry.family for entry in loose))} is a Rényi bound that may "
            "be loose (ε lower stands far below it): at equal exact ε its cost may be smaller than stated"
        )
    if problem.dimension == math.inf and mixtures:
        notes.append(
            "in every dimension the Fisher information I decides: a mixture of Laplace noises has I·variance >= 2 and "
            "E|X|·√I >= 1, plain Laplace attains both, and the Gaussian has I·variance = 1"
        )
    return notes
