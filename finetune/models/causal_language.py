"""Text generation: a source as prefix, a target to be predicted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from torch import Tensor, nn

from ..losses import causal_lm_losses
from .architectures import Kind
from .classification import leading_ids
from .generation import generate
from .objective import (
    IGNORED,
    Objective,
    check_examples,
    evaluating,
    length_sorted,
    model_inputs,
    notice,
    to_dataset,
    to_device,
)
from .tokenizers import pieces_follow_a_space, token_ids

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

    from ..tasks.base import GenerationExample, GenerationTask


@final
class CausalLanguageModel(Objective):
    """Cross entropy of target and end token after a source, which has no loss of its own.

    One row is: [start token, where the tokenizer puts one,] source, separator, target, end token.

    Args:
        task: its generation settings and metrics are used by `evaluate`.
        tokenizer: needs an end token.
        separator: a text between source and target; None is the start token, as in arXiv 2110.05679's code (GPT-2's
            `<|endoftext|>`), or a line break if the tokenizer has none.
        over_tokens: an example's loss is the mean over its own target tokens, or their sum.
        long_targets: what to do with a target that does not fit: refuse the data, or cut it with a notice.
    """

    kinds: ClassVar[tuple[Kind, ...]] = ("causal_lm",)

    def __init__(
        self,
        task: GenerationTask,
        tokenizer: PreTrainedTokenizerBase,
        *,
        separator: str | None = None,
        over_tokens: Literal["mean", "sum"] = "mean",
        long_targets: Literal["refuse", "cut"] = "refuse",
    ) -> None:
        super().__init__(tokenizer)
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no end token, which generation stops at")
        for name, value, known in (
            ("over_tokens", over_tokens, ("mean", "sum")),
            ("long_targets", long_targets, ("refuse", "cut")),
        ):
            if value not in known:
                raise ValueError(f"expected {name} {known[0]!r} or {known[1]!r}, got {value!r}")
        self.task = task
        self.over_tokens: Literal["mean", "sum"] = over_tokens
        self.long_targets = long_targets
        if separator is None and tokenizer.bos_token_id is not None:
            self.separator_ids = [int(tokenizer.bos_token_id)]  # type: ignore[arg-type]
        else:
            self.separator_ids = token_ids(tokenizer, [separator if separator is not None else "\n"])[0]
        ends_in_space = (separator if separator is not None else "x")[-1:].isspace() or not self.separator_ids
        self._lead = "" if ends_in_space or not pieces_follow_a_space(tokenizer) else " "

    def encode(self, examples: Sequence[GenerationExample], max_length: int) -> Dataset:
        """Rows with `input_ids`, `attention_mask` and `labels` (IGNORED but for target and end token).

        A row that is too long loses the end of its source, with a notice in the log. Raises ValueError: no examples,
        a target that does not fit even without its source (`long_targets="cut"` cuts it, with a notice).
        """
        check_examples(examples, max_length)
        start, end = leading_ids(self.tokenizer), [self.tokenizer.eos_token_id]
        sources = token_ids(self.tokenizer, [example.source for example in examples])
        targets = token_ids(self.tokenizer, [self._lead + example.target for example in examples])
        frame = len(start) + len(self.separator_ids)
        self._check_room(frame, max_length)
        self._check_targets([len(target) + 1 + frame for target in targets], max_length)
        ids, labels, cut_sources, cut_targets = [], [], 0, 0
        for source, target in zip(sources, targets, strict=True):
            answer = [*target, *end][: max_length - frame]
            room = max_length - frame - len(answer)
            prefix = [*start, *source[:room], *self.separator_ids]
            cut_sources += len(source) > room
            cut_targets += len(answer) <= len(target)
            ids.append([*prefix, *answer])
            labels.append([*[IGNORED] * len(prefix), *answer])
        notice(cut_sources, len(ids), "sources cut", max_length)
        notice(cut_targets, len(ids), "targets cut, without an end token,", max_length)
        return to_dataset({"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids], "labels": labels})

    def per_example_losses(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Negative log likelihoods (B,) of the targets, per token or in sum. Raises ValueError for another model."""
        self.check_model(model)
        logits = model(**model_inputs(batch)).logits
        return causal_lm_losses(logits, batch["labels"], ignore_index=IGNORED, over_tokens=self.over_tokens)

    def perplexity(
        self, model: nn.Module, examples: Sequence[GenerationExample], *, max_length: int, batch_size: int = 16
    ) -> dict[str, float]:
        """`perplexity`, exp of `loss`: the mean over all tokens of all references (end tokens counted), in nats."""
        pairs = [_Pair(example.source, text) for example in examples for text in example.references]
        rows: list[Any] = list(self.encode(pairs, max_length))  # type: ignore[arg-type]
        self.check_model(model)
        total, tokens = 0.0, 0
        with evaluating(model):
            for indices in length_sorted([len(row["input_ids"]) for row in rows], batch_size):
                batch = to_device(self.collate([rows[index] for index in indices]), model)
                logits = model(**model_inputs(batch)).logits
                total += float(causal_lm_losses(logits, batch["labels"], over_tokens="sum").double().sum())
                tokens += int((batch["labels"][:, 1:] != IGNORED).sum())
        return {"perplexity": math.exp(min(total / tokens, 700.0)), "loss": total / tokens}

    def generate(self, model: nn.Module, sources: Sequence[str], *, max_length: int, batch_size: int = 16) -> list[str]:
        """The most likely text of each source by the task's beam search; sources are cut at `max_length` tokens."""
        self.check_model(model)
        if max_length < 4:
            raise ValueError(f"expected max_length >= 4 tokens, got {max_length=}")
        start = leading_ids(self.tokenizer)
        self._check_room(len(start) + len(self.separator_ids), max_length)
        room = max_length - len(start) - len(self.separator_ids)
        ids = token_ids(self.tokenizer, list(sources))
        notice(sum(len(source) > room for source in ids), len(ids), "sources cut", max_length)
        prompts = [[*start, *source[:room], *self.separator_ids] for source in ids]
        with evaluating(model):
            return generate(model, self.tokenizer, prompts, self.task.generation, batch_size=batch_size)

    def evaluate(
        self,
        model: nn.Module,
        examples: Sequence[GenerationExample],
        *,
        max_length: int,
        batch_size: int = 16,
        generated: bool = True,
    ) -> dict[str, float]:
        """Perplexity and loss, and if `generated` the task's metrics of generated texts. Computed without privacy."""
        found = self.perplexity(model, examples, max_length=max_length, batch_size=batch_size)
        if not generated:
            return found
        sources = [example.source for example in examples]
        texts = self.generate(model, sources, max_length=max_length, batch_size=batch_size)
        return {**found, **self.task.metrics(texts, [example.references for example in examples])}

    @staticmethod
    def _check_room(frame: int, max_length: int) -> None:
        if frame >= max_length:
            raise ValueError(f"expected max_length > {frame}, the tokens of start and separator, got {max_length=}")

    def _check_targets(self, lengths: Sequence[int], max_length: int) -> None:
        too_long = [length for length in lengths if length > max_length]
        if too_long and self.long_targets == "refuse":
            raise ValueError(
                f"{len(too_long)} of {len(lengths)} targets do not fit into {max_length=} tokens even without their "
                f"source; the longest takes {max(too_long)}: raise max_length, or pass long_targets='cut'"
            )


@final
class _Pair:
    """One source with one of its references."""

    def __init__(self, source: str, target: str) -> None:
        self.source, self.target = source, target
