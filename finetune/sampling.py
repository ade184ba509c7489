"""Poisson logical batches, and their split into microbatches that only memory cares about."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import final

import torch
from torch import Tensor

from .processes import Processes
from .secure import Generator, uniform

_STEP = 2.0**-53  # between neighbouring uniform draws


@final
@dataclasses.dataclass(frozen=True)
class LogicalBatch:
    """The examples behind one noise draw: `indices` (m,) into the training data, ascending; m varies and may be 0.

    Where several processes train one model, these are the examples that this one is to compute: any two processes have
    different ones, and all of them together are the Poisson sample. If the model lies in pieces in them, all take the
    same number of microbatches, which `largest_share`, the size of the largest share, decides; else that is 0.
    """

    indices: Tensor
    largest_share: int = 0

    def __len__(self) -> int:
        return len(self.indices)

    def microbatches(self, size: int, *, lengths: Sequence[int] | Tensor | None = None) -> Iterator[Tensor]:
        """Cut into at most `size` examples each: tensors of indices; none for an empty batch.

        `lengths` gives the length of every training example: similar ones are put together, which saves padding. The
        released gradient does not depend on the split. Where the model lies in pieces, `idle(size)` microbatches
        follow that hold record 0 and are recorded for nothing: another process has more examples.
        """
        idle = self.idle(size)
        order = self.indices
        if lengths is not None and len(order):
            order = order[torch.as_tensor(lengths)[order].argsort(stable=True)]
        for start in range(0, len(order), size):
            yield order[start : start + size]
        for _ in range(idle):
            yield order.new_zeros(1)

    def idle(self, size: int) -> int:
        """How many microbatches of at most `size` the process with the largest share has more than this one; 0 if
        nobody waits for this one."""
        if size < 1:
            raise ValueError(f"expected size >= 1, got {size=}")
        return max(0, -(-self.largest_share // size) - -(-len(self) // size))


@final
class PoissonSampler:
    """Draws each of `dataset_size` records with probability `sampling_rate`, independently, every time anew.

    A shuffled loader with fixed batches is another scheme and has another ε. `generator` (CPU) must be as secret as
    the noise: the sampling rate only helps while nobody knows who was drawn. The rate that comes out is
    `sampling_rate` rounded down to a multiple of 2^−53, so never above it.
    """

    def __init__(self, dataset_size: int, sampling_rate: float, generator: Generator) -> None:
        if dataset_size < 1:
            raise ValueError(f"expected dataset_size >= 1, got {dataset_size=}")
        if not 0 < sampling_rate <= 1:
            raise ValueError(f"expected 0 < sampling_rate <= 1, got {sampling_rate=}")
        self.dataset_size, self.sampling_rate, self._generator = dataset_size, sampling_rate, generator

    def draw(self) -> LogicalBatch:
        """The next logical batch."""
        draws = uniform(self.dataset_size, self._generator)
        return LogicalBatch((draws + _STEP <= self.sampling_rate).nonzero().flatten())


@final
class SharedSampler:
    """One Poisson sample for all processes: drawn in the first of them, dealt out like cards.

    `in_step`: all of them take the same number of microbatches.
    """

    def __init__(self, sampler: PoissonSampler, processes: Processes, *, in_step: bool = False) -> None:
        self._sampler, self._processes, self._in_step = sampler, processes, in_step

    def draw(self, check: Callable[[], None]) -> LogicalBatch:
        """This process's share of the next logical batch; if `check` raises in one process, none of them draws on."""

        def sample() -> Tensor | None:
            check()
            return self._sampler.draw().indices if self._processes.is_first else None

        indices = self._processes.from_first("taking the next batch", sample)
        assert indices is not None
        largest = -(-len(indices) // self._processes.size) if self._in_step else 0
        return LogicalBatch(self._processes.share(indices), largest)
