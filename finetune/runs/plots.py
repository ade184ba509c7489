"""Pictures for the report: the metrics on dev rows against steps and against ε spent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .outcome import RunResult

_NOT_METRICS = ("step", "epsilon", "runtime", "samples_per_second", "steps_per_second")


def plot_metrics(result: RunResult, path: Path) -> list[Path]:
    """Loss over steps, and the other metrics over ε spent (over steps without privacy). Nothing for no history."""
    from matplotlib.figure import Figure

    history = result.training.history
    if len(history) < 2:
        return []
    names = [name for name in history[0] if name not in _NOT_METRICS]
    others = [name for name in names if name != "loss"]
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw(left, history, "step", ["loss"], "optimizer updates")
    left.set_ylabel("loss on dev rows [nats]")
    spent = "step" if result.mechanism is None else "epsilon"
    _draw(right, history, spent, others, "optimizer updates" if spent == "step" else f"ε at δ = {_delta(result):g}")
    right.set_ylabel(", ".join(others))
    if len(others) > 1:
        right.legend(frameon=False)
    figure.suptitle("" if result.private else "not private")
    figure.savefig(path, dpi=150)
    return [path]


def _delta(result: RunResult) -> float:
    return result.recipe.privacy.delta


def _draw(axes: Any, history: tuple[dict[str, Any], ...], x: str, names: list[str], label: str) -> None:
    """`epsilon` is None before the first release: nothing is spent."""
    for name in names:
        points = [(line[x] or 0.0, line[name]) for line in history if line.get(name) is not None]
        axes.plot([a for a, _ in points], [b for _, b in points], marker="o", label=name)
    axes.set_xlabel(label)
