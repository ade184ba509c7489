"""Classification by a new head, on an encoder or a causal model."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, final

from torch import Tensor, nn

from .architectures import Kind
from .objective import (
    Objective,
    check_examples,
    evaluating,
    fit,
    length_sorted,
    model_inputs,
    notice,
    to_dataset,
    to_device,
    wide,
)
from .tokenizers import token_ids

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

    from ..tasks.base import ClassificationExample, ClassificationTask


class Classification(Objective):
    """A loss and a prediction for each example from logits (B, classes)."""

    def __init__(self, task: ClassificationTask, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(tokenizer)
        self.task = task

    def logits(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Logits (B, classes), in float32 at least."""
        raise NotImplementedError

    def per_example_losses(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Cross entropies (B,). Raises ValueError for a model that this objective does not take."""
        return nn.functional.cross_entropy(self.logits(model, batch), batch["labels"], reduction="none")

    def predict(
        self, model: nn.Module, examples: Sequence[ClassificationExample], *, max_length: int, batch_size: int = 64
    ) -> list[int]:
        """The most likely class of each example, in order."""
        return self._run(model, examples, max_length, batch_size)[0]

    def evaluate(
        self, model: nn.Module, examples: Sequence[ClassificationExample], *, max_length: int, batch_size: int = 64
    ) -> dict[str, float]:
        """The task's metrics, and `loss`, the mean over the examples. Computed without privacy."""
        predictions, loss = self._run(model, examples, max_length, batch_size)
        return {**self.task.metrics(predictions, [example.label for example in examples]), "loss": loss}

    def _run(self, model: nn.Module, examples: Sequence[Any], max_length: int, size: int) -> tuple[list[int], float]:
        rows: list[Any] = list(self.encode(examples, max_length))
        predictions, total = [0] * len(rows), 0.0
        with evaluating(model):
            for indices in length_sorted([len(row["input_ids"]) for row in rows], size):
                batch = to_device(self.collate([rows[index] for index in indices]), model)
                logits = self.logits(model, batch)
                total += float(nn.functional.cross_entropy(logits, batch["labels"], reduction="sum"))
                for index, prediction in zip(indices, logits.argmax(dim=1).tolist(), strict=True):
                    predictions[index] = int(prediction)
        return predictions, total / len(rows)

    def _labels(self, examples: Sequence[ClassificationExample]) -> list[int]:
        classes = len(self.task.labels)
        for number, example in enumerate(examples):
            if not 0 <= example.label < classes:
                raise ValueError(f"example {number}: expected 0 <= label < {classes}, got label={example.label}")
        return [example.label for example in examples]


@final
class SequenceClassification(Classification):
    """A text or a pair to a class by a head on an encoder's first token, or on a causal model's last valid token.

    Encoders get the tokenizer's own form of a pair; causal models get its two texts with a line break between them.
    """

    kinds: ClassVar[tuple[Kind, ...]] = ("encoder_head", "causal_head")

    def encode(self, examples: Sequence[ClassificationExample], max_length: int) -> Dataset:
        """Rows with `input_ids`, `attention_mask`, `labels` (and `token_type_ids` for BERT).

        Longer texts are cut, the longer of a pair first, with a notice in the log. Raises ValueError: no examples,
        a label out of range, pairs among single texts.
        """
        check_examples(examples, max_length)
        labels = self._labels(examples)
        arity = len(examples[0].texts)
        if arity not in (1, 2) or any(len(example.texts) != arity for example in examples):
            raise ValueError("expected one or two texts in every example, the same number in all")
        parts = [token_ids(self.tokenizer, [example.texts[place] for example in examples]) for place in range(arity)]
        encoder = self.tokenizer.cls_token_id is not None and self.tokenizer.sep_token_id is not None
        arrange = self._encoder_row if encoder else self._causal_row
        ids, types, cut = [], [], 0
        for texts in zip(*parts, strict=True):
            row, kinds, was_cut = arrange(texts, max_length)
            ids.append(row)
            types.append(kinds)
            cut += was_cut
        notice(cut, len(ids), "texts cut", max_length)
        columns = {"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids], "labels": labels}
        if "token_type_ids" in self.tokenizer.model_input_names:
            columns["token_type_ids"] = types
        return to_dataset(columns)

    def logits(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Logits (B, classes)."""
        self.check_model(model)
        logits = wide(model(**model_inputs(batch)).logits)
        if logits.shape[1] != len(self.task.labels):
            raise ValueError(f"the model has {logits.shape[1]} classes, the task {len(self.task.labels)} labels")
        return logits

    @functools.cached_property
    def _between(self) -> int:
        """How many end tokens the tokenizer puts between the texts of a pair: one for BERT, two for RoBERTa."""
        return self.tokenizer.num_special_tokens_to_add(pair=True) - 2

    def _encoder_row(self, texts: Sequence[list[int]], max_length: int) -> tuple[list[int], list[int], bool]:
        start, end = as_id(self.tokenizer.cls_token_id), as_id(self.tokenizer.sep_token_id)
        between = [end] * self._between
        extra = 2 + (len(between) if len(texts) == 2 else 0)
        kept = fit([len(text) for text in texts], max_length - extra)
        first = [start, *texts[0][: kept[0]]]
        second = [*texts[1][: kept[1]], end] if len(texts) == 2 else []
        joint = between if len(texts) == 2 else [end]
        types = [0] * (len(first) + len(joint)) + [1] * len(second)
        return [*first, *joint, *second], types, sum(kept) < sum(len(text) for text in texts)

    def _causal_row(self, texts: Sequence[list[int]], max_length: int) -> tuple[list[int], list[int], bool]:
        start = leading_ids(self.tokenizer)
        between = token_ids(self.tokenizer, ["\n"])[0] if len(texts) == 2 else []
        kept = fit([len(text) for text in texts], max_length - len(start) - len(between))
        row = [*start, *texts[0][: kept[0]], *between, *(texts[1][: kept[1]] if len(texts) == 2 else [])]
        row = row or [as_id(self.tokenizer.eos_token_id)]  # an empty text still has a last token
        return row, [0] * len(row), sum(kept) < sum(len(text) for text in texts)


def as_id(token: Any) -> int:
    """A special token's id; the type that transformers declares allows for more than one."""
    if not isinstance(token, int):
        raise ValueError(f"expected a tokenizer with one id for each special token, got {token!r}")
    return token


def leading_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The start token, where the tokenizer itself puts one before a text (Llama), else nothing (GPT-2)."""
    ids: Any = tokenizer("", verbose=False)["input_ids"]
    return [ids[0]] if ids and ids[0] == tokenizer.bos_token_id else []
