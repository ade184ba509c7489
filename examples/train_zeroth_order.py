"""Private training without gradients: one noisy scalar a step, where the Gaussian is not the best noise.

    python examples/train_zeroth_order.py

Two noises of the same proven guarantee (ε <= 3, δ = 1e-5, T = 1000, q = 0.01), a linear classifier on synthetic data.
"""

import torch
from optnoise.accounting import calibrate
from optnoise.finetune import make_zeroth_order

ROWS, STEPS, RATE, EPSILON, DELTA = 4000, 1000, 0.01, 3.0, 1e-5


def accuracy(noise, features, labels) -> tuple[float, float]:
    """Training accuracy after all steps, and the ε of the ledger."""
    head = torch.nn.Linear(features.shape[1], 2).eval()
    torch.nn.init.zeros_(head.weight)
    training = make_zeroth_order(
        head,
        mechanism=noise,
        clipping_norm=1.0,
        dataset_size=ROWS,
        sampling_rate=RATE,
        divisor=ROWS * RATE,
        smoothing=1e-2,
        learning_rate=0.02,
    )

    def losses(indices):
        return torch.nn.functional.cross_entropy(head(features[indices]), labels[indices], reduction="none")

    for _ in training.logical_batches(STEPS):
        training.step(losses)
    with torch.no_grad():
        right = (head(features).argmax(dim=1) == labels).double().mean()
    return float(right), training.epsilon(delta=DELTA).upper


def main() -> None:
    torch.manual_seed(0)  # of the data; noise and samples come from the operating system
    labels = torch.randint(0, 2, (ROWS,))
    features = torch.randn(ROWS, 10) + 0.6 * (2 * labels[:, None] - 1)
    print("noise     variance [C²]  proven epsilon  accuracy")
    for family in ("gaussian", "laplace"):
        noise = calibrate(family, epsilon=EPSILON, delta=DELTA, steps=STEPS, sampling_rate=RATE, dimension=1)
        right, epsilon = accuracy(noise, features, labels)
        print(f"{family:<9} {noise.variance:<14.4f} {epsilon:<15.4f} {right:.3f}")


if __name__ == "__main__":
    main()
