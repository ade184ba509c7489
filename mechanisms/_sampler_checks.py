"""Checks of `check_mechanism` that draw noise, on the CPU and on a GPU if there is one."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from .base import Mechanism
from .check import Effort, NotApplicable, expect

Array = NDArray[np.float64]

_LEAST_P = 1e-6  # of each test; the seeds are fixed
_DEPTHS = (1e-1, 1e-2, 1e-3, 1e-4)  # P(|X| > x) of the tail tests


def _draws(m: Mechanism, count: int, seed: int, device: str = "cpu") -> Array:
    generator = torch.Generator(device).manual_seed(seed)
    return m.sample((count,), generator=generator, dtype=torch.float64).cpu().numpy()


def _sources(m: Mechanism, effort: Effort, seed: int) -> Iterator[tuple[str, Array]]:
    """(name, draws) of every way to draw."""
    yield "torch on the CPU", _draws(m, effort.draws, seed)
    yield "numpy", m.sample_numpy(effort.draws, rng=np.random.default_rng(seed))
    if torch.cuda.is_available():
        yield "torch on the GPU", _draws(m, effort.draws, seed, "cuda")


def check_sampler_follows_the_cdf(m: Mechanism, effort: Effort) -> str:
    """Kolmogorov–Smirnov; and the test could fail: it rejects 2/3 and 3/2 of the scale."""
    found = []
    for source, draws in _sources(m, effort, seed=3):
        expect(bool(np.isfinite(draws).all()), f"{source}: draws that are not finite")
        p = float(stats.kstest(draws, m.cdf).pvalue)
        expect(p > _LEAST_P, f"{source}: {len(draws)} draws do not follow the cdf (p = {p:.1e})")
        _expect_uniform(m, draws, source)
        for wrong in (2 / 3, 3 / 2):
            p_wrong = float(stats.kstest(draws, m.scaled(wrong).cdf).pvalue)
            expect(
                p_wrong < 1e-9, f"{source}: draws would also pass for {wrong:.2f} times the scale (p = {p_wrong:.1e})"
            )
        found.append(f"{source}: p = {p:.2g}")
    return "; ".join(found)


def _expect_uniform(m: Mechanism, draws: Array, source: str) -> None:
    """The mean and mean square of P(|X| <= |x|), 1/2 and 1/3, to 5.2 standard errors: sees a scale that is off."""
    rank = 1 - 2 * np.exp(m.log_tail(np.abs(draws)))
    for power, mean, variance in ((1, 1 / 2, 1 / 12), (2, 1 / 3, 4 / 45)):
        score = (float(np.mean(rank**power)) - mean) * math.sqrt(len(draws) / variance)
        expect(abs(score) < 5.2, f"{source}: the magnitudes are off by {score:.1f} standard errors (power {power})")


def check_sampler_has_its_tails(m: Mechanism, effort: Effort) -> None:
    """The number of draws beyond each tail quantile, on each side, is binomial."""
    for source, draws in _sources(m, effort, seed=4):
        for probability in _DEPTHS:
            far = float(m.tail_quantile(math.log(probability / 2)))
            for side, beyond in (("right", draws > far), ("left", draws < -far)):
                count = int(np.sum(beyond))
                p = stats.binomtest(count, len(draws), probability / 2).pvalue
                wanted = len(draws) * probability / 2
                expect(
                    p > _LEAST_P, f"{source}: {count} draws beyond the {side} {probability / 2:g}-tail, not {wanted:g}"
                )


def check_sampler_is_independent(m: Mechanism, effort: Effort) -> None:
    """Neighbouring draws: no correlation of their ranks nor of their magnitudes' ranks."""
    for source, draws in _sources(m, effort, seed=5):
        for what, values in (("draws", draws), ("magnitudes", np.abs(draws))):
            p = float(stats.spearmanr(values[:-1], values[1:]).pvalue)  # type: ignore[attr-defined]
            expect(p > _LEAST_P, f"{source}: neighbouring {what} depend on each other (p = {p:.1e})")


def check_sampler_interface(m: Mechanism, effort: Effort) -> None:
    """Reproducible from its generator alone, of the shape, device and dtype asked for."""
    expect(bool(np.array_equal(_draws(m, 10, 1), _draws(m, 10, 1))), "equal generators give different draws")
    expect(not np.array_equal(_draws(m, 10, 1), _draws(m, 10, 2)), "different seeds give equal draws")
    state = torch.get_rng_state()
    noise = m.sample((2, 3), generator=torch.Generator().manual_seed(0))
    expect(bool(torch.equal(state, torch.get_rng_state())), "the sampler uses torch's global generator")
    expect(noise.shape == (2, 3), f"expected noise of shape (2, 3), got {tuple(noise.shape)}")
    expect(noise.dtype == torch.float32, f"expected float32 by default, got {noise.dtype}")
    half = m.sample((4,), generator=torch.Generator().manual_seed(0), dtype=torch.float16)
    expect(half.dtype == torch.float16, f"expected dtype=float16, got {half.dtype}")


def check_sampler_on_the_gpu(m: Mechanism, effort: Effort) -> None:
    if not torch.cuda.is_available():
        raise NotApplicable("there is no CUDA device")
    noise = m.sample((5,), generator=torch.Generator("cuda").manual_seed(0))
    expect(noise.device.type == "cuda", f"a CUDA generator gives noise on {noise.device}")


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]
