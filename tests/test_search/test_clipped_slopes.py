"""The error of a zeroth-order estimate: formulas against simulated steps, the chosen clip against brute force."""

import math
from typing import Any

import numpy as np
import pytest
from optnoise.search.clipped_slopes import best_clip, clipped_square, kept_share, slope_error


def clipped(slopes, clip):
    """Rows of (m, k) slopes, clipped to L2 norm `clip`."""
    return slopes * np.minimum(1, clip / np.linalg.norm(slopes, axis=-1, keepdims=True))


@pytest.mark.parametrize(("clip", "directions"), [(0.3, 1), (1.0, 1), (2.5, 1), (0.8, 2), (2.0, 4), (5.0, 9)])
def test_what_clipping_keeps(clip, directions):
    slopes = np.random.default_rng(1).normal(size=(400_000, directions))
    found = clipped(slopes, clip)
    assert kept_share(clip, directions) == pytest.approx((found * slopes).mean(), rel=0.01)  # Stein's lemma
    assert clipped_square(clip, directions) == pytest.approx((found**2).mean(), rel=0.01)


@pytest.mark.parametrize(("clip", "directions", "noise"), [(1.0, 1, 0.0), (1.0, 1, 6.0), (1.5, 3, 4.0), (50.0, 1, 0.3)])
def test_the_error_of_simulated_steps(clip, directions, noise):
    """Whole steps in R^150: Poisson batch, normal directions, clip, noise, division, update."""
    rng, n, d, q, steps = np.random.default_rng(2), 200, 150, 0.2, 3000
    gradients = rng.normal(size=(n, d))
    gradients = gradients - gradients.mean(axis=0)
    gradients = gradients / np.linalg.norm(gradients, axis=1, keepdims=True) * math.sqrt(1 - 0.25**2)
    gradient = np.zeros(d)
    gradient[0] = 0.25
    gradients = gradients + gradient - gradients.mean(axis=0)
    size = math.sqrt((gradients**2).sum(axis=1).mean())  # S
    kept, batch = kept_share(clip, directions), q * n
    errors, mean = 0.0, np.zeros(d)
    for _ in range(steps):
        z = rng.normal(size=(directions, d))
        slopes = clipped(gradients[rng.random(n) < q] @ z.T, clip * size)
        noisy = slopes.sum(axis=0) + rng.normal(size=directions) * noise * clip * size
        estimate = noisy @ z / (directions * batch * kept)
        errors += ((estimate - gradient) ** 2).sum() / steps
        mean += estimate / steps
    planned = slope_error(
        clip,
        noise=noise,
        batch_size=batch,
        sampling_rate=q,
        signal=float(np.linalg.norm(gradient)) / size,
        directions=directions,
    )
    assert errors == pytest.approx(planned.total * (gradient**2).sum() * d / directions, rel=0.06)
    assert mean @ gradient / (gradient @ gradient) == pytest.approx(1, abs=0.3)  # unbiased once divided by λ


@pytest.mark.parametrize("directions", [1, 4])
@pytest.mark.parametrize(
    ("noise", "batch", "rate"), [(1.0, 20, 0.01), (5.0, 20, 0.01), (9.0, 50, 0.3), (0.6, 500, 0.1)]
)
def test_the_best_clip_is_the_best_of_a_grid(noise, batch, rate, directions):
    question: dict[str, Any] = {
        "noise": noise,
        "batch_size": batch,
        "sampling_rate": rate,
        "signal": 0.1,
        "directions": directions,
    }
    grid = np.geomspace(0.01, 6, 4000) * math.sqrt(directions)
    least = min(slope_error(clip, **question).total for clip in grid)
    chosen = best_clip(**question)
    assert slope_error(chosen, **question).total <= least * (1 + 1e-9)
    for other in (chosen / 2, chosen * 2):
        assert slope_error(other, **question).total > least
    question["signal"] = 0.9
    assert best_clip(**question) == pytest.approx(chosen, rel=1e-4)


def test_the_ends_of_the_clip():
    assert best_clip(noise=0, batch_size=20, sampling_rate=0.1) == 6
    assert best_clip(noise=3, batch_size=20, sampling_rate=1) == 0.01
    assert best_clip(noise=30, batch_size=5, sampling_rate=0.5) == pytest.approx(0.01, rel=1e-3)
    signs = slope_error(0.01, noise=3, batch_size=20, sampling_rate=0.5, signal=1)
    assert signs.sample == pytest.approx(math.pi / 2 * 0.5 / 20, rel=0.01)
    assert signs.noise == pytest.approx(math.pi / 2 * 9 / 400, rel=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"signal": 1.5}, "0 < signal <= 1"),
        ({"signal": 0}, "signal > 0"),
        ({"noise": -1}, "noise >= 0"),
        ({"batch_size": 0}, "batch_size > 0"),
        ({"sampling_rate": 0}, "sampling_rate > 0"),
        ({"directions": 0}, "directions >= 1"),
    ],
)
def test_bad_arguments_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        best_clip(**({"noise": 1.0, "batch_size": 10, "sampling_rate": 0.1} | change))
