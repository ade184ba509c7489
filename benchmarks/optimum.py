"""CPU seconds of the convex optimum, and how near its certificates are. Pin it to one core (taskset -c 0)."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from optnoise.mechanisms import Laplace
from optnoise.search import Problem, convex_optimum
from rich.console import Console
from rich.table import Table

PROBLEMS = (
    Problem(0.3, 1e-10, 1, 1.0, 1, "variance"),
    Problem(3.0, 1e-5, 1, 1.0, 1, "variance"),
    Problem(3.0, 1e-5, 10, 1.0, 1, "variance"),
    Problem(3.0, 1e-5, 1000, 0.01, 1, "variance"),
    Problem(3.0, 1e-6, 1000, 0.001, 1, "variance"),
    Problem(3.0, 1e-5, 1000, 1.0, 1, "variance"),
)
HEADINGS = ("ε, δ, T, q", "over the Gaussian", "Laplace over it", "certified gap", "noise", "CPU s")


def row(problem: Problem) -> tuple[str, ...]:
    start = time.process_time()
    found = convex_optimum(problem)
    seconds = time.process_time() - start
    best = min(found.orders, key=lambda order: order.cost, default=None)
    gap = found.cost / found.exact_bound - 1 if found.exact_bound else best.cost / best.bound - 1
    return (
        f"{problem.epsilon:g}, {problem.delta:g}, {problem.steps}, {problem.sampling_rate:g}",
        f"{found.ratio:.4f}",
        f"{found.exact_ratio(Laplace(1.0)):.3f}",
        f"{100 * gap:.2f} % ({'exact' if found.exact_bound else 'Rényi'})",
        found.mechanism.family,
        f"{seconds:.1f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    rows = [row(problem) for problem in PROBLEMS]
    table = Table(*HEADINGS, title="least variance, one coordinate")
    for cells in rows:
        table.add_row(*cells)
    Console().print(table)
    if options.markdown:
        lines = [HEADINGS, ("---",) * len(HEADINGS), *rows]
        text = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        options.markdown.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
