"""Beam search in batches of like length, padded on the left as causal models need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .objective import length_sorted
from .tokenizers import token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..tasks.base import GenerationSettings


def generate(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    settings: GenerationSettings,
    *,
    batch_size: int,
) -> list[str]:
    """The text that follows each prompt of token ids, in order, without special tokens and outer spaces.

    Raises ValueError if a prompt and its text may be longer than the model's positions.
    """
    _check_positions(model, max(map(len, prompts), default=0), settings.max_new_tokens)
    searching: Any = model
    device = next(model.parameters()).device
    arguments = {**settings.arguments(), "pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    if words := forbidden_ids(tokenizer, settings.forbidden_texts):
        arguments["bad_words_ids"] = words
    texts = [""] * len(prompts)
    for indices in length_sorted([len(prompt) for prompt in prompts], batch_size):
        chosen = [list(prompts[index]) for index in indices]
        longest = max(map(len, chosen))
        ids = torch.tensor([[tokenizer.pad_token_id] * (longest - len(row)) + row for row in chosen], device=device)
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in chosen], device=device)
        found = searching.generate(input_ids=ids, attention_mask=mask, **arguments)
        decoded: Any = tokenizer.batch_decode(found[:, longest:], skip_special_tokens=True)
        for index, text in zip(indices, decoded, strict=True):
            texts[index] = text.strip()
    return texts


def forbidden_ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Ids of texts that are never generated."""
    found = token_ids(tokenizer, list(texts)) if texts else []
    return [ids for ids in found if ids]


def _check_positions(model: nn.Module, prompt: int, new: int) -> None:
    config: Any = model.config
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if positions is not None and prompt + new > positions:
        raise ValueError(
            f"expected prompt and new tokens within the model's {positions} positions, got {prompt} + "
            f"max_new_tokens={new}; lower max_length or max_new_tokens"
        )
