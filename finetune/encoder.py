"""A text classifier on a Hugging Face encoder: mean over positions, then a linear head; whole or cut in two.

Where only the upper part is trained, the lower one is a fixed public map of each text: it is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from .ragged import Ragged


@final
class EncoderClassifier(nn.Module):
    """Encoder → mean of the last hidden states over the valid positions → linear head."""

    def __init__(self, encoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(hidden_size(encoder), classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Logits (B, classes) of token ids (B, T) and their mask (B, T)."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.head(mean_over_positions(hidden, attention_mask))


@final
class LowerLayers(nn.Module):
    """The embeddings and the first layers of a BERT-like encoder: token ids to hidden states."""

    def __init__(self, encoder: nn.Module, layers: int) -> None:
        super().__init__()
        self.embeddings: Any = encoder.embeddings
        self.layers = nn.ModuleList(list(bert_layers(encoder))[:layers])

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Hidden states (B, T, H)."""
        return _run_layers(self.layers, self.embeddings(input_ids=input_ids), attention_mask)


@final
class UpperLayers(nn.Module):
    """The last layers of a BERT-like encoder and the head: hidden states of `LowerLayers` to logits.

    With no layers, the input is the mean over positions itself, (B, H).
    """

    def __init__(self, layers: Sequence[nn.Module], head: nn.Linear) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.head = head

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Logits (B, classes) of hidden states (B, T, H) and their mask (B, T), or of means (B, H)."""
        if attention_mask is None:
            return self.head(hidden.to(self.head.weight.dtype))
        return self.head(mean_over_positions(self.hidden_states(hidden, attention_mask), attention_mask))

    def hidden_states(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """The last hidden states (B, T, H), before the mean."""
        return _run_layers(self.layers, hidden.to(self.head.weight.dtype), attention_mask)


def mean_over_positions(hidden: Tensor, mask: Tensor) -> Tensor:
    """Mean over the valid positions, (B, H), of hidden states (B, T, H) with mask (B, T)."""
    weights = mask.to(hidden.dtype)[:, :, None]
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def hidden_size(encoder: nn.Module) -> int:
    """H, the width of the encoder's hidden states."""
    config: Any = encoder.config
    return int(config.hidden_size)


def bert_layers(encoder: nn.Module) -> nn.ModuleList:
    """The transformer layers of a BERT-like encoder. Raises ValueError for another structure."""
    layers = getattr(getattr(encoder, "encoder", None), "layer", None)
    if not isinstance(layers, nn.ModuleList) or not hasattr(encoder, "embeddings"):
        raise ValueError(
            f"{type(encoder).__name__} is not built like BERT (embeddings, encoder.layer): its layers cannot be told "
            "apart; train the head, the biases or the full model instead"
        )
    return layers


def cut(classifier: EncoderClassifier, upper_layers: int) -> tuple[LowerLayers, UpperLayers]:
    """The classifier as a lower and an upper part, the latter with `upper_layers` >= 1 layers and the head.

    Both share the classifier's parameters. Raises ValueError if that is more layers than there are.
    """
    layers = list(bert_layers(classifier.encoder))
    if not 1 <= upper_layers <= len(layers):
        raise ValueError(f"expected 1 <= layers <= {len(layers)}, got layers={upper_layers}")
    below = len(layers) - upper_layers
    return LowerLayers(classifier.encoder, below), UpperLayers(layers[below:], classifier.head)


@torch.no_grad()
def check_cut(classifier: EncoderClassifier, lower: LowerLayers, upper: UpperLayers, tokens: Ragged) -> None:
    """Raise ValueError unless both parts in a row give the classifier's own logits on a few of `tokens`."""
    was_training = classifier.training
    classifier.eval()
    ids, mask = tokens.padded(torch.arange(min(4, len(tokens))))
    whole, parts = classifier(ids, mask.long()), upper(lower(ids, mask), mask)
    classifier.train(was_training)
    if not torch.allclose(whole, parts, rtol=1e-3, atol=1e-3):
        raise ValueError(
            f"{type(classifier.encoder).__name__} does not run its layers one after another as BERT does; "
            "train the head, the biases or the full model instead"
        )


def load_encoder(name: str | Path) -> nn.Module:
    """A pretrained encoder from a folder or a hub name, in float32.

    Attention is torch's plain one: on a CPU its backward pass on short texts took half the time of the fused kernel.
    """
    import transformers  # slow to import: only where an encoder is loaded

    bars = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        return transformers.AutoModel.from_pretrained(str(name), dtype=torch.float32, attn_implementation="eager")
    except OSError as error:
        raise ValueError(f"cannot load an encoder from {str(name)!r}: {str(error).splitlines()[0]}") from error
    finally:
        if bars:
            transformers.utils.logging.enable_progress_bar()


def tokenize(name: str | Path, texts: Sequence[str], *, max_length: int) -> Ragged:
    """Token ids of each text, cut at `max_length`, by the tokenizer in the encoder's folder or hub name."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(name))
    return Ragged.from_lists(tokenizer(list(texts), truncation=True, max_length=max_length)["input_ids"])


# ---- what is trained ------------------------------------------------------------------------------------------------


def train_head(classifier: EncoderClassifier) -> None:
    """Train the linear head alone."""
    classifier.requires_grad_(False)
    classifier.head.requires_grad_(True)


def train_last_layers(classifier: EncoderClassifier, layers: int) -> None:
    """Train the head and the last `layers` transformer layers."""
    classifier.requires_grad_(False)
    for layer in cut(classifier, layers)[1].layers:
        layer.requires_grad_(True)
    classifier.head.requires_grad_(True)


def train_biases(classifier: EncoderClassifier, layers: int | None = None) -> None:
    """Train the head and every bias (BitFit) of the last `layers` transformer layers, None for the whole encoder."""
    classifier.requires_grad_(False)
    part = classifier.encoder if layers is None else cut(classifier, layers)[1].layers
    for name, parameter in part.named_parameters():
        parameter.requires_grad_(name.rsplit(".", 1)[-1] == "bias")
    _freeze_pooler(classifier)
    classifier.head.requires_grad_(True)


def train_everything(classifier: EncoderClassifier) -> None:
    """Train all that the logits depend on."""
    classifier.requires_grad_(True)
    _freeze_pooler(classifier)


def _freeze_pooler(classifier: EncoderClassifier) -> None:
    """The encoder's own pooler is not used: as a trainable part it would only receive noise."""
    pooler = getattr(classifier.encoder, "pooler", None)
    if isinstance(pooler, nn.Module):
        pooler.requires_grad_(False)


def _run_layers(layers: nn.ModuleList, hidden: Tensor, mask: Tensor) -> Tensor:
    """BERT's layers one after another; `mask` (B, T) becomes the additive mask that every attention kernel takes."""
    blocked = torch.finfo(hidden.dtype).min
    additive = torch.zeros(mask.shape, dtype=hidden.dtype).masked_fill_(~mask.bool(), blocked)[:, None, None, :]
    for layer in layers:
        hidden = layer(hidden, attention_mask=additive)
    return hidden
