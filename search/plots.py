"""Pictures of what a search found. Axes carry units; C is the clipping norm."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ..mechanisms import Mechanism
from .result import SearchResult


def plot_densities(result: SearchResult, path: str | Path | None = None, *, count: int = 1) -> Figure:
    """Densities of the best `count` noises of each family and of the references, on a logarithmic axis.

    Saved to `path` if given (the suffix chooses the format). Uses no display and no global state.
    """
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    mechanisms = _distinct_mechanisms(result, count)
    reach = 2 * max(float(-m.quantile(0.01)) for m in mechanisms.values())
    x = np.linspace(-reach, reach, 1201)
    styles = itertools.cycle(("-", "--", "-.", ":"))  # noises may coincide
    for (label, mechanism), style in zip(mechanisms.items(), styles, strict=False):
        axes.semilogy(x, np.exp(mechanism.log_density(x)), label=label, linewidth=1.6, linestyle=style)
    axes.set_ylim(bottom=max(min(float(np.exp(m.log_density(reach))) for m in mechanisms.values()), 1e-12))
    axes.set_xlabel("noise x per coordinate [C]")
    axes.set_ylabel("density [1/C]")
    axes.set_title(_title(result))
    axes.legend(frameon=False)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _distinct_mechanisms(result: SearchResult, count: int) -> dict[str, Mechanism]:
    chosen: dict[str, Mechanism] = {}
    taken: dict[str, int] = {}
    for entry in (*result.results, *result.references):
        rank = taken.get(entry.family, 0)
        if rank >= count or entry.mechanism in chosen.values():
            continue
        taken[entry.family] = rank + 1
        label = entry.family if rank == 0 else f"{entry.family} #{rank + 1}"
        chosen[f"{label}: {result.problem.cost_label} = {entry.cost:.4g}"] = entry.mechanism
    return chosen


def _title(result: SearchResult) -> str:
    problem = result.problem
    dimension = "every dimension" if problem.dimension == math.inf else f"d = {problem.dimension}"
    return (
        f"Noise at equal guarantee: ε ≤ {problem.epsilon:g}, δ = {problem.delta:g}, "
        f"T = {problem.steps}, q = {problem.sampling_rate:g}, {dimension}"
    )
