"""Accuracy of a classifier on texts that it was not trained on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .features import Features

_BATCH = 256


@torch.no_grad()
def accuracy(model: nn.Module, features: Features, labels: Tensor, indices: Tensor, *, dtype: torch.dtype) -> float:
    """Share of the texts at `indices` whose most likely class is their label, in evaluation mode."""
    was_training = model.training
    model.eval()
    order = indices[features.lengths[indices].argsort(stable=True)]
    correct = 0
    for part in order.split(_BATCH):
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            logits = model(**features.batch(part))
        correct += int((logits.argmax(dim=1) == labels[part]).sum())
    model.train(was_training)
    return correct / len(indices)
