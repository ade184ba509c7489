"""Checks of `mechanisms.check_mechanism` that ask about privacy: agreement of the accountants, and a game.

The noise is scaled to E|X| of about 2C or, where that is too heavy-tailed, by its scale hint, so that every family is
asked about an ε of order 1.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from numpy.typing import NDArray

from ..mechanisms import Mechanism
from ..mechanisms._quadrature import edges, integral
from ..mechanisms.check import Effort, NotApplicable, expect
from .api import epsilon
from .empirical import epsilon_from_scores
from .interval import EpsilonInterval

Array = NDArray[np.float64]

_ACCOUNTANTS = ("exact", "pld", "rdp", "cf")
_FAILURE = 2e-7  # probability that the game accuses a right noise
_HALVINGS = 12
_LARGEST = 600.0  # ε beyond which e^ε is no number for a quadrature


def _scaled(m: Mechanism) -> Mechanism:
    return m.scaled(2 / m.scale_hint)


@functools.lru_cache(maxsize=256)
def _epsilon(m: Mechanism, steps: int, rate: float, delta: float, accountant: str) -> EpsilonInterval | str:
    """The interval, or why there is none."""
    try:
        return epsilon(
            m, delta=delta, steps=steps, sampling_rate=rate, dimension=1, accountant=accountant, relative_width=1e-4
        )
    except ValueError as refusal:
        return str(refusal)


def check_accountants_agree(m: Mechanism, effort: Effort) -> str:
    """Every two intervals for one question overlap (to 1e-9); one of them at least is proven and finite or says ∞."""
    noise, asked = _scaled(m), set()
    for steps, rate, delta in effort.questions:
        answers = {name: _epsilon(noise, steps, rate, delta, name) for name in _ACCOUNTANTS}
        intervals = {name: a for name, a in answers.items() if isinstance(a, EpsilonInterval)}
        question = f"{steps} steps, q={rate}, delta={delta}"
        expect("pld" in intervals, f"no proven interval for {question}: {answers['pld']}")
        asked |= set(intervals)
        for one, a in intervals.items():
            for other, b in intervals.items():
                low, high = max(a.lower, b.lower), min(a.upper, b.upper)
                expect(low <= high or low - high <= 1e-9 * low, f"{question}: {one} says {a}, {other} says {b}")
    return "asked: " + ", ".join(name for name in _ACCOUNTANTS if name in asked)


def check_delta_equals_quadrature(m: Mechanism, effort: Effort) -> None:
    """One release: ∫ (p − e^ε·q)_+ is at most δ at the upper end of ε, and at least δ at the lower one."""
    noise = _scaled(m)
    for steps, rate, delta in effort.questions:
        if steps > 1:
            continue
        bound = _epsilon(noise, steps, rate, delta, "pld")
        if not isinstance(bound, EpsilonInterval) or bound.upper > _LARGEST:
            continue
        panels = _finer(edges(noise))
        kinks = np.unique(np.concatenate([-panels, panels, 1 - panels, 1 + panels]))
        for value, sign in ((bound.upper, 1), (bound.lower, -1)):

            def gain(x: Array, e: float = value, q: float = rate) -> Array:
                with np.errstate(over="ignore", under="ignore"):
                    top, bottom = np.exp(noise.log_density(x)), np.exp(noise.log_density(x - 1))
                    return np.maximum(q * top + (1 - q) * bottom - math.exp(e) * bottom, 0.0)

            found = integral(gain, kinks)
            if value > 0:
                expect(sign * (found - delta) <= 3e-4 * delta, f"at ε={value} quadrature finds δ={found}, not {delta}")


def _finer(panels: Array) -> Array:
    """Each panel of the body cut in parts, as the integrand has a kink wherever the loss crosses ε."""
    body = panels[(panels > 1e-9) & (panels < 1e9)]
    return np.union1d(panels, np.concatenate([body[:-1] + k / _HALVINGS * np.diff(body) for k in range(_HALVINGS)]))


def check_game_does_not_beat_the_bound(m: Mechanism, effort: Effort) -> str:
    """An adversary who knows the noise guesses from its likelihood ratio whether the record was there.

    From hits and false alarms, each at its Clopper–Pearson end, log((TPR − δ)/FPR) <= ε with confidence 1 − 2e-7.
    Thresholds are chosen on one half of the draws and judged on the other.
    """
    noise, delta = _scaled(m), 1e-3
    bound = _epsilon(noise, 1, 1.0, delta, "pld")
    if not isinstance(bound, EpsilonInterval) or math.isinf(bound.upper):
        raise NotApplicable("no finite bound to beat")
    generator = torch.Generator().manual_seed(11)
    draws = [noise.sample((effort.game_draws,), generator=generator, dtype=torch.float64).numpy() for _ in (0, 1)]
    with np.errstate(invalid="ignore"):
        inside, outside = (noise.log_density(x - 1) - noise.log_density(x) for x in (draws[0] + 1, draws[1]))
    expect(np.isfinite(inside).any(), "every draw is outside the support that the density has")
    found = epsilon_from_scores(inside, outside, delta=delta, confidence=1 - _FAILURE).lower
    expect(found <= bound.upper, f"a game shows ε >= {found:.6g} at δ={delta}, above the bound {bound.upper:.6g}")
    return f"shown {found:.3g} of {bound.upper:.3g}"


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]
