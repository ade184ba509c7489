"""A line of a run's log in words."""

from __future__ import annotations

from typing import Any

from ...accounting import rounded_up


def note(line: dict[str, Any], delta: float | None) -> str:
    """A log line in words: metrics, then ε spent."""
    hidden = ("epoch", "epsilon", "step", "not_private", "stopped_at_budget")
    parts = [
        f"{k.removeprefix('eval_')} {v:.4g}" for k, v in line.items() if k not in hidden and not isinstance(v, str)
    ]
    if line.get("epsilon") is not None:
        parts.append(f"ε <= {rounded_up(line['epsilon'])} at δ = {delta!r}")
    if line.get("not_private"):
        parts.append("SEEDED: not private")
    return ", ".join(parts)
