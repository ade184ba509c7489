"""From a Rényi optimum to a noise that no small change improves at equal *exact* ε.

δ(ε) of a composition depends on each of its T equal steps. If only one of them changes, M to M' and Q to Q',

    δ = ∫ Q'(x)·φ(M'/Q'(x)) dx,    φ(m) = E[(m·e^{S} − e^ε)_+] under Q^{T−1}, S the loss of the other steps,

and φ is convex: a functional like the others (`Influence`), whose gradient, T times, is that of δ. So a density that is
cheapest under ∫ Q·φ <= δ, with φ computed from itself, is a stationary point of the exact problem (which is not convex:
the T-fold product is not linear in the density). From the Rényi optimum a few rounds of "compute φ, minimise within a
trust region, rescale to the exact ε" get there. φ is an approximation; the rescaling, which decides, is proven.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from ...accounting import calibrate
from ...accounting.pld.influence import step_influence
from ...mechanisms import Mechanism, Tabulated
from ..problem import Problem
from .cost import LinearCost
from .functional import Influence
from .loglinear import LogLinear, Shape

MechanismT = TypeVar("MechanismT", bound=Mechanism)

_TRUST = 0.5  # of the log slopes
_SMALLEST_TRUST = 0.02
_ENOUGH = 2e-4  # relative gain of a round below which it ends
_ITERATIONS = 120


def to_noise(shape: Shape, shift: float) -> Tabulated:
    """The density of a shape as a noise in units of C."""
    return Tabulated(tuple((shape.knots * shift).tolist()), tuple((shape.slopes / shift).tolist()))


def from_noise(noise: Tabulated, shift: float) -> Shape:
    """The shape of a noise in units of C."""
    slopes = np.maximum(np.array(noise.slopes) * shift, 1e-11)
    return Shape(np.array(noise.knots) / shift, np.log(slopes))


def calibrated(problem: Problem, noise: MechanismT) -> MechanismT:
    """`noise` scaled to the exact ε of the problem."""
    return calibrate(noise, epsilon=problem.epsilon, **problem.budget())


def polished(
    problem: Problem, shape: Shape, cost: LinearCost, *, rounds: int = 8, advance: Callable[[], None] = lambda: None
) -> Tabulated:
    """The cheapest noise of the rounds from `shape` on, at the exact ε of the problem. Each round calls `advance`."""
    best = calibrated(problem, to_noise(shape, problem.shift))
    trust = _TRUST
    for _ in range(rounds):
        advance()
        noise = calibrated(problem, _improved(problem, best, cost, trust))
        gain = 1 - problem.cost_of(noise) / problem.cost_of(best)
        if gain > 0:
            best = noise
        if gain < _ENOUGH:
            trust /= 4
        if trust < _SMALLEST_TRUST:
            break
    return best


def _improved(problem: Problem, noise: Tabulated, cost: LinearCost, trust: float) -> Tabulated:
    functional = influence(problem, noise)
    shape = from_noise(noise, problem.shift)
    program = LogLinear(shape.knots, functional, cost)
    limit = program.value(shape.log_slopes).log_loss
    slopes = program.minimise(shape.log_slopes, limit=limit, iterations=_ITERATIONS, trust=trust)
    return to_noise(Shape(shape.knots, slopes), problem.shift)


def influence(problem: Problem, noise: Tabulated) -> Influence:
    """φ of one step among `problem.steps` steps of `noise`."""
    loss, value, slope = step_influence(
        noise,
        shift=problem.shift,
        steps=problem.steps,
        sampling_rate=problem.sampling_rate,
        epsilon=problem.epsilon,
        log_delta=math.log(problem.delta),
    )
    return Influence(loss, value, slope, problem.sampling_rate, problem.delta)
