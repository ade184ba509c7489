"""Intervals that hold the true privacy parameter."""

from __future__ import annotations

import decimal
import math
from typing import NamedTuple


class EpsilonInterval(NamedTuple):
    """lower <= true epsilon <= upper (no unit). Quote `upper` as the guarantee; `estimate` is for plots."""

    lower: float
    estimate: float
    upper: float

    def text(self, digits: int = 5) -> str:
        """`[lower, upper]` with `digits` significant digits, rounded outwards: what is printed is still true."""
        return f"[{rounded_down(self.lower, digits)}, {rounded_up(self.upper, digits)}]"


class DeltaInterval(NamedTuple):
    """lower <= true delta <= upper (a probability). Quote `upper` as the guarantee; `estimate` is for plots."""

    lower: float
    estimate: float
    upper: float


def rounded_up(value: float, digits: int = 5) -> str:
    """`value` in decimal with `digits` significant digits, never below it: how a guarantee is printed."""
    return _rounded(value, digits, decimal.ROUND_CEILING)


def rounded_down(value: float, digits: int = 5) -> str:
    """`value` in decimal with `digits` significant digits, never above it."""
    return _rounded(value, digits, decimal.ROUND_FLOOR)


def _rounded(value: float, digits: int, rounding: str) -> str:
    if not math.isfinite(value):
        return str(value)
    return f"{decimal.Context(prec=digits, rounding=rounding).create_decimal(repr(float(value))):g}"


class AccountantsDisagree(RuntimeError):
    """Two proven intervals for one quantity do not overlap: at least one accountant is wrong. Please report it."""
