"""The convex optimum beside what a parametric search found."""

from __future__ import annotations

import dataclasses

from ..result import SearchEntry, SearchResult
from .optimum import ConvexOptimum, convex_optimum


def with_optimum(result: SearchResult, *, progress: bool = False) -> tuple[SearchResult, ConvexOptimum]:
    """`result` with the noise of `convex_optimum` (started from its best noise too) and notes on what is certified.

    Raises ValueError where the convex programs do not apply: several coordinates, several budgets, another cost.
    """
    problem, best = result.problem, result.best
    found = convex_optimum(problem, starts=[best.mechanism], progress=progress)
    entry = SearchEntry(found.mechanism, found.cost, best.gaussian_cost, found.epsilon)
    entries = result.results
    if all(entry.mechanism != other.mechanism for other in entries):
        entries = tuple(sorted((entry, *entries), key=lambda other: other.cost))
    notes = (*result.notes, *_notes(found, best))
    return dataclasses.replace(result, results=entries, notes=notes), found


def _notes(found: ConvexOptimum, best: SearchEntry) -> list[str]:
    if found.exact_bound is not None:
        gap = 100 * (found.cost / found.exact_bound - 1)
        return [
            f"exact certificate: no symmetric density that falls with |x| costs less than {found.exact_bound:.6g}; the "
            f"best noise listed is within {gap:.2g} % of it"
        ]
    notes = [
        f"equal exact epsilon: the best parametric noise costs {best.cost / found.cost:.4g} times the convex optimum's "
        "(a comparison, not a certificate)"
    ]
    try:
        gap = 100 * found.renyi_gap(best.mechanism)
    except ValueError:  # bounded support: no finite Rényi divergence
        return notes
    return [*notes, f"Rényi certificate: at its best order that noise costs {gap:.3g} % more than any density must"]
