"""Pictures of a guarantee: the privacy profile, and what an attacker can do.

Each is saved to a path, which is returned; its suffix chooses the format. Filled bands are proven intervals; the line
is the end to quote. No display and no global state is used, and matplotlib is imported only when a picture is drawn.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from ..mechanisms import _validate
from .api import compose_delta
from .release import Release
from .tradeoff import PosteriorBand, TradeoffCurve, attack_advantage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_privacy_profile(
    releases: Sequence[Release],
    path: str | os.PathLike[str],
    *,
    epsilon: ArrayLike,
    accountant: str = "best",
    relative_width: float = 1e-3,
) -> Path:
    """δ(ε) of a composition at each `epsilon` >= 0, on a logarithmic δ axis."""
    return _save(_profile_figure(releases, epsilon, accountant, relative_width), path)


def plot_tradeoff(curve: TradeoffCurve, path: str | os.PathLike[str]) -> Path:
    """A trade-off curve with its band, beside the line of guessing."""
    return _save(_tradeoff_figure(curve), path)


def plot_attack_advantage(
    release: Release,
    path: str | os.PathLike[str],
    *,
    steps: Sequence[int],
    accountant: str = "best",
    relative_width: float = 1e-3,
) -> Path:
    """The largest membership advantage, δ(0), after each number of `steps` of the release."""
    return _save(_advantage_figure(release, steps, accountant, relative_width), path)


def plot_posterior(band: PosteriorBand, path: str | os.PathLike[str]) -> Path:
    """Belief after a positive test against the belief before, one line for each type I error of the band."""
    return _save(_posterior_figure(band), path)


def _profile_figure(releases: Sequence[Release], epsilon: ArrayLike, accountant: str, relative_width: float) -> Figure:
    grid = np.atleast_1d(np.array(epsilon, dtype=np.float64))
    values = [
        compose_delta(releases, epsilon=float(e), accountant=accountant, relative_width=relative_width) for e in grid
    ]
    lower, upper = np.array([v.lower for v in values]), np.array([v.upper for v in values])
    figure, axes = _figure("ε (no unit)", "δ (probability)", "Privacy profile: proven δ at each ε")
    if np.any(upper > 0):
        axes.set_yscale("log")
        axes.set_ylim(bottom=float(np.min(upper[upper > 0])) / 10)  # a δ of 0 lies below every logarithmic axis
    _band(axes, grid, lower, upper, quoted=upper, label="δ(ε), upper end")
    return figure


def _tradeoff_figure(curve: TradeoffCurve) -> Figure:
    order = np.argsort(curve.type_i_error, axis=None)
    a, lower, upper = (array.ravel()[order] for array in (curve.type_i_error, curve.lower, curve.upper))
    figure, axes = _figure(
        "type I error: absent record called present (probability)",
        "least type II error: present record missed (probability)",
        "Membership tests: no test lies below the line",
    )
    _band(axes, a, lower, upper, quoted=lower, label="trade-off f, lower end")
    axes.plot([0, 1], [1, 0], color="0.6", linewidth=1, linestyle="--", label="guessing")
    axes.legend(frameon=False)
    return figure


def _advantage_figure(release: Release, steps: Sequence[int], accountant: str, relative_width: float) -> Figure:
    counts = [_validate.integer("steps", count, minimum=0) for count in steps]
    values = [
        attack_advantage(
            [dataclasses.replace(release, steps=count)], accountant=accountant, relative_width=relative_width
        )
        for count in counts
    ]
    figure, axes = _figure(
        "steps T (releases)", "true − false positive rate (probability)", "Largest advantage of a membership test: δ(0)"
    )
    lower, upper = np.array([v.lower for v in values]), np.array([v.upper for v in values])
    _band(axes, np.array(counts, dtype=np.float64), lower, upper, quoted=upper, label="δ(0), upper end")
    axes.set_ylim(0, 1)
    return figure


def _posterior_figure(band: PosteriorBand) -> Figure:
    figure, axes = _figure(
        "prior belief that the record is present (probability)",
        "largest belief after a positive test (probability)",
        "Posterior against prior",
    )
    for error in np.unique(band.type_i_error):
        chosen = band.type_i_error == error
        order = np.argsort(band.prior[chosen])
        prior, lower, upper = (array[chosen][order] for array in (band.prior, band.lower, band.upper))
        _band(axes, prior, lower, upper, quoted=upper, label=f"type I error {error:g}, upper end")
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--", label="nothing learnt")
    axes.legend(frameon=False)
    return figure


def _figure(x_label: str, y_label: str, title: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title)
    return figure, axes


def _band(axes: Axes, x: np.ndarray, lower: np.ndarray, upper: np.ndarray, *, quoted: np.ndarray, label: str) -> None:
    (line,) = axes.plot(x, quoted, linewidth=1.6, label=label)
    axes.fill_between(x, lower, upper, color=line.get_color(), alpha=0.2, linewidth=0)


def _save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    figure.savefig(path, dpi=150)
    return Path(path)
