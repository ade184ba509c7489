"""Seconds of a search: the published grid against a plain NumPy loop on the same machine, and one full search.

The plain loop evaluates one candidate at a time at all 127 orders, as a reader of the paper would write it: closed
forms of the three moment generating functions, the bound, the conversion, the least value. It is timed on a few
hundred candidates and extrapolated to the grid; the output says so. The kernel stops at the first pole of a candidate,
past which the bound is infinite; both answer the same question, and their answers are compared.

Run: python benchmarks/search.py [--candidates N] [--marginal] [--search CELL] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import math
import os
import time

import numpy as np
from optnoise.search import PROPOSERS, Problem, SearchError, grid, marginal_sweep, published_sweep, search

DELTA = 1e-10
ORDERS = np.arange(2, 129).astype(float)


def plain_epsilon(parameters: tuple[float, ...]) -> float:
    """The published bound of one candidate in its domain, by plain NumPy over all orders."""
    a1, k, theta, a3, rate, a4, low, high = parameters

    def mgf(t: np.ndarray) -> np.ndarray:
        gamma = (1 - a1 * theta * t) ** -k
        exponential = rate / (rate - a3 * t)
        uniform = (np.exp(a4 * high * t) - np.exp(a4 * low * t)) / (a4 * (high - low) * t)
        return gamma * exponential * uniform

    with np.errstate(all="ignore"):
        mean = (ORDERS * mgf(ORDERS - 1) + (ORDERS - 1) * mgf(-ORDERS)) / (2 * ORDERS - 1)
        renyi = np.log(mean) / (ORDERS - 1)
        epsilon = renyi + np.log((ORDERS - 1) / ORDERS) - (math.log(DELTA) + np.log(ORDERS)) / (ORDERS - 1)
    inside = (a1 * theta * (ORDERS - 1) < 1) & (a3 * (ORDERS - 1) < rate)
    return float(np.min(epsilon, initial=math.inf, where=inside))


def parameters(index: int) -> tuple[float, ...]:
    noise = grid.candidate(index)
    return (
        noise.gamma_weight,
        noise.gamma_shape,
        noise.gamma_scale,
        noise.exponential_weight,
        noise.exponential_rate,
        noise.uniform_weight,
        noise.uniform_low,
        noise.uniform_high,
    )


def best_of(repeats: int, function) -> tuple[float, object]:
    times, value = [], None
    for _ in range(repeats):
        start = time.perf_counter()
        value = function()
        times.append(time.perf_counter() - start)
    return min(times), value


def compare_published(candidates: int) -> list[tuple[str, str, str]]:
    cold, _ = best_of(1, lambda: published_sweep(delta=DELTA, progress=False))
    warm, sweep = best_of(5, lambda: published_sweep(delta=DELTA, progress=False))
    indices = np.random.default_rng(0).integers(0, grid.SIZE, candidates)
    chosen = [parameters(int(index)) for index in indices]
    plain, values = best_of(3, lambda: [plain_epsilon(p) for p in chosen])
    assert np.allclose(values, sweep.epsilon[indices], rtol=1e-9), "the plain loop and the kernel disagree"
    whole = plain / candidates * grid.SIZE
    what = f"published bound, {grid.SIZE:,} candidates, orders 2 … 128"
    return [
        (
            f"{what}: numba kernel",
            f"{warm:.3f} s",
            f"goal 1 s; first call {cold:.2f} s (machine code loaded or compiled)",
        ),
        (f"{what}: plain NumPy loop", f"{whole:.0f} s", f"extrapolated from {candidates} candidates, one core"),
        ("plain loop / kernel", f"{whole / warm:.0f}", "ratio"),
    ]


def time_marginal() -> list[tuple[str, str, str]]:
    rows = []
    for title, problem in PROBLEMS.items():
        cold, _ = best_of(1, lambda p=problem: marginal_sweep(p, progress=False))
        warm, _ = best_of(1, lambda p=problem: marginal_sweep(p, progress=False))
        rows.append((f"marginal sweep: {title}", f"{warm:.2f} s", f"first call {cold:.2f} s"))
    return rows


def time_search(title: str) -> list[tuple[str, str, str]]:
    """One full search over every family, and each family alone."""
    problem = PROBLEMS[title]
    search(problem, families=("gaussian", "laplace"), progress=False)  # machine code of the accountants
    rows = []
    for family in PROPOSERS:
        try:
            seconds, found = best_of(1, lambda f=family: search(problem, families=(f,), progress=False, top=1))
            rows.append(
                (f"search, {title}: {family}", f"{seconds:.1f} s", f"cost over Gaussian {found.best.ratio:.4f}")
            )
        except SearchError as error:
            rows.append((f"search, {title}: {family}", "refused", str(error)[:80]))
    whole, found = best_of(1, lambda: search(problem, progress=False))
    best = f"goal 60 s; best {found.best.family}, cost over Gaussian {found.best.ratio:.4f}"
    return [*rows, (f"search, {title}: all families", f"{whole:.1f} s", best)]


PROBLEMS = {
    "one scalar release": Problem(1.0, 1e-5),
    "ten scalar releases, variance": Problem(3.0, 1e-5, steps=10, cost="variance"),
    "1000 sampled scalars, variance": Problem(3.0, 1e-6, steps=1000, sampling_rate=1e-3, cost="variance"),
    "every dimension, variance": Problem(1.0, 1e-5, dimension=math.inf, cost="variance"),
    "100 sampled releases in dimension 10": Problem(1.0, 1e-5, steps=100, sampling_rate=0.01, dimension=10),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=500, help="candidates timed in the plain loop")
    parser.add_argument("--marginal", action="store_true", help="also time the marginal sweep of several problems")
    parser.add_argument(
        "--search", choices=PROBLEMS, default="ten scalar releases, variance", help="cell of the search"
    )
    parser.add_argument("--markdown", help="also write the table to this file")
    arguments = parser.parse_args()
    rows = compare_published(arguments.candidates)
    rows += time_marginal() if arguments.marginal else []
    rows += time_search(arguments.search)
    lines = ["| what | measured | note |", "| --- | ---: | --- |", *(f"| {a} | {b} | {c} |" for a, b, c in rows)]
    text = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n\n" + "\n".join(lines) + "\n"
    print(text)
    if arguments.markdown:
        with open(arguments.markdown, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
