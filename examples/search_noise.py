"""The smallest noise for a budget: search, compare at equal guarantee, save, read again.

    python examples/search_noise.py

One release of a scalar at ε = 3, δ = 1e-5: a staircase has a twelfth of the Gaussian's variance.
"""

import tempfile
from pathlib import Path

from optnoise.accounting import epsilon
from optnoise.mechanisms import load
from optnoise.search import Problem, convex_optimum, search


def main() -> None:
    problem = Problem(epsilon=3.0, delta=1e-5, steps=1, dimension=1, cost="variance")
    result = search(problem, families=["gaussian", "laplace", "staircase"], progress=False)
    optimum = convex_optimum(problem)
    gaussian = result.best_of("gaussian").mechanism.variance
    rows = {name: result.best_of(name).mechanism for name in ("gaussian", "laplace", "staircase")}
    print("noise              variance / Gaussian's   proven epsilon")
    for name, noise in {**rows, "convex optimum": optimum.mechanism}.items():
        proven = epsilon(noise, delta=1e-5, dimension=1).upper
        print(f"{name:<18} {noise.variance / gaussian:<23.4f} {proven:.4f}")
    print(f"no symmetric density that falls with |x| is below {optimum.exact_bound / gaussian:.4f}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "noise.json"
        result.save(file)
        print(f"read again: {load(file) == result.best.mechanism}")


if __name__ == "__main__":
    main()
