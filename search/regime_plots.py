"""Pictures of a regime map: a still one by matplotlib, an interactive page by plotly."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from .regimes import Cell, RegimeMap

_LIMIT = 4.0  # |log2 ratio| at which the colours end
_COLOURS = "RdBu_r"  # blue where other noise wins, red where it loses
_SHORT = {"gamma_laplace": "Γ-Laplace", "l2_mechanism": "ℓ2", "generalised_gaussian": "gen. Gaussian"}


def plot_regimes(regimes: RegimeMap, path: str | Path | None = None, *, by_family: bool = True) -> Figure:
    """One panel for the best noise and, `by_family`, one for each family; colours: log2 of cost over the Gaussian's.

    Saved to `path` if given (the suffix chooses the format).
    """
    names: list[str | None] = [None, *(regimes.families if by_family else ())]
    columns = min(len(names), 3)
    rows = math.ceil(len(names) / columns)
    size = (max(len(regimes.steps) * 0.75 + 1.4, 3.4) * columns, (len(regimes.dimensions) * 0.5 + 1.2) * rows + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    axes = np.atleast_1d(figure.subplots(rows, columns)).ravel()
    for panel, name in zip(axes, names, strict=False):
        _panel(panel, regimes, name)
    for panel in axes[len(names) :]:
        panel.set_visible(False)
    figure.suptitle(_title(regimes.cells[0][0]))
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _panel(axes: Axes, regimes: RegimeMap, family: str | None) -> None:
    ratios = np.array(regimes.ratios(family))
    with np.errstate(divide="ignore"):
        colour = np.clip(np.log2(ratios), -_LIMIT, _LIMIT)
    axes.imshow(colour, cmap=_COLOURS, norm=TwoSlopeNorm(0.0, -_LIMIT, _LIMIT), aspect="auto", origin="lower")
    for row, cells in enumerate(regimes.cells):
        for column, cell in enumerate(cells):
            text = _label(ratios[row, column])
            if family is None:
                text += f"\n{_SHORT.get(cell.best[0], cell.best[0])}"
            dark = abs(colour[row, column]) > 0.7 * _LIMIT
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    axes.set_xticks(range(len(regimes.steps)), [f"{t:g}" for t in regimes.steps])
    axes.set_yticks(range(len(regimes.dimensions)), [_dimension(d) for d in regimes.dimensions])
    axes.set_xlabel("releases T")
    axes.set_ylabel("coordinates d")
    axes.set_title("least cost over the Gaussian's" if family is None else _SHORT.get(family, family), fontsize=9)


def write_html(regimes: RegimeMap, path: str | Path) -> None:
    """An interactive page at `path`, complete in itself: hovering over a cell shows every family's ratio.

    Raises ImportError without plotly (`pip install optnoise[plots]`).
    """
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise ImportError("the interactive map needs plotly: pip install 'optnoise[plots]'") from error
    best = np.array(regimes.ratios())
    figure = go.Figure(
        go.Heatmap(
            z=np.log2(best),
            x=[f"{t:g}" for t in regimes.steps],
            y=[_dimension(d) for d in regimes.dimensions],
            zmin=-_LIMIT,
            zmax=_LIMIT,
            colorscale=_COLOURS,
            text=[[_hover(cell) for cell in row] for row in regimes.cells],
            hoverinfo="text",
            colorbar={"title": "log2(cost over<br>the Gaussian's)"},
        )
    )
    figure.update_layout(title=_title(regimes.cells[0][0]), xaxis_title="releases T", yaxis_title="coordinates d")
    figure.write_html(str(path), include_plotlyjs=True)


def _hover(cell: Cell) -> str:
    lines = [f"T = {cell.problem.steps}, d = {_dimension(cell.problem.dimension)}"]
    lines += [f"{family}: {_label(math.nan if r is None else r)}" for family, r in cell.ratios.items()]
    return "<br>".join(lines)


def _label(ratio: float) -> str:
    return "–" if math.isnan(ratio) else f"{ratio:.3g}"


def _dimension(dimension: float) -> str:
    return "every" if dimension == math.inf else f"{dimension:g}"


def _title(cell: Cell) -> str:
    p = cell.problem
    return f"{p.cost_label} at equal guarantee: ε = {p.epsilon:g}, δ = {p.delta:g}, q = {p.sampling_rate:g}"
