"""What all objectives share: rows to batches, microbatches of like length, notices of what was cut."""

from __future__ import annotations

import abc
import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from .architectures import Architecture, Kind, check_kind

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

_LOG = logging.getLogger(__name__)
IGNORED = -100
"""Label of a position that has no loss."""

Row = Mapping[str, Any]


class Objective(abc.ABC):
    """From examples to one loss for each, and to numbers for a report. Built from a task and a tokenizer."""

    kinds: ClassVar[tuple[Kind, ...]]
    """The kinds of models that it can train."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if tokenizer.pad_token_id is None:
            raise ValueError("the tokenizer has no padding token; load it with load_pretrained, which sets one")
        self.tokenizer = tokenizer

    @abc.abstractmethod
    def encode(self, examples: Sequence[Any], max_length: int) -> Dataset:
        """One row per example, in order, of at most `max_length` tokens."""

    @abc.abstractmethod
    def per_example_losses(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Losses (B,) of a batch as `collate` gives it, each of its own example alone."""

    def check_model(self, model: nn.Module) -> Architecture:
        """Raise ValueError that names the classes this objective takes, if the model is none of them."""
        return check_kind(model, self.kinds, type(self).__name__)

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Rows padded on the right to the longest: ids and masks (B, T), labels (B,) or (B, T)."""
        if not rows:
            raise ValueError("expected rows to collate, got none")
        fillers = {"input_ids": self.tokenizer.pad_token_id, "attention_mask": 0, "token_type_ids": 0}
        longest = max(len(row["input_ids"]) for row in rows)
        batch = {}
        for name, first in rows[0].items():
            values = [value.tolist() if isinstance(value, Tensor) else value for value in (row[name] for row in rows)]
            if not isinstance(first, int) and not (isinstance(first, Tensor) and first.dim() == 0):
                filler = fillers.get(name, IGNORED)
                values = [[*value, *[filler] * (longest - len(value))] for value in values]
            batch[name] = torch.tensor(values)
        return batch


def model_inputs(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the model is called with: labels stay out, as transformers would take their mean over the batch."""
    return {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in batch}


def to_dataset(columns: Mapping[str, list[Any]]) -> Dataset:
    """A `datasets.Dataset` of these columns. Raises ValueError with the pip command if datasets is missing."""
    try:
        from datasets import Dataset
    except ImportError:
        raise ValueError("encoding needs the package datasets; run: pip install 'optnoise[tasks]'") from None
    return Dataset.from_dict(dict(columns))


def check_examples(examples: Sequence[Any], max_length: int) -> None:
    """Raise ValueError for no examples or a length without room for anything."""
    if not len(examples):
        raise ValueError("expected examples to encode, got none")
    if max_length < 4:
        raise ValueError(f"expected max_length >= 4 tokens, got {max_length=}")


def notice(count: int, total: int, what: str, max_length: int) -> None:
    """Say in the log how many rows were cut. The count is of the data: no more public than they are."""
    if count:
        _LOG.warning("%d of %d rows: %s to fit into %d tokens", count, total, what, max_length)


def fit(lengths: Sequence[int], budget: int) -> list[int]:
    """Lengths that add up to at most `budget`, taken one token at a time off the longest."""
    kept = list(lengths)
    while sum(kept) > budget:
        longest = max(range(len(kept)), key=lambda index: kept[index])
        if kept[longest] == 0:
            raise ValueError(f"expected max_length with room for the texts, {-budget} tokens are missing")
        kept[longest] -= 1
    return kept


def length_sorted(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Indices in batches of like length, longest first."""
    if batch_size < 1:
        raise ValueError(f"expected batch_size >= 1, got {batch_size=}")
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def to_device(batch: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The batch on the model's device."""
    device = next(model.parameters()).device
    return {name: tensor.to(device) for name, tensor in batch.items()}


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; the mode it was in comes back."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def wide(logits: Tensor) -> Tensor:
    """At least float32."""
    return logits.float() if logits.dtype.itemsize < 4 else logits
