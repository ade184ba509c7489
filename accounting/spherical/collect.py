"""All pieces of a spherical pair."""

from __future__ import annotations

import math

import numpy as np

from ..pld.pieces import LossPieces
from .bins import Bins, Wild, _take, total_of
from .cells import Cells, cells_of, sharpen_last_mean
from .ends import ball_piece, inner_mass, outer_mass, outer_piece
from .grid import plan_grid
from .mirror import mirrored
from .pair import EPS, TINY, Array, Pair

_WILD = 64.0  # width of ℓ from which a cell's e^{−ℓ} is not averaged
_CELLS = 300_000  # per block


def collect(pair: Pair, step: float) -> LossPieces:
    plan = plan_grid(pair, step)
    bins, wild = Bins(step), Wild()
    for stride in np.unique(plan.stride):
        cosines = plan.cosines.pooled(int(stride))
        chosen = np.flatnonzero(plan.stride == stride)
        block = max(1, _CELLS // len(cosines.mass))
        for start in range(0, len(chosen), block):
            rows = _take(plan.rows, chosen[start : start + block])
            cells = cells_of(pair, rows, cosines)
            sharpen_last_mean(pair, rows, cosines, cells)
            mass = rows.mass[:, None] * cosines.mass
            error = rows.error[:, None] + cosines.error + rows.error[:, None] * cosines.error
            flat = Cells(*(part.ravel() for part in cells))
            tame = flat.high - flat.low <= _WILD
            mass, error = np.maximum(mass.ravel(), TINY), np.minimum(error.ravel(), 1.0)
            wild.add(Cells(*(part[~tame] for part in flat)), mass[~tame], error[~tame])
            if tame.any():
                bins.add(Cells(*(part[tame] for part in flat)), mass[tame], error[tame])
    rows, cosines = plan.rows, plan.cosines
    inner, outer = inner_mass(pair, float(rows.low[0])), outer_mass(pair, float(rows.high[-1]))
    radial = total_of(rows, inner[0] + outer[0], inner[1] + outer[1])
    polar = total_of(cosines, 0.0, 0.0)
    scale = (1 / (radial[1] * polar[1]) * (1 - 4 * EPS), 1 / (radial[0] * polar[0]) * (1 + 4 * EPS))
    table = [np.stack(bins.pieces(scale)).T]
    table += [
        np.array([ball_piece(pair, float(rows.low[0]), radial)]),
        np.array([outer_piece(pair, float(rows.high[-1]), radial)]),
    ]
    known = np.concatenate(table)
    others = math.fsum(known[:, 0] * np.exp(np.minimum(-known[:, 5], 700.0))) * (1 - 1e-12)
    table += [np.array([piece]) for piece in wild.pieces(scale, others)]
    table = np.concatenate(table)
    singular = pair.excess > 0 or pair.power < 1
    return _to_pieces(mirrored(table) if singular else table)


def _to_pieces(table: Array) -> LossPieces:
    """Rows of (mass low, mass high, low, high, mean low, mean high) as pieces; masses rounded to nothing left out."""
    table = table[table[:, 1] > 0]
    table = table[np.argsort(table[:, 4], kind="stable")]
    with np.errstate(divide="ignore"):
        log_low = np.log(np.maximum(table[:, 0], 5e-324)) * (1 + 2 * EPS) - 2 * EPS
        log_high = np.log(table[:, 1]) * (1 - 2 * EPS) + 2 * EPS
    return LossPieces(np.where(table[:, 0] > 0, log_low, -np.inf), np.minimum(log_high, 0.0), *table.T[2:])
