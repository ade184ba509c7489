"""The models that are supported, as data: where their layers, heads and usual adapter targets stand."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, final

from torch import nn

Kind = Literal["encoder_head", "masked_word", "causal_lm", "causal_head"]
KINDS: tuple[Kind, ...] = ("encoder_head", "masked_word", "causal_lm", "causal_head")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """One model class of transformers. Paths are dotted names inside the model."""

    kind: Kind
    layers: str
    """The list of transformer layers."""
    embeddings: str
    """The table of input token embeddings."""
    above: tuple[str, ...] = ()
    """What stands between the last layer and the head: a final norm."""
    head: tuple[str, ...]
    """From the last hidden states to the logits."""
    output: str
    """The module of the head that receives the hidden states (B, T, H)."""
    adapter_targets: tuple[str, ...]
    """Ends of the names of the modules that get a LoRA adapter by default: queries and values (arXiv 2106.09685)."""
    transposed: bool = False
    """Whether these modules keep their weights as inputs × outputs (GPT-2)."""

    @property
    def new_head(self) -> bool:
        """Whether the head is the task's own, not the pretrained model's: it is trained in any case."""
        return self.kind in ("encoder_head", "causal_head")


def _encoder(prefix: str, kind: Kind, head: tuple[str, ...], output: str) -> Architecture:
    return Architecture(
        kind=kind,
        layers=f"{prefix}.encoder.layer",
        embeddings=f"{prefix}.embeddings.word_embeddings",
        head=head,
        output=output,
        adapter_targets=("query", "value"),
    )


def _gpt2(kind: Kind, head: str) -> Architecture:
    return Architecture(
        kind=kind,
        layers="transformer.h",
        embeddings="transformer.wte",
        above=("transformer.ln_f",),
        head=(head,),
        output=head,
        adapter_targets=("c_attn",),
        transposed=True,
    )


def _llama(kind: Kind, head: str) -> Architecture:
    return Architecture(
        kind=kind,
        layers="model.layers",
        embeddings="model.embed_tokens",
        above=("model.norm",),
        head=(head,),
        output=head,
        adapter_targets=("q_proj", "v_proj"),
    )


ARCHITECTURES: dict[str, Architecture] = {
    "RobertaForSequenceClassification": _encoder("roberta", "encoder_head", ("classifier",), "classifier"),
    "RobertaForMaskedLM": _encoder("roberta", "masked_word", ("lm_head",), "lm_head"),
    # BERT's pooler is the first half of what RoBERTa calls its head
    "BertForSequenceClassification": _encoder("bert", "encoder_head", ("bert.pooler", "classifier"), "bert.pooler"),
    "BertForMaskedLM": _encoder("bert", "masked_word", ("cls",), "cls"),
    "GPT2ForSequenceClassification": _gpt2("causal_head", "score"),
    "GPT2LMHeadModel": _gpt2("causal_lm", "lm_head"),
    "LlamaForSequenceClassification": _llama("causal_head", "score"),
    "LlamaForCausalLM": _llama("causal_lm", "lm_head"),
}

MODEL_TYPES: dict[Kind, tuple[str, ...]] = {
    "encoder_head": ("bert", "roberta"),
    "masked_word": ("bert", "roberta"),
    "causal_lm": ("gpt2", "llama"),
    "causal_head": ("gpt2", "llama"),
}
"""`model_type` of the configurations that can be loaded as each kind."""


def unwrapped(model: nn.Module) -> nn.Module:
    """The transformers model inside `torch.compile`, data parallelism and peft. Adapters stay in its layers."""
    found: Any = model
    while True:
        if isinstance(inner := getattr(found, "_orig_mod", None), nn.Module):
            found = inner
        elif type(found).__name__ in ("DataParallel", "DistributedDataParallel"):
            found = found.module
        elif hasattr(found, "peft_config") and hasattr(found, "get_base_model"):
            found = found.get_base_model()
        else:
            return found


def architecture_of(model: nn.Module) -> Architecture:
    """The entry of a model, wrapped or not. Raises ValueError that names the supported classes for any other."""
    inner = unwrapped(model)
    for base in type(inner).__mro__:
        if base.__name__ in ARCHITECTURES:
            return ARCHITECTURES[base.__name__]
    raise ValueError(f"{type(inner).__name__} is not supported; supported: {', '.join(ARCHITECTURES)}")


def check_kind(model: nn.Module, kinds: tuple[Kind, ...], user: str) -> Architecture:
    """The entry of a model of one of these kinds. Raises ValueError that names the classes `user` takes otherwise."""
    architecture = architecture_of(model)
    if architecture.kind not in kinds:
        taken = [name for name, entry in ARCHITECTURES.items() if entry.kind in kinds]
        raise ValueError(f"{user} takes {', '.join(taken)}; got {type(unwrapped(model)).__name__}")
    return architecture


def head_parameters(model: nn.Module, architecture: Architecture) -> list[nn.Parameter]:
    """The head's own parameters: one that is tied to the input embeddings is not among them."""
    inner = unwrapped(model)
    tied = {id(parameter) for parameter in inner.get_submodule(architecture.embeddings).parameters()}
    found = {id(p): p for name in architecture.head for p in inner.get_submodule(name).parameters()}
    return [parameter for key, parameter in found.items() if key not in tied]
