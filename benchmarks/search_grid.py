"""Seconds to search the published grid, and the ratio to a plain NumPy loop over candidates on the same machine.

The plain loop evaluates one candidate at a time at all 127 orders, as a reader of the paper would write it: closed
forms of the three moment generating functions, the bound, the conversion, the least value. It is timed on a few
hundred candidates and extrapolated to the grid; the output says so. The kernel stops at the first pole of a candidate,
past which the bound is infinite; both answer the same question, and their answers are compared.

Run: python benchmarks/search_grid.py [--candidates N] [--marginal]
"""

from __future__ import annotations

import argparse
import math
import os
import time

import numpy as np
from optnoise.search import Problem, grid, marginal_sweep, published_sweep

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


def compare_published(candidates: int) -> None:
    cold, _ = best_of(1, lambda: published_sweep(delta=DELTA, progress=True))
    warm, sweep = best_of(5, lambda: published_sweep(delta=DELTA, progress=True))
    indices = np.random.default_rng(0).integers(0, grid.SIZE, candidates)
    chosen = [parameters(int(index)) for index in indices]
    plain, values = best_of(3, lambda: [plain_epsilon(p) for p in chosen])
    assert np.allclose(values, sweep.epsilon[indices], rtol=1e-9), "the plain loop and the kernel disagree"
    whole = plain / candidates * grid.SIZE
    print(f"published bound, {grid.SIZE} candidates, orders 2 … 128, {os.cpu_count()} cores")
    print(f"  kernel: {warm:.4f} s with its progress bar (first call, machine code loaded or compiled: {cold:.2f} s)")
    print(f"  plain NumPy loop: {1e3 * plain / candidates:.4f} ms a candidate over {candidates} candidates,")
    print(f"    extrapolated to the grid: {whole:.1f} s on one core")
    print(f"  ratio plain / kernel: {whole / warm:.0f}")
    print(f"  candidates with an order in the domain: {np.mean(np.isfinite(sweep.epsilon)):.1%}")


def time_marginal() -> None:
    problems = {
        "one scalar release": Problem(1.0, 1e-5),
        "ten scalar releases, variance": Problem(3.0, 1e-5, steps=10, cost="variance"),
        "1000 sampled scalars, variance": Problem(3.0, 1e-6, steps=1000, sampling_rate=1e-3, cost="variance"),
        "every dimension, variance": Problem(1.0, 1e-5, dimension=math.inf, cost="variance"),
        "100 sampled releases in dimension 10": Problem(1.0, 1e-5, steps=100, sampling_rate=0.01, dimension=10),
    }
    print(f"marginal sweep, {len(grid.distinct_shapes()[0])} distinct shapes of the grid")
    for title, problem in problems.items():
        cold, _ = best_of(1, lambda p=problem: marginal_sweep(p))
        warm, sweep = best_of(1, lambda p=problem: marginal_sweep(p))
        print(f"  {title}: {warm:.2f} s (first call {cold:.2f} s), least {problem.cost_label} = {sweep.costs[0]:.5g}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=500, help="candidates timed in the plain loop")
    parser.add_argument("--marginal", action="store_true", help="also time the marginal sweep of several problems")
    arguments = parser.parse_args()
    compare_published(arguments.candidates)
    if arguments.marginal:
        time_marginal()
