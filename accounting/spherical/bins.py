"""Cells joined by the value of their loss."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from .cells import Cells
from .lines import Line
from .pair import EPS, TINY, Array, log_of

_NARROW = 0.75  # of `step`, the width up to which cells join the finest bins


class Bins:
    """Cells joined by the value of ℓ: bins of width step/2·2^j for cells of width up to step·¾·2^j."""

    def __init__(self, step: float) -> None:
        self.step = step
        self.parts: list[tuple[NDArray[np.int64], Array]] = []

    def add(self, cells: Cells, mass: Array, error: Array) -> None:
        """Add cells with their masses and the errors of these (absolute); flat arrays."""
        width = cells.high - cells.low
        with np.errstate(divide="ignore", invalid="ignore"):
            level = np.ceil(np.log2(np.maximum(width, TINY) / (_NARROW * self.step)))
        level = np.clip(level, 0, 60).astype(np.int64)
        size = np.ldexp(self.step / 2, level)
        index = np.floor(0.5 * (cells.low + cells.high) / size).astype(np.int64)
        reference = np.asarray((index + 0.5) * size, dtype=np.float64)
        for one in np.unique(level):
            at = np.flatnonzero(level == one)
            self._add_level(
                int(one), index[at], reference[at], Cells(*(part[at] for part in cells)), mass[at], error[at]
            )

    def _add_level(
        self, level: int, index: NDArray[np.int64], reference: Array, cells: Cells, mass: Array, error: Array
    ) -> None:
        first, last = int(index.min()), int(index.max())
        if last - first < 4 * len(index) + 1000:
            unique, inverse = np.arange(first, last + 1), index - first
        else:
            unique, inverse = np.unique(index, return_inverse=True)
        count = len(unique)
        members = np.bincount(inverse, None, count)
        columns = [
            np.bincount(inverse, mass, count),
            np.bincount(inverse, mass * error, count),
            np.bincount(inverse, mass * np.expm1(reference - cells.mean_high), count),
            np.bincount(inverse, mass * np.expm1(reference - cells.mean_low), count),
            members.astype(float),
        ]
        low, high = np.full(count, np.inf), np.full(count, -np.inf)
        np.minimum.at(low, inverse, cells.low)
        np.maximum.at(high, inverse, cells.high)
        used = members > 0
        key = (level << 56) + unique[used] + (1 << 55)
        self.parts.append((key, np.stack([*columns, low, high])[:, used]))

    def pieces(self, scale: tuple[float, float]) -> list[Array]:
        """(mass low, mass high, low, high, mean low, mean high); `scale` brackets 1/normaliser.

        Sums of n terms are off by n·ε; the masses' errors move the average of v = e^{reference − mean} − 1 by at most
        twice their share times the largest |v|.
        """
        keys, inverse = np.unique(np.concatenate([key for key, _ in self.parts]), return_inverse=True)
        table = np.concatenate([values for _, values in self.parts], axis=1)
        mass, error, v_low, v_high, count = (np.bincount(inverse, row, len(keys)) for row in table[:5])
        low, high = np.full(len(keys), np.inf), np.full(len(keys), -np.inf)
        np.minimum.at(low, inverse, table[5])
        np.maximum.at(high, inverse, table[6])
        level = keys >> 56
        size = np.ldexp(self.step / 2, level)
        reference = ((keys - (level << 56) - (1 << 55)) + 0.5) * size
        least, most = np.expm1(reference - high), np.expm1(reference - low)
        share = error / mass + (count + len(self.parts)) * EPS
        slack = (2 * share + 8 * EPS) * np.maximum(np.abs(least), np.abs(most))
        with np.errstate(divide="ignore"):  # wide bins: −∞, cut back to the bounds of ℓ
            mean_high = reference - np.log1p(np.maximum(v_low / mass - slack, least)) + 4 * EPS * np.abs(reference)
            mean_low = reference - np.log1p(np.minimum(v_high / mass + slack, most)) - 4 * EPS * np.abs(reference)
        mean_low = np.clip(mean_low, low, high)
        mean_high = np.clip(mean_high, mean_low, high)
        mass_low = np.maximum(mass * (1 - share) - count * TINY, 0.0) * float(scale[0])
        columns = mass_low, mass * (1 + share) * float(scale[1]), low, high, mean_low, mean_high
        return [np.asarray(column, dtype=np.float64) for column in columns]


def _take(line: Line, index: NDArray[np.int64]) -> Line:
    return Line(*(getattr(line, field.name)[index] for field in dataclasses.fields(line)))


def total_of(line: Line, low: float, high: float) -> tuple[float, float]:
    """Bounds of the normaliser: all cells and what lies outside them."""
    return (
        (math.fsum(line.mass * (1 - line.error)) + low) * (1 - 4 * EPS),
        (math.fsum(line.mass * (1 + line.error)) + high) * (1 + 4 * EPS),
    )


class Wild:
    """Cells on which ℓ ranges too far (next to x = t·e_1, or behind the last cosine): one piece for either sign."""

    def __init__(self) -> None:
        self.sums = {sign: [0.0, 0.0, 0.0, math.inf, -math.inf, 0.0] for sign in (-1, 1)}

    def add(self, cells: Cells, mass: Array, error: Array) -> None:
        negative = cells.low + cells.high < 0
        for sign, chosen in ((-1, negative), (1, ~negative)):
            if not chosen.any():
                continue
            sums, m, e = self.sums[sign], mass[chosen], error[chosen]
            low, high = cells.low[chosen], cells.high[chosen]
            sums[0] += max(math.fsum(m * (1 - e)) - len(m) * TINY, 0.0)
            sums[1] += math.fsum(m * (1 + e))
            with np.errstate(over="ignore"):
                sums[2] += float(np.sum(np.exp(np.log(m * (1 + e)) - cells.mean_low[chosen])))
            sums[3], sums[4] = min(sums[3], float(low.min())), max(sums[4], float(high.max()))

    def pieces(self, scale: tuple[float, float], others: float) -> list[tuple[float, ...]]:
        """The pieces; their Q-mass is at most Σ P·e^{−mean} and at most what the other pieces leave of Q."""
        result = []
        for sums in self.sums.values():
            low, high = sums[3], sums[4]
            if sums[1] == 0:
                continue
            mass_low, mass_high = sums[0] * scale[0] * (1 - 1e-12), sums[1] * scale[1] * (1 + 1e-12)
            mass_q = max(min(sums[2] * scale[1] * (1 + 1e-12), max(1 - others, 0.0) + 1e-12), TINY)
            mean_low = max(log_of(mass_low) - math.log(mass_q), low)
            mean_high = max(high, mean_low)
            result.append((mass_low, mass_high, low, high, min(mean_low, high), mean_high))
        return result
