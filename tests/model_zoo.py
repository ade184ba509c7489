"""Tiny random models of the families that must be exact: float64, dropout off, weights that are not all alike."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from optnoise.finetune import causal_lm_losses
from torch import Tensor, nn

FAMILIES = ["roberta", "bert", "gpt2", "llama", "llama-tied"]
PARTS = ["full", "bitfit", "lora", "head"]
VOCABULARY, LENGTH = 23, 9


def build(family: str, *, attention: str = "sdpa") -> nn.Module:
    """A RoBERTa or BERT classifier, a GPT-2 (tied) or a Llama language model with grouped-query attention."""
    import transformers as hf

    torch.manual_seed(5)
    sizes = {"vocab_size": VOCABULARY, "attn_implementation": attention}
    encoder = {
        **sizes,
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 20,
        "max_position_embeddings": 24,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "num_labels": 3,
    }
    if family == "roberta":
        model = hf.RobertaForSequenceClassification(hf.RobertaConfig(**encoder, pad_token_id=1))
    elif family == "bert":
        model = hf.BertForSequenceClassification(hf.BertConfig(**encoder, pad_token_id=0))
    elif family == "gpt2":
        drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        model = hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, n_positions=24, n_embd=12, n_layer=2, n_head=3, **drop))
    else:
        model = hf.LlamaForCausalLM(
            hf.LlamaConfig(
                **sizes,
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                intermediate_size=20,
                max_position_embeddings=24,
                tie_word_embeddings=family == "llama-tied",
            )
        )
    for parameter in model.parameters():  # the libraries' own start is so small that gradients vanish
        nn.init.normal_(parameter, std=0.3) if parameter.dim() > 1 else nn.init.normal_(parameter, mean=0.5, std=0.2)
    return model.double().train()


def train_part(model: nn.Module, part: str) -> nn.Module:
    """Freeze all but the part. BitFit trains the biases (Llama has none: its norms); LoRA wraps the model."""
    if part == "lora":
        return with_adapters(model)
    llama = type(model).__name__.startswith("Llama")
    small = "norm.weight" if llama else "bias"
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part == "full" or (part == "bitfit" and name.endswith(small)))
    if part == "head":
        head = model.classifier if hasattr(model, "classifier") else model.lm_head
        head.requires_grad_(True)  # a tied head is the embedding too
    return model


def with_adapters(model: nn.Module, *, dropout: float = 0.0) -> nn.Module:
    import peft

    targets = {
        "Roberta": ["query", "value", "intermediate.dense"],
        "Bert": ["query", "value", "intermediate.dense"],
        "GPT2": ["c_attn", "c_proj"],
        "Llama": ["q_proj", "v_proj", "down_proj"],
    }
    modules = next(found for start, found in targets.items() if type(model).__name__.startswith(start))
    is_gpt2 = type(model).__name__.startswith("GPT2")
    config = peft.LoraConfig(r=2, lora_alpha=4, lora_dropout=dropout, target_modules=modules, fan_in_fan_out=is_gpt2)
    with warnings.catch_warnings():  # peft reads an attribute that transformers has deprecated
        warnings.simplefilter("ignore", FutureWarning)
        wrapped = peft.get_peft_model(model, config).double()
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:  # B starts at zero, which would hide what A gets
            nn.init.normal_(parameter, std=0.4)
    return wrapped.train()


def data(family: str, examples: int, *, seed: int = 0, length: int = LENGTH) -> dict[str, Tensor]:
    """Ragged ids with padding and a mask; class labels, or token labels of which some are ignored."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, length + 1, (examples,), generator=generator)
    lengths[0] = length
    mask = (torch.arange(length) < lengths[:, None]).long()
    padding = 1 if family == "roberta" else 0
    ids = torch.randint(2, VOCABULARY, (examples, length), generator=generator).masked_fill(mask == 0, padding)
    ignored = (mask == 0) | (torch.rand(examples, length, generator=generator) < 0.2)
    labels = ids.masked_fill(ignored, -100)
    classes = torch.randint(0, 3, (examples,), generator=generator)
    return {"ids": ids, "mask": mask, "labels": labels, "classes": classes}


def losses_of(model: nn.Module, family: str, batch: dict[str, Tensor]) -> Callable[[Tensor], Tensor]:
    """Indices (b,) to losses (b,)."""

    def losses(index: Tensor) -> Tensor:
        logits = model(input_ids=batch["ids"][index], attention_mask=batch["mask"][index]).logits
        if family in ("roberta", "bert"):
            return F.cross_entropy(logits, batch["classes"][index], reduction="none")
        return causal_lm_losses(logits, batch["labels"][index])

    return losses
