"""A noise of one's own: written down, property-tested, searched with, accounted for.

    python examples/own_noise.py

Prints the check of the density, then the best shape for ten scalar releases at ε = 3, beside Gaussian and Laplace noise
of the same proven guarantee.
"""

import dataclasses
import math

import numpy as np
from optnoise.mechanisms import DensityShape, Mechanism, check_mechanism, register
from optnoise.search import ParametricFamily, Problem, ShapeParameter, register_family, search


@register
@dataclasses.dataclass(frozen=True)
class Logistic(Mechanism):
    """Smoothed Laplace: density ∝ 1/cosh²(x/2s), s the scale in units of the clipping norm; e^{−|x|/s} far out."""

    scale: float

    family = "logistic"
    density_shape = DensityShape.LOG_CONCAVE

    def __post_init__(self):
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"expected scale > 0, got {self.scale=}")

    def log_density(self, x):
        y = np.abs(np.asarray(x, dtype=np.float64)) / self.scale
        return -y - 2 * np.log1p(np.exp(-y)) - math.log(self.scale)

    def log_tail(self, x):
        return -np.logaddexp(0.0, np.asarray(x, dtype=np.float64) / self.scale)

    def scaled(self, factor):
        return dataclasses.replace(self, scale=self.scale * factor)

    @property
    def scale_hint(self):
        return self.scale


def main() -> None:
    print(check_mechanism(Logistic(2.0)))
    shape = ShapeParameter("scale", 0.5, 50.0, logarithmic=True)  # one shape only: the search scales it to the budget
    register_family(ParametricFamily("logistic", (shape,), Logistic))
    problem = Problem(epsilon=3.0, delta=1e-5, steps=10, dimension=1, cost="variance")
    result = search(problem, families=["logistic", "gaussian", "laplace"], progress=False)
    gaussian = result.best_of("gaussian").mechanism.variance
    print("family     variance / Gaussian's   proven epsilon")
    for name in ("logistic", "gaussian", "laplace"):
        entry = result.best_of(name)
        print(f"{name:<10} {entry.mechanism.variance / gaussian:.4f}                  {entry.epsilon.upper:.4f}")


if __name__ == "__main__":
    main()
