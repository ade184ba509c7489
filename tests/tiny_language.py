"""Tiny tokenizers, tasks and random models that can read each other: nothing is downloaded."""

from __future__ import annotations

import functools
from typing import Any

import torch
from optnoise.finetune.models import MaskedWord, SequenceClassification
from optnoise.finetune.models.causal_language import CausalLanguageModel
from optnoise.finetune.models.tokenizers import make_ready
from optnoise.finetune.tasks.base import (
    ClassificationExample,
    ClassificationTask,
    GenerationExample,
    GenerationSettings,
    GenerationTask,
    Prompt,
)
from torch import nn

TEXTS = (
    "a great film with a warm heart",
    "terrible",
    "the plot is bad , but the actors are good",
    "it was great fun",
    "no good idea in the whole film",
)
LABELS = (1, 0, 0, 1, 0)
SOURCES = ("name : Blue Spice | food : Indian", "name : Aromi", "food : fast food | price : high | area : riverside")
TARGETS = ("Blue Spice serves Indian food .", "Aromi is a place to eat .", "There is fast food .")
FAMILIES = ("roberta", "bert", "gpt2", "llama")
OBJECTIVES = {
    "encoder_head": SequenceClassification,
    "masked_word": MaskedWord,
    "causal_head": SequenceClassification,
    "causal_lm": CausalLanguageModel,
}
CELLS = [(family, kind) for family in FAMILIES[:2] for kind in ("encoder_head", "masked_word")] + [
    (family, kind) for family in FAMILIES[2:] for kind in ("causal_head", "causal_lm")
]


@functools.cache
def _byte_pairs(words: tuple[str, ...] = ()) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Byte-level vocabulary (all bytes, some merges) and its merges in order, from the texts above and `words`."""
    import json

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    learned.train_from_iterator([" " + text for text in (*TEXTS, *SOURCES, *TARGETS, *words)] * 3, trainer)
    model = json.loads(learned.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def tokenizer_of(family: str, words: tuple[str, ...] = ()) -> Any:
    """WordPiece for BERT, byte pairs for the others; Llama's puts a start token before a text, and has no padding."""
    import transformers
    from tokenizers import AddedToken

    if family == "bert":
        words = sorted({word.lower() for text in (*TEXTS, *SOURCES, *TARGETS) for word in text.split()})
        letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "?", *dict.fromkeys([*words, *letters])]
        pieces = list(dict.fromkeys([*pieces, *(f"##{letter}" for letter in letters)]))
        return transformers.BertTokenizer(vocab={piece: place for place, piece in enumerate(pieces)})
    pairs, merges = _byte_pairs(words)
    special = {
        "roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        "gpt2": ["<|endoftext|>"],
        "llama": ["<|begin|>", "<|end|>"],
    }[family]
    vocabulary = {**{token: place for place, token in enumerate(special)}}
    vocabulary |= {token: place + len(special) for token, place in pairs.items()}
    if family == "roberta":
        mask = AddedToken("<mask>", lstrip=True, special=True)  # takes the space before it, as the published ones do
        return transformers.RobertaTokenizer(vocab=vocabulary, merges=merges, mask_token=mask)
    if family == "gpt2":
        return transformers.GPT2Tokenizer(vocab=vocabulary, merges=merges)
    return _with_start_token(vocabulary, merges)


def _with_start_token(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    import transformers
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|begin|>", special=True), AddedToken("<|end|>", special=True)])
    backend.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", vocabulary["<|begin|>"])]
    )
    names = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, add_bos_token=True, **names)


def configuration(family: str, tokenizer: Any, **more: Any) -> Any:
    """Two layers, 12 or 16 wide, without dropout."""
    import transformers as hf

    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    sizes = {"vocab_size": len(tokenizer), **ends, **more}
    if family in ("roberta", "bert"):
        config = {"roberta": hf.RobertaConfig, "bert": hf.BertConfig}[family]
        return config(
            **sizes,
            hidden_size=12,
            num_hidden_layers=2,
            num_attention_heads=3,
            intermediate_size=20,
            max_position_embeddings=96,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            pad_token_id=tokenizer.pad_token_id,
        )
    if family == "gpt2":
        drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return hf.GPT2Config(**sizes, n_positions=96, n_embd=12, n_layer=2, n_head=3, **drop)
    return hf.LlamaConfig(
        **sizes,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=20,
        max_position_embeddings=96,
    )


def build(
    family: str, kind: str, *, seed: int = 5, spread: float = 0.3, words: tuple[str, ...] = ()
) -> tuple[nn.Module, Any]:
    """A random model in float64, and its tokenizer made ready."""
    import transformers as hf

    tokenizer = tokenizer_of(family, words)
    labels = {"num_labels": 2} if kind.endswith("head") else {}
    config = configuration(family, tokenizer, **labels)
    make_ready(tokenizer, config)
    loader = {"masked_word": hf.AutoModelForMaskedLM, "causal_lm": hf.AutoModelForCausalLM}.get(
        kind, hf.AutoModelForSequenceClassification
    )
    torch.manual_seed(seed)
    model: Any = loader.from_config(config)
    randomize(model, spread)
    return model.double().train(), tokenizer


def randomize(model: nn.Module, spread: float = 0.3, only: str = "") -> None:
    """Weights that are not all alike and not small, so that every part receives a gradient."""
    for name, parameter in model.named_parameters():
        if only in name and parameter.dim() > 1:
            nn.init.normal_(parameter, std=spread)
        elif only in name:
            nn.init.normal_(parameter, mean=0.5, std=0.2)


def sentiment(words: tuple[str, ...] = ("terrible", "great"), template: str = "{0} . It was {mask} .") -> Any:
    """Two classes, with a prompt."""
    return ClassificationTask(
        name="tiny sentiment",
        labels=("negative", "positive"),
        prompt=Prompt(template, words),
        protected_unit="one text",
        loader=lambda source: (_ for _ in ()).throw(AssertionError),
    )


def restaurants(**settings: Any) -> GenerationTask:
    """A record to a sentence."""
    return GenerationTask(
        name="tiny restaurants",
        protected_unit="one sentence",
        loader=lambda source: (_ for _ in ()).throw(AssertionError),
        generation=GenerationSettings(**{"num_beams": 3, "max_new_tokens": 6, **settings}),
    )


def examples_of(kind: str) -> list[Any]:
    """Examples of different lengths for this kind of model."""
    if kind == "causal_lm":
        return [GenerationExample(source, target, (target,)) for source, target in zip(SOURCES, TARGETS, strict=True)]
    return [ClassificationExample((text,), label) for text, label in zip(TEXTS, LABELS, strict=True)]


def objective_of(kind: str, tokenizer: Any) -> Any:
    """The objective that trains this kind of model, on a tiny task."""
    return OBJECTIVES[kind](restaurants() if kind == "causal_lm" else sentiment(), tokenizer)
