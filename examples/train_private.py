"""Private training in one's own loop: calibrate, train with ghost clipping, read ε from the ledger.

    python examples/train_private.py

A small classifier on synthetic data: 2,000 rows of two classes, 100 steps at ε <= 1, δ = 1e-5.
"""

import tempfile
from pathlib import Path

import torch
from optnoise.accounting import Ledger, calibrate
from optnoise.finetune import make_private

ROWS, STEPS, RATE, EPSILON, DELTA = 2000, 100, 0.1, 1.0, 1e-5


def main() -> None:
    torch.manual_seed(0)  # of data and first weights; noise and samples come from the operating system
    labels = torch.randint(0, 2, (ROWS,))
    features = torch.randn(ROWS, 20) + 0.5 * (2 * labels[:, None] - 1)
    model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
    noise = calibrate("gaussian", epsilon=EPSILON, delta=DELTA, steps=STEPS, sampling_rate=RATE)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ledger.jsonl"
        training = make_private(
            model,
            torch.optim.Adam(model.parameters(), lr=0.02),
            mechanism=noise,
            clipping_norm=1.0,
            dataset_size=ROWS,
            sampling_rate=RATE,
            divisor=ROWS * RATE,
            ledger=file,
        )
        for batch in training.logical_batches(STEPS):
            for indices in batch.microbatches(64):
                with training.record(len(indices)) as recording:
                    logits = model(features[indices])
                    recording.backward(torch.nn.functional.cross_entropy(logits, labels[indices], reduction="none"))
            training.step()
        interval = Ledger(file).epsilon(delta=DELTA)
    assert interval.upper <= EPSILON
    accuracy = (model(features).argmax(dim=1) == labels).double().mean()
    print(f"noise multiplier {noise.noise_multiplier:.4f}, {STEPS} steps")
    print(f"epsilon in [{interval.lower:.4f}, {interval.upper:.4f}] at delta = {DELTA}")
    print(f"training accuracy {accuracy:.3f} (not private: computed on the private rows)")


if __name__ == "__main__":
    main()
