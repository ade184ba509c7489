"""What the trained part of a model reads: token ids, cached hidden states or cached means of the frozen part."""

from __future__ import annotations

import abc
import dataclasses
import math
import time
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from .encoder import LowerLayers, UpperLayers, mean_over_positions
from .ragged import Ragged

_BATCH = 128  # texts per forward pass of the frozen part


class Features(abc.ABC):
    """Model inputs of n texts."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @property
    @abc.abstractmethod
    def lengths(self) -> Tensor:
        """Length of each text in positions, shape (n,), by which microbatches are sorted."""

    @abc.abstractmethod
    def batch(self, indices: Tensor) -> dict[str, Tensor]:
        """Keyword arguments of the model for the texts at `indices`."""


@final
@dataclasses.dataclass(frozen=True)
class TokenFeatures(Features):
    """Token ids, for an `EncoderClassifier`."""

    tokens: Ragged
    padding_id: int

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def lengths(self) -> Tensor:
        return self.tokens.lengths

    def batch(self, indices: Tensor) -> dict[str, Tensor]:
        ids, mask = self.tokens.padded(indices, fill=self.padding_id)
        return {"input_ids": ids, "attention_mask": mask.long()}


@final
@dataclasses.dataclass(frozen=True)
class HiddenFeatures(Features):
    """Hidden states of a frozen `LowerLayers`, for an `UpperLayers` with layers."""

    hidden: Ragged

    def __len__(self) -> int:
        return len(self.hidden)

    @property
    def lengths(self) -> Tensor:
        return self.hidden.lengths

    def batch(self, indices: Tensor) -> dict[str, Tensor]:
        hidden, mask = self.hidden.padded(indices)
        return {"hidden": hidden, "attention_mask": mask}


@final
@dataclasses.dataclass(frozen=True)
class MeanFeatures(Features):
    """Means over positions (n, H) of a frozen encoder, for an `UpperLayers` without layers."""

    means: Tensor

    def __len__(self) -> int:
        return len(self.means)

    @property
    def lengths(self) -> Tensor:
        return torch.ones(len(self), dtype=torch.long)

    def batch(self, indices: Tensor) -> dict[str, Tensor]:
        return {"hidden": self.means[indices]}


Progress = Callable[[int, int], None]
"""Called with (texts done, texts in all)."""


@torch.no_grad()
def compute_hidden(
    lower: LowerLayers, tokens: Ragged, *, padding_id: int, dtype: torch.dtype, progress: Progress
) -> HiddenFeatures:
    """Hidden states of every text, computed under autocast to `dtype` and kept in it, longest texts first."""
    lower.eval()
    values: Tensor | None = None
    order = tokens.lengths.argsort(descending=True, stable=True)
    for start in range(0, len(order), _BATCH):
        indices = order[start : start + _BATCH]
        ids, mask = tokens.padded(indices, fill=padding_id)
        with torch.autocast(ids.device.type, dtype=dtype, enabled=dtype != torch.float32):
            hidden = lower(ids, mask)
        if values is None:
            values = torch.empty(len(tokens.values), hidden.shape[2], dtype=dtype)
        values[(tokens.offsets[:-1][indices, None] + torch.arange(ids.shape[1]))[mask]] = hidden[mask].to(dtype)
        progress(start + len(indices), len(order))
    assert values is not None
    return HiddenFeatures(Ragged(values, tokens.offsets))


@torch.no_grad()
def compute_means(upper: UpperLayers, features: HiddenFeatures, *, dtype: torch.dtype) -> MeanFeatures:
    """Means over positions after the layers of a frozen `UpperLayers`: what is left to train is its head."""
    upper.eval()
    means = torch.empty(len(features), upper.head.in_features)
    order = features.lengths.argsort(stable=True)
    for indices in order.split(_BATCH):
        batch = features.batch(indices)
        with torch.autocast(means.device.type, dtype=dtype, enabled=dtype != torch.float32):
            hidden = upper.hidden_states(**batch)
        means[indices] = mean_over_positions(hidden, batch["attention_mask"]).float()
    return MeanFeatures(means)


def faster_dtype(run: Callable[[], object]) -> torch.dtype:
    """bfloat16 or float32, whichever runs `run` faster here (bfloat16 is slow on CPUs without support for it)."""
    seconds = {torch.float32: math.inf, torch.bfloat16: math.inf}
    for _ in range(3):  # the best of three, taken in turn: other work on the machine disturbs both alike
        for dtype in seconds:
            with torch.no_grad(), torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
                begin = time.perf_counter()
                run()
                seconds[dtype] = min(seconds[dtype], time.perf_counter() - begin)
    return min(seconds, key=lambda dtype: seconds[dtype])
