"""The picture of a plan: noise against batch size, in units of the clipping norm C."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from .plan import Plan


def plot_plan(found: Plan, path: str | Path | None = None) -> Figure:
    """Noise in one averaged update and in the mean of all of them; the best row is marked.

    Saved to `path` if given (png or svg, by its suffix). Uses no display and no global state.
    """
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    sizes = [row.batch_size for row in found.rows]
    axes.loglog(sizes, [row.noise_per_update for row in found.rows], "--", label="one averaged update, σ/b")
    axes.loglog(sizes, [row.effective_noise for row in found.rows], "o-", label="mean of all updates, σ/(b√T)")
    best = found.best
    label = f"least: b = {best.batch_size}, T = {best.steps}, {best.entry.family}"
    axes.loglog([best.batch_size], [best.effective_noise], "*", markersize=14, label=label)
    axes.set_xlabel("expected batch size b = q·n")
    axes.set_ylabel("standard deviation of the noise per coordinate [C]")
    axes.set_title(f"{found.examples} examples of {found.records} records, ε ≤ {found.epsilon:g}, δ = {found.delta:g}")
    axes.legend(frameon=False)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
