"""Training without privacy, on the same batches: the yardstick that private runs are compared with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor, nn

from .randomness import Randomness
from .sampling import LogicalBatch, PoissonSampler


@final
class PlainRecording:
    """One microbatch: `backward(losses)` as in private training, without clipping."""

    def backward(self, losses: Tensor) -> None:
        """Back-propagate the sum of the losses (B,)."""
        losses.sum().backward()


@final
class NonPrivateTraining:
    """The loop of `PrivateTraining` with neither clipping nor noise: the mean gradient of each Poisson batch.

    It promises nothing and has no ε. An empty batch is skipped.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        dataset_size: int,
        sampling_rate: float,
        seed: int | None = None,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.randomness = Randomness.secret() if seed is None else Randomness.from_seed(seed)
        self._sampler = PoissonSampler(dataset_size, sampling_rate, self.randomness.sampling)
        self._batch = LogicalBatch(torch.empty(0, dtype=torch.long))

    def next_batch(self) -> LogicalBatch:
        """Draw the next Poisson batch."""
        self.optimizer.zero_grad()
        self._batch = self._sampler.draw()
        return self._batch

    @contextlib.contextmanager
    def record(self, batch_size: int) -> Iterator[PlainRecording]:
        """One microbatch of `batch_size` examples."""
        yield PlainRecording()

    def step(self) -> None:
        """Average over the batch and step the optimizer."""
        if not len(self._batch):
            return
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.div_(len(self._batch))
        self.optimizer.step()
