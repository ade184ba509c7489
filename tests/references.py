"""Slow, independent computations that tests trust: mpmath, plain quadrature, composition by enumeration."""

import json
import math
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
from optnoise.mechanisms import GammaLaplace, Gaussian, Laplace, Mechanism
from scipy import integrate


def gaussian_delta(epsilon: float, mu: float, digits: int = 60) -> mp.mpf:
    """Balle and Wang's δ(ε) in `digits` digits."""
    with mp.workdps(digits):
        e, m = mp.mpf(epsilon), mp.mpf(mu)
        return mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)


def renyi(
    m: Mechanism, order: float, shift: float, *, rate: float = 1.0, remove: bool = True, points: int = 400_001
) -> float:
    """Rényi divergence of the sampled pair on a fixed dense grid (trapezoid, graded near the kinks)."""
    reach = float(m.tail_quantile(-60.0 if m.tail_index == math.inf else -25.0)) + (order + 1) * shift
    half = np.sinh(np.linspace(0, np.arcsinh(reach / m.scale_hint * 1e4), points)) * m.scale_hint * 1e-4
    x = np.unique(np.concatenate([-half, half, shift - half, shift + half]))
    log_p, log_q = m.log_density(x), m.log_density(x - shift)
    mixed = log_p if rate == 1 else np.logaddexp(np.log1p(-rate) + log_q, math.log(rate) + log_p)
    top, bottom = (mixed, log_q) if remove else (log_q, mixed)
    loss = top - bottom  # 1 + ∫ [e^{α·loss} − 1 − α(e^loss − 1)]·bottom: no digits lost to the 1
    excess = integrate.trapezoid((np.expm1(order * loss) - order * np.expm1(loss)) * np.exp(bottom), x)
    return math.log1p(excess) / (order - 1)


def hockey_stick(m: Mechanism, epsilon: float, shift: float, *, rate: float = 1.0, remove: bool = True) -> float:
    """δ(ε) of one scalar release by integrating max(0, p − e^ε·q) on a dense grid: no level set is searched."""
    reach = float(m.tail_quantile(-40.0 if m.tail_index == math.inf else -15.0)) + shift
    half = np.sinh(np.linspace(0, np.arcsinh(reach / m.scale_hint * 1e3), 400_001)) * m.scale_hint * 1e-3
    x = np.unique(np.concatenate([-half, half, shift - half, shift + half]))
    p, q = np.exp(m.log_density(x)), np.exp(m.log_density(x - shift))
    mixed = (1 - rate) * q + rate * p
    top, bottom = (mixed, q) if remove else (q, mixed)
    return float(integrate.trapezoid(np.maximum(0.0, top - math.exp(epsilon) * bottom), x))


def reference_cases() -> list:
    """Accounting cases with rigorous brackets [eps_lower, eps_upper] (dominating pairs and a tilted FFT)."""
    return json.loads((Path(__file__).parent / "data" / "accounting_cases.json").read_text(encoding="utf-8"))


def reference_mechanism(case: dict) -> Mechanism:
    """The noise of a reference case."""
    parameters = case["mechanism"]["params"]
    return {
        "gaussian": lambda: Gaussian(parameters["sigma"]),
        "laplace": lambda: Laplace(parameters["b"]),
        "gamma_laplace": lambda: GammaLaplace(parameters["shape"], parameters["scale"]),
    }[case["mechanism"]["type"]]()


def approx(value, relative):
    """pytest.approx with a relative tolerance only."""
    return pytest.approx(value, rel=relative, abs=1e-300)
