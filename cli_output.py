"""What the commands share: one JSON document on standard output."""

from __future__ import annotations

import json
import sys
from typing import Any


def print_json(document: dict[str, Any]) -> None:
    """Print `document`, indented. Raises ValueError for infinities and NaN, which JSON has not."""
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
