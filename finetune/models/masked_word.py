"""Classification without a new head: the masked word of a prompt, among the label words (arXiv 2110.05679)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, final

import torch
from torch import Tensor, nn

from .architectures import Kind, unwrapped
from .classification import Classification
from .objective import check_examples, fit, model_inputs, notice, to_dataset, wide
from .tokenizers import pieces_follow_a_space, token_ids

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

    from ..tasks.base import ClassificationExample, ClassificationTask, Prompt


@final
class MaskedWord(Classification):
    """The masked language model's logits at the mask, restricted to the label words; their cross entropy.

    Raises ValueError: a task without a prompt, a tokenizer without a mask token, a label word that is not one token.
    """

    kinds: ClassVar[tuple[Kind, ...]] = ("masked_word",)

    def __init__(self, task: ClassificationTask, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(task, tokenizer)
        if task.prompt is None:
            raise ValueError(
                f"the task {task.name!r} has no prompt, which MaskedWord fills; use SequenceClassification"
            )
        if tokenizer.mask_token_id is None:
            raise ValueError(
                "the tokenizer has no mask token: MaskedWord needs a masked language model (BERT, RoBERTa)"
            )
        self.prompt: Prompt = task.prompt
        self.label_ids = label_token_ids(tokenizer, task.prompt.label_words)

    def encode(self, examples: Sequence[ClassificationExample], max_length: int) -> Dataset:
        """Rows with `input_ids`, `attention_mask`, `labels` (the class) and `mask_position`.

        Where a prompt is too long its texts are cut at their ends, the longest first, never the template; a notice in
        the log counts them. Raises ValueError: no examples, a label out of range, a template longer than `max_length`.
        """
        check_examples(examples, max_length)
        labels = self._labels(examples)
        rows, positions, cut = [], [], 0
        for example in examples:
            before, after, was_cut = self._prompt_ids(example.texts, max_length)
            rows.append(
                [
                    self.tokenizer.cls_token_id,
                    *before,
                    self.tokenizer.mask_token_id,
                    *after,
                    self.tokenizer.sep_token_id,
                ]
            )
            positions.append(1 + len(before))
            cut += was_cut
        notice(cut, len(rows), "texts of the prompt cut", max_length)
        mask = [[1] * len(row) for row in rows]
        return to_dataset({"input_ids": rows, "attention_mask": mask, "labels": labels, "mask_position": positions})

    def logits(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Logits (B, classes) of the label words at the mask."""
        architecture = self.check_model(model)
        head = unwrapped(model).get_submodule(architecture.output)
        with only_positions(head, batch["mask_position"]):
            logits = model(**model_inputs(batch)).logits
        return wide(logits[:, 0, :])[:, torch.tensor(self.label_ids, device=logits.device)]

    def _prompt_ids(self, texts: Sequence[str], max_length: int) -> tuple[list[int], list[int], bool]:
        """Ids before and after the mask, cut to fit with the three special tokens."""
        budget, current, was_cut = max_length - 3, list(texts), False
        allowed = sum(len(ids) for ids in token_ids(self.tokenizer, current))
        while True:
            before, after = token_ids(self.tokenizer, list(self.prompt.around_mask(current)))
            excess = len(before) + len(after) - budget
            if excess <= 0:
                return before, after, was_cut
            lengths = [len(ids) for ids in token_ids(self.tokenizer, current)]
            if sum(lengths) == 0:
                raise ValueError(
                    f"expected max_length >= {max_length + excess}, which the template {self.prompt.template!r} takes "
                    f"without a text, got {max_length=}"
                )
            allowed = max(min(allowed, sum(lengths)) - excess, 0)  # falls in every round: the loop ends
            kept = fit(lengths, allowed)
            current = [self._cut(text, count) for text, count in zip(current, kept, strict=True)]
            was_cut = True

    def _cut(self, text: str, tokens: int) -> str:
        """The text up to the end of its first `tokens` tokens, without a last character that is cut in two."""
        found: Any = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True, verbose=False
        )
        offsets = found["offset_mapping"]
        if tokens >= len(offsets):
            return text
        return text[: min(offsets[tokens - 1][1], offsets[tokens][0])] if tokens else ""


def label_token_ids(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> list[int]:
    """The one token of each label word, as it stands after a space. Raises ValueError naming a word of several."""
    space = " " if pieces_follow_a_space(tokenizer) else ""
    found = []
    for word, ids in zip(words, token_ids(tokenizer, [space + word for word in words]), strict=True):
        if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
            pieces = tokenizer.convert_ids_to_tokens(ids)
            raise ValueError(f"expected label words of one known token, the word {word!r} is {pieces}; choose another")
        found.append(ids[0])
    if len(set(found)) != len(found):
        raise ValueError(f"expected label words with different tokens, got {tuple(words)!r}: they share one")
    return found


@contextlib.contextmanager
def only_positions(head: nn.Module, positions: Tensor) -> Iterator[None]:
    """While open, `head` gets hidden states (B, 1, H) at positions (B,) of those (B, T, H) that it is called with.

    A head over a whole vocabulary costs as much as several layers: it is not computed where nobody looks.
    """

    def select(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden, *rest = inputs
        return (hidden[torch.arange(len(hidden), device=hidden.device), positions][:, None, :], *rest)

    handle = head.register_forward_pre_hook(select)
    try:
        yield
    finally:
        handle.remove()
