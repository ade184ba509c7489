"""Figures about norms that are *not private*: for choosing a clipping norm on public data, never in a private run."""

from __future__ import annotations

import dataclasses
from typing import final

import torch
from torch import Tensor


@final
@dataclasses.dataclass(frozen=True)
class NonPrivateDiagnostics:
    """Of all examples since the last call: private data, released without any noise.

    `clipped_fraction` is the share of (example, group) pairs with a norm above the group's clipping norm; `quantiles`
    maps each level to that quantile of the whole gradient's norm. Both None without examples.
    """

    examples: int
    clipped_fraction: float | None
    quantiles: dict[float, float] | None

    def __str__(self) -> str:
        if not self.examples or self.quantiles is None or self.clipped_fraction is None:
            return "NOT PRIVATE: no examples"
        levels = ", ".join(f"{level:g}: {value:.4g}" for level, value in self.quantiles.items())
        return f"NOT PRIVATE: {self.clipped_fraction:.1%} of {self.examples} gradients clipped; norm quantiles {levels}"


@final
class NormLog:
    """Collects norms while diagnostics are on."""

    def __init__(self) -> None:
        self._norms: list[Tensor] = []
        self._clipped = self._pairs = 0

    def note_group(self, norms: Tensor, clipping_norm: float) -> None:
        """Norms (B,) of one group."""
        self._clipped += int((norms > clipping_norm).sum())
        self._pairs += len(norms)

    def note_whole(self, norms: Tensor) -> None:
        """Norms (B,) of the whole gradients."""
        self._norms.append(norms.double().cpu())

    def take(self, levels: tuple[float, ...]) -> NonPrivateDiagnostics:
        """The figures so far; begins anew."""
        if not self._norms:
            return NonPrivateDiagnostics(0, None, None)
        norms = torch.cat(self._norms)
        values = torch.quantile(norms, torch.tensor(levels, dtype=torch.float64)).tolist()
        result = NonPrivateDiagnostics(
            len(norms), self._clipped / max(1, self._pairs), dict(zip(levels, values, strict=True))
        )
        self._norms, self._clipped, self._pairs = [], 0, 0
        return result
