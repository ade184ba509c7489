"""Pictures of plans over batch size: first order its noise, zeroth order the error of its estimate by parts."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .plan import Plan
from .plan_zeroth import ZerothPlan


def plot_plan(found: Plan, path: str | Path | None = None) -> Figure:
    """Noise in one averaged update and in the mean of all of them; the best row is marked.

    Saved to `path` if given (png or svg, by its suffix). Uses no display and no global state.
    """
    figure, axes = _axes()
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
    return _saved(figure, path)


def plot_zeroth_plan(found: ZerothPlan, path: str | Path | None = None) -> Figure:
    """Error of the mean estimate for each number of directions k; for the best k also its three parts.

    In units of d·|g|², of |g|² where the plan knows the number of trainable parameters. The best row is marked. Saved
    to `path` if given (png or svg, by its suffix). Uses no display and no global state.
    """
    figure, axes = _axes(9)
    best, unit = found.best, found.trainable or 1
    for k in sorted({one.directions for one in found.rows}):
        rows = [one for one in found.rows if one.directions == k]
        sizes = [one.row.batch_size for one in rows]
        axes.loglog(sizes, [unit * one.mean_error for one in rows], "o-", label=f"k = {k}")
        if k == best.directions:
            for name, style in (("direction", ":"), ("sample", "-."), ("noise", "--")):
                parts = [unit * getattr(one.error, name) / (k * one.row.steps) for one in rows]
                axes.loglog(sizes, parts, style, color="gray", label=f"k = {k}: its {name}")
    label = f"least: k = {best.directions}, b = {best.row.batch_size},\nT = {best.row.steps}, {best.row.entry.family}"
    axes.loglog([best.row.batch_size], [unit * best.mean_error], "*", markersize=14, label=label)
    axes.set_xlabel("expected batch size b = q·n")
    axes.set_ylabel("squared error of the mean estimate " + ("[|g|²]" if found.trainable else "[d·|g|²]"))
    axes.set_title(
        f"{found.examples} slopes of {found.records} records, ε ≤ {found.epsilon:g}, δ = {found.delta:g}, "
        f"signal {found.signal:g}",
        fontsize="medium",
    )
    figure.legend(loc="outside right upper", frameon=False)
    return _saved(figure, path)


def _axes(width: float = 7) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, 4.5), layout="constrained")
    return figure, figure.add_subplot()


def _saved(figure: Figure, path: str | Path | None) -> Figure:
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
