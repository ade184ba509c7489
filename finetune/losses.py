"""Per-example losses from token losses."""

from __future__ import annotations

import torch
from torch import Tensor


def mean_over_own_tokens(token_losses: Tensor, valid: Tensor) -> Tensor:
    """Mean of each example's own valid token losses, shape (B,).

    `token_losses` (B, T); `valid` (B, T) is False at ignored positions. An example without a valid token has loss 0.
    The divisor is the example's own count: one taken from the batch would let examples change each other's gradients.
    """
    kept = torch.where(valid, token_losses, torch.zeros_like(token_losses))
    return kept.sum(dim=1) / valid.sum(dim=1).clamp(min=1)
