"""The loss of each example, derived from what the model is for; and a check of it on the first rows."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
)

from .losses import causal_lm_losses, check_losses_are_per_example
from .trainer_rows import length_of

_LOG = logging.getLogger(__name__)

PerExampleLoss = Callable[[Any, Any], Tensor]
"""(model, batch) to the losses (B,): one for each example, of that example alone."""
LABELS = ("labels", "label", "label_ids")
"""Names under which the collators of `transformers` find a row's label."""


def derived_loss(model: nn.Module) -> PerExampleLoss:
    """Cross entropy per example for a sequence classifier, mean over its own tokens for a causal language model.

    Raises ValueError for other models: they need a per_example_loss.
    """
    base = base_model(model)
    name, config = type(base).__name__, getattr(base, "config", None)
    if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() and not getattr(config, "is_encoder_decoder", False):
        return language_model_losses
    if name in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.values():
        problem = getattr(config, "problem_type", None) or "single_label_classification"
        if problem == "single_label_classification" and getattr(config, "num_labels", 0) >= 2:
            return classification_losses
    raise ValueError(
        f"no loss per example is known for {name}: pass per_example_loss, a function of (model, batch) that returns "
        "one loss for each example, shape (B,)"
    )


def classification_losses(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """Cross entropies (B,) at the classes `batch["labels"]` (B,). Raises ValueError for a class that is none."""
    labels = batch["labels"]
    logits = model(**{name: value for name, value in batch.items() if name != "labels"}).logits.float()
    if labels.is_floating_point() or labels.dim() != 1:
        raise ValueError(
            f"expected labels of whole numbers, shape (B,), got {labels.dtype} of shape {tuple(labels.shape)}; for "
            "another task pass per_example_loss"
        )
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < logits.shape[-1]):
        raise ValueError(f"expected labels from 0 to {logits.shape[-1] - 1} (num_labels - 1), got others among them")
    return nn.functional.cross_entropy(logits, labels, reduction="none")


def language_model_losses(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """Next-token cross entropies (B,), each the mean over the example's own `batch["labels"]` (B, T) that are valid."""
    labels = batch["labels"]
    return causal_lm_losses(model(**{name: value for name, value in batch.items() if name != "labels"}).logits, labels)


def base_model(model: nn.Module) -> nn.Module:
    """The model itself, or what peft has wrapped."""
    unwrap = getattr(model, "get_base_model", None)
    return unwrap() if callable(unwrap) else model  # type: ignore[return-value]


def columns_of(model: nn.Module) -> set[str]:
    """The names that the model's forward takes, and those of labels."""
    return {*inspect.signature(base_model(model).forward).parameters, *LABELS}


def check_columns(columns: Collection[str], row: Any, collate: Callable[[list[Any]], Any]) -> None:
    """Raise ValueError if a derived loss finds labels neither in `row` nor in what the collator makes of it.

    `columns` are those of the data set, for the message.
    """
    if any(name in row for name in LABELS) or "labels" in collate([row]):
        return
    raise ValueError(
        f"the loss needs a column labels, and the train_dataset has {', '.join(columns)}; rename the column, or pass "
        "per_example_loss"
    )


def check_first_rows(
    model: nn.Module,
    losses: Callable[[Any], Tensor],
    rows: Sequence[Any],
    collate: Callable[[list[Any]], Any],
    *,
    tolerance: float,
) -> None:
    """Raise ValueError if the loss of a row changes with its company, by `check_losses_are_per_example`.

    `losses` maps a collated batch to its losses. The two shortest and the two longest rows are asked: equal lengths
    hide a shared divisor. A collator that draws (masks words) gives other values each time; then nothing is compared.
    """
    ordered = sorted(rows, key=length_of)
    chosen = ordered if len(ordered) <= 4 else [*ordered[:2], *ordered[-2:]]
    if len(chosen) < 2:
        return
    with torch.random.fork_rng():
        if not _same(collate(list(chosen)), collate(list(chosen))):
            _LOG.warning("the collator gives another batch each time: whether losses are per example was not compared")
            return
        check_losses_are_per_example(
            model,
            lambda indices: losses(collate([chosen[index] for index in indices.tolist()])),
            len(chosen),
            tolerance=tolerance,
        )


def _same(first: Any, second: Any) -> bool:
    if not isinstance(first, Mapping):
        return True
    return all(torch.equal(value, second[name]) for name, value in first.items() if isinstance(value, Tensor))
