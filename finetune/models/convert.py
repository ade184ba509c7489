"""BERT's weights in the RoBERTa architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from transformers import RobertaModel


@torch.no_grad()
def bert_as_roberta(model: nn.Module) -> RobertaModel:
    """A `RobertaModel` that gives the hidden states of the given `BertModel`, in its dtype.

    RoBERTa numbers the positions of a text from padding_idx + 1 on, and gives padding the position padding_idx; so
    BERT's position table stands behind padding_idx + 1 zero rows (one, as BERT's padding id is 0). RoBERTa has one
    token type: BERT's first one is kept. So the two agree for texts whose token types are all 0 (single texts, or
    pairs without segments) and which hold no padding token inside.

    Raises ValueError for another model, or a BERT that RoBERTa cannot stand for (a decoder, no padding id).
    """
    import transformers

    if type(model) is not transformers.BertModel:
        raise ValueError(f"expected a BertModel to convert, got {type(model).__name__}")
    old: Any = model.config
    if old.pad_token_id is None or old.is_decoder or getattr(old, "position_embedding_type", "absolute") != "absolute":
        raise ValueError(
            "expected a BERT encoder with a padding id and absolute positions, got "
            f"pad_token_id={old.pad_token_id}, is_decoder={old.is_decoder}"
        )
    shift = old.pad_token_id + 1
    values = {**old.to_dict(), "max_position_embeddings": old.max_position_embeddings + shift, "type_vocab_size": 1}
    for name in ("model_type", "architectures", "transformers_version", "_name_or_path", "dtype"):
        values.pop(name, None)
    weights = dict(model.state_dict())
    positions = weights["embeddings.position_embeddings.weight"]
    zeros = positions.new_zeros(shift, positions.shape[1])
    weights["embeddings.position_embeddings.weight"] = torch.cat([zeros, positions])
    weights["embeddings.token_type_embeddings.weight"] = weights["embeddings.token_type_embeddings.weight"][:1]
    has_pooler = any(name.startswith("pooler.") for name in weights)
    with torch.random.fork_rng(devices=[]):  # the random start is overwritten: leave the caller's generator alone
        converted = transformers.RobertaModel(transformers.RobertaConfig(**values), add_pooling_layer=has_pooler)
    converted.to(positions.dtype).load_state_dict(weights, strict=True)
    return converted.to(positions.device).train(model.training)
