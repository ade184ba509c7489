"""Argument checks shared by all packages: each error names the argument, its value and the rule."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence


def real(name: str, value: object) -> float:
    """Return `value` as a float; booleans, strings and NaN are refused."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"expected {name} to be a real number, got {name}={value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(
            f"expected {name} to be within the range of a float, got a number of {len(str(value))} digits"
        ) from None
    if math.isnan(number):
        raise ValueError(f"expected {name} to be a number, got {name}=nan")
    return number


def finite(name: str, value: object) -> float:
    """Return `value` as a finite float."""
    number = real(name, value)
    if math.isinf(number):
        raise ValueError(f"expected {name} to be finite, got {name}={value}")
    return number


def positive(name: str, value: object) -> float:
    """Return `value` as a finite float above zero."""
    number = finite(name, value)
    if number <= 0:
        raise ValueError(f"expected {name} > 0, got {name}={value}")
    return number


def length(name: str, value: object) -> float:
    """Return `value` as a scale between 1e-100 and 1e100: beyond these, products of scales leave the floats."""
    number = positive(name, value)
    if not 1e-100 <= number <= 1e100:
        raise ValueError(f"expected 1e-100 <= {name} <= 1e100, got {name}={value}")
    return number


def non_negative(name: str, value: object) -> float:
    """Return `value` as a finite float of at least zero."""
    number = finite(name, value)
    if number < 0:
        raise ValueError(f"expected {name} >= 0, got {name}={value}")
    return number


def integer(name: str, value: object, *, minimum: int) -> int:
    """Return `value` as an int of at least `minimum`; floats with an integer value are taken."""
    number = finite(name, value)
    if number != int(number):
        raise ValueError(f"expected {name} to be an integer, got {name}={value}")
    if number < minimum:
        raise ValueError(f"expected {name} >= {minimum}, got {name}={value}")
    return int(value)  # type: ignore[call-overload]  # not int(number): an int above 2**53 keeps its digits


def open_unit(name: str, value: object) -> float:
    """Return `value` as a float inside (0, 1), as a delta must be."""
    number = finite(name, value)
    if not 0 < number < 1:
        raise ValueError(f"expected 0 < {name} < 1, got {name}={value}{_way_out(name, number)}")
    return number


def unit_interval(name: str, value: object) -> float:
    """Return `value` as a float in [0, 1], as a sampling rate must be."""
    number = finite(name, value)
    if not 0 <= number <= 1:
        raise ValueError(f"expected 0 <= {name} <= 1, got {name}={value}{_way_out(name, number)}")
    return number


def _way_out(name: str, number: float) -> str:
    """A hint: what a delta is, or that what looks like a percentage is to be a share."""
    if name == "delta":
        return ": take one far below 1/n, such as 1e-12"
    return f": a share, so {number:g} % is {number / 100:g}" if 1 < number <= 100 else ""


def one_of(name: str, value: object, choices: tuple[str, ...]) -> str:
    """Return `value` if it is among `choices`."""
    if value not in choices:
        raise ValueError(f"expected {name} to be one of {', '.join(choices)}, got {name}={value!r}")
    return str(value)


def numbers_of(name: str, values: object) -> tuple[float, ...]:
    """Return a sequence of finite numbers (a list, a tuple, a one-dimensional array) as a tuple of floats."""
    if hasattr(values, "tolist"):
        values = values.tolist()  # type: ignore[attr-defined]  # numpy arrays
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise ValueError(f"expected {name} to be a sequence of numbers, got {name}={values!r}")
    return tuple(finite(f"{name}[{i}]", value) for i, value in enumerate(values))
