"""What the commands share: one JSON document on standard output, which has no infinity."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from .accounting import EpsilonInterval


def print_json(document: dict[str, Any]) -> None:
    """Print `document`, indented. Raises ValueError for infinities and NaN, which JSON has not."""
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def json_number(value: float) -> float | str:
    """`value`, or "inf" for infinity."""
    return value if math.isfinite(value) else "inf"


def json_interval(interval: EpsilonInterval) -> dict[str, float | str]:
    """The ends and the estimate by name."""
    return {name: json_number(value) for name, value in interval._asdict().items()}
