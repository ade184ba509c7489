"""Per-example losses from token losses, and a check that losses are per example.

Under clipping, what divides a loss must belong to the example alone. A mean over the tokens of the *batch* (what
`transformers` models return, and what `num_items_in_batch` asks for) lets one example change all the others' gradients:
the clipped sum then moves by more than C. Autograd cannot see a count, so
`check_losses_are_per_example` compares values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from .probe import bit_splits


def mean_over_own_tokens(token_losses: Tensor, valid: Tensor) -> Tensor:
    """Mean of each example's own valid token losses, shape (B,).

    `token_losses` (B, T); `valid` (B, T) is False at ignored positions. An example without a valid token has loss 0.
    The divisor is the example's own count: one taken from the batch would let examples change each other's gradients.
    """
    return sum_over_own_tokens(token_losses, valid) / valid.sum(dim=1).clamp(min=1)


def sum_over_own_tokens(token_losses: Tensor, valid: Tensor) -> Tensor:
    """Sum of each example's own valid token losses, shape (B,); see `mean_over_own_tokens`."""
    if token_losses.shape != valid.shape or token_losses.dim() != 2:
        raise ValueError(
            "expected token_losses and valid of the same shape (examples, positions), got "
            f"{tuple(token_losses.shape)} and {tuple(valid.shape)}"
        )
    return torch.where(valid, token_losses, torch.zeros_like(token_losses)).sum(dim=1)


def token_classification_losses(
    logits: Tensor, labels: Tensor, *, ignore_index: int = -100, over_tokens: Literal["mean", "sum"] = "mean"
) -> Tensor:
    """Cross entropies (B,) of `logits` (B, T, V) at `labels` (B, T), over each example's own labels != `ignore_index`.

    Computed in float32 at least. Raises ValueError for other shapes or another `over_tokens`.
    """
    reductions = {"mean": mean_over_own_tokens, "sum": sum_over_own_tokens}
    if over_tokens not in reductions:
        raise ValueError(f"expected over_tokens 'mean' or 'sum', got {over_tokens=}")
    if logits.dim() != 3 or logits.shape[:2] != labels.shape:
        raise ValueError(
            f"expected logits (examples, positions, classes) and labels (examples, positions), got shapes "
            f"{tuple(logits.shape)} and {tuple(labels.shape)}"
        )
    if not logits.dtype.is_floating_point or logits.dtype.itemsize < 4:
        logits = logits.float()
    flat = nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=ignore_index, reduction="none"
    )
    return reductions[over_tokens](flat.view(labels.shape), labels != ignore_index)


def causal_lm_losses(
    logits: Tensor, labels: Tensor, *, ignore_index: int = -100, over_tokens: Literal["mean", "sum"] = "mean"
) -> Tensor:
    """Next-token cross entropies (B,): `logits` (B, T, V) at position t predict `labels` (B, T) at t + 1.

    The labels are shifted, not the logits: no copy of the logits is made. See `token_classification_losses`.
    """
    shifted = torch.full_like(labels, ignore_index)
    shifted[:, :-1] = labels[:, 1:]
    return token_classification_losses(logits, shifted, ignore_index=ignore_index, over_tokens=over_tokens)


@torch.no_grad()
def check_losses_are_per_example(
    model: nn.Module, losses: Callable[[Tensor], Tensor], examples: int, *, tolerance: float = 1e-3
) -> None:
    """Raise ValueError if the loss of an example changes with the company it is in.

    `losses` maps indices (b,) to losses (b,) by calling `model`, which is put into eval mode meanwhile (dropout off).
    It is asked for all `examples` at once and for parts that tell any two examples apart. Unlike the probe that
    `record` makes with autograd, this finds divisors and constants taken from the batch. On data of different lengths:
    equal counts hide a shared divisor. Relative `tolerance`: another padding moves float32 losses a little.
    """
    if examples < 2:
        raise ValueError(f"expected examples >= 2 to compare, got {examples=}")
    was_training = model.training
    model.eval()
    try:
        whole = _one_each(losses, torch.arange(examples))
        for mask in bit_splits(examples):
            indices = mask.nonzero().flatten()
            alone = _one_each(losses, indices)
            off = ~torch.isclose(alone, whole[indices.to(whole.device)], rtol=tolerance, atol=tolerance * 1e-3)
            if bool(off.any()):
                first = int(indices[off.nonzero()[0]])
                raise ValueError(
                    f"the loss of example {first} changes when other examples leave the batch: it is not a loss of "
                    "that example alone; divide by its own valid tokens (mean_over_own_tokens), not by the batch's"
                )
    finally:
        model.train(was_training)


def _one_each(losses: Callable[[Tensor], Tensor], indices: Tensor) -> Tensor:
    """The losses of `indices` (b,), refused in any other shape than (b,)."""
    found, wanted = losses(indices), (len(indices),)
    if tuple(found.shape) != wanted:
        raise ValueError(
            f"expected one loss per example, shape {wanted}, got shape {tuple(found.shape)}; Poisson batches vary in "
            "size: take it from the batch, not from a setting"
        )
    return found
