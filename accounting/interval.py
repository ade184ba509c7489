"""Intervals that hold the true privacy parameter."""

from __future__ import annotations

from typing import NamedTuple


class EpsilonInterval(NamedTuple):
    """lower <= true epsilon <= upper (no unit). Quote `upper` as the guarantee; `estimate` is for plots."""

    lower: float
    estimate: float
    upper: float


class DeltaInterval(NamedTuple):
    """lower <= true delta <= upper (a probability). Quote `upper` as the guarantee; `estimate` is for plots."""

    lower: float
    estimate: float
    upper: float


class AccountantsDisagree(RuntimeError):
    """Two proven intervals for one quantity do not overlap: at least one accountant is wrong. Please report it."""
