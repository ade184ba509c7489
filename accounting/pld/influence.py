"""What one step contributes to δ(ε) of a composition: an approximation, for optimisation, not a bound.

If one step's pair (A', B') is free and the others are (A, B), δ(ε) of all is E_{B'}[φ(dA'/dB')] with

    φ(m) = E_B[(m·e^S − e^ε)_+] = m·P_A(S > ε − log m) − e^ε·P_B(S > ε − log m),     m·φ'(m) = m·P_A(S > ε − log m),

S the loss of the other steps. Both tails are sums over the tilted lattice law that the accountant composes.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ...mechanisms import Mechanism
from ..cells import largest_loss
from ..event import Event
from ..poisson import sampled_loss
from .questions import EpsilonQuestion
from .refinement import lattice_law
from .sampling import REMOVE

Array = NDArray[np.float64]

_POINTS = 6000  # of the table
_LARGEST = 600.0
_NOISE = 1e-17  # of the largest tilted mass: rounding of the transform


def step_influence(
    noise: Mechanism, *, shift: float, steps: int, sampling_rate: float, epsilon: float, log_delta: float
) -> tuple[Array, Array, Array]:
    """(L = log m, φ, dφ/dL), shape (n,) each, over the losses of one step of `noise` with some room; for *remove*.

    `steps` counts all steps, the free one included; `log_delta` is about δ(ε) of them all. Raises `Unresolved` where
    no lattice holds the law.
    """
    most = sampled_loss(min(largest_loss(noise, shift), _LARGEST), sampling_rate)
    least = math.log1p(-sampling_rate) if sampling_rate < 1 else -most
    loss = np.linspace(least, 1.2 * most + 0.05 * (most - least), _POINTS)
    if steps == 1:
        sums, log_mass = np.zeros(1), np.zeros(1)
    else:
        sums, log_mass = _other_steps(noise, shift, steps - 1, sampling_rate, log_delta)
    above = np.append(np.cumsum(np.exp(log_mass)[::-1])[::-1], 0.0)
    above_other = np.append(np.cumsum(np.exp(log_mass - sums)[::-1])[::-1], 0.0)
    index = np.searchsorted(sums, epsilon - loss, side="right")
    slope = np.exp(loss) * above[index]
    return loss, slope - math.exp(epsilon) * above_other[index], slope


def _other_steps(
    noise: Mechanism, shift: float, steps: int, sampling_rate: float, log_delta: float
) -> tuple[Array, Array]:
    """(losses, log of their masses under A) of the composition of `steps` steps, where δ looks."""
    event = Event(noise, shift, steps, sampling_rate, 1)
    law = lattice_law([event], REMOVE, EpsilonQuestion(log_delta, 1e-3))
    sums = law.first_loss + law.step * np.arange(len(law.mass))
    with np.errstate(divide="ignore"):
        log_mass = np.log(np.where(law.mass > _NOISE * np.max(law.mass), law.mass, 0.0))
    return np.asarray(sums, dtype=np.float64), np.asarray(log_mass + law.log_scale - law.tilt * sums, dtype=np.float64)
