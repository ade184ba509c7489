"""A claimed ε against a game: right for a scalar, wrong for a vector, and a sampler with half the noise.

    python examples/check_a_bound.py

Each row plays the distinguishing game and shows the ε that it proves at a confidence of 0.999, beside the claim.
"""

import torch
from optnoise.accounting import Release, distinguishing_game
from optnoise.mechanisms import Gaussian, Laplace


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    laplace, half = Laplace(4.0), Gaussian(0.5)

    def faulty(shape):
        """What a faulty program draws where noise of multiplier 1 is claimed."""
        return half.sample(shape, generator=generator, dtype=torch.float64)

    claimed = Release(Gaussian(1.0), steps=10, sampling_rate=0.1)
    games = {
        "Laplace(4), scalar": distinguishing_game(
            Release(laplace, dimension=1), delta=1e-3, claim=0.25, generator=generator
        ),
        "Laplace(4), 100 coordinates": distinguishing_game(
            Release(laplace, dimension=100), delta=1e-3, claim=0.25, generator=generator
        ),
        "Gaussian, as claimed": distinguishing_game(claimed, delta=1e-3, generator=generator),
        "Gaussian, half the noise": distinguishing_game(claimed, delta=1e-3, generator=generator, sampler=faulty),
    }
    print(f"{'what runs':<28} {'claim':>7} {'shown':>7}  verdict")
    for name, game in games.items():
        claim = game.proven.upper if game.claim is None else game.claim
        print(f"{name:<28} {claim:7.4f} {game.lower:7.4f}  {game.verdict}")


if __name__ == "__main__":
    main()
