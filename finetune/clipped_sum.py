"""What a logical batch's clipped gradients add up to, before the noise."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn

from .factored import FactoredGradient, RowGradient
from .recorded import wide_dtype


@final
@dataclasses.dataclass(frozen=True)
class TableRows:
    """A table's part of the sum, zero but for the rows that one microbatch touched: Σ over `parts` and examples i of
    factors[i]·gradient_i."""

    parts: Sequence[RowGradient]
    factors: Tensor
    parameter: nn.Parameter

    def empty(self) -> Tensor:
        """Room for the whole table."""
        dtype = wide_dtype(self.parameter.dtype)
        return torch.empty(self.parameter.shape, dtype=dtype, device=self.parameter.device)

    def dense(self) -> Tensor:
        """The whole table."""
        out = self.empty().zero_()
        self.add_to(out)
        return out

    def add_to(self, out: Tensor, *, divisor: float = 1.0) -> None:
        """out += the rows / divisor."""
        for part in self.parts:
            part.add_weighted_sum(self.factors / divisor, out)


@final
class ClippedSum:
    """Σ over the examples of one logical batch of their clipped gradients, one tensor per trainable parameter.

    Kept in float32 at least. Without noise it is private data; `spend` gives it out once.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = dict(parameters)
        self._sums: dict[str, Tensor | TableRows] = {}
        self.examples = 0
        self._spent = self._partial = False

    @contextlib.contextmanager
    def adding(self, examples: int) -> Iterator[None]:
        """Around the `add_part` calls of one microbatch of `examples`: if one of them fails, the sum is unusable."""
        self._refuse_if_spent()
        self._partial = True
        yield
        self._partial = False
        self.examples += examples

    def add_part(self, name: str, parts: Sequence[FactoredGradient], factors: Tensor) -> None:
        """Add Σ_i factors[i]·gradient_i for the parameter called `name`; `factors` (B,)."""
        parameter = self._parameters[name]
        factors = factors.to(parameter.device)
        if name not in self._sums and parts[0].dtype == wide_dtype(parameter.dtype):
            if rows := _few_rows(parts, factors, parameter):
                self._sums[name] = rows
                return
            self._sums[name] = parts[0].weighted_sum(factors, parameter.shape)
            parts = parts[1:]
        for part in parts:
            part.add_weighted_sum(factors, self.of(name))

    def absorb(self, other: ClippedSum) -> None:
        """Add another sum of the same microbatch, and use it up."""
        for name, total in other._sums.items():
            if name in self._sums:
                self.of(name).add_(other.of(name))
            else:
                self._sums[name] = total
        other._spent, other._sums = True, {}

    def of(self, name: str) -> Tensor:
        """The running sum of the parameter called `name` (private data): zero if nothing was added to it."""
        total = self._sums.get(name)
        if not isinstance(total, Tensor):
            rows = total or TableRows((), torch.zeros(0), self._parameters[name])
            self._sums[name] = total = rows.dense()
        return total

    def spend(self) -> dict[str, tuple[nn.Parameter, Tensor]]:
        """Parameters and sums by name, all of them, in the model's order. A second call raises RuntimeError."""
        sums = self.spend_rows()
        return {
            name: (parameter, total if isinstance(total, Tensor) else total.dense())
            for name, (parameter, total) in sums.items()
        }

    def spend_rows(self) -> dict[str, tuple[nn.Parameter, Tensor | TableRows]]:
        """`spend`, with tables of which few rows were touched left as these rows."""
        self._refuse_if_spent()
        sums, self._sums, self._spent = self._sums, {}, True
        nothing = {name: TableRows((), torch.zeros(0), parameter) for name, parameter in self._parameters.items()}
        return {name: (parameter, sums.get(name, nothing[name])) for name, parameter in self._parameters.items()}

    def _refuse_if_spent(self) -> None:
        if self._spent:
            raise RuntimeError("the noise of this logical batch was already added; draw the next batch first")
        if self._partial:
            raise RuntimeError("adding up the clipped gradients failed half way; this logical batch is lost")


def _few_rows(parts: Sequence[FactoredGradient], factors: Tensor, parameter: nn.Parameter) -> TableRows | None:
    """The parts as rows, if all of them are and they are smaller than the table."""
    rows = [part for part in parts if isinstance(part, RowGradient)]
    if len(rows) < len(parts) or sum(part.touched_elements for part in rows) >= parameter.numel():
        return None
    return TableRows(rows, factors, parameter)
