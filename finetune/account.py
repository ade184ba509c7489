"""What is known, during a backward pass, of the per-example gradients of one parameter."""

from __future__ import annotations

from collections.abc import Collection
from typing import final

import torch
from torch import Tensor

from .factored import DenseGradient, FactoredGradient
from .inner_products import inner_product


@final
class Account:
    """The gradients of one parameter from all calls that used it, with the squared norm of their sum.

    Each part comes in its compact form: the recorded tensors of one that was instantiated are free at once.
    """

    def __init__(self, shape: torch.Size, batch_size: int) -> None:
        self._shape, self._batch_size = shape, batch_size
        self.parts: list[FactoredGradient] = []
        self.arrivals = 0
        self._square: Tensor | None = None
        self._magnitude: Tensor | None = None
        self._relative = self._absolute = 0.0

    def add(self, part: FactoredGradient) -> None:
        """Take another call's gradients in; cross terms with the earlier ones included."""
        found, wanted = (part.batch_size, part.element_count), (self._batch_size, self._shape.numel())
        if found != wanted:
            raise ValueError(f"expected {wanted[0]} gradients of {wanted[1]} elements, got {found[0]} of {found[1]}")
        part = part.compact()
        square = part.squared_norm()
        for earlier in self.parts:
            square = square + 2 * inner_product(earlier, part)
        self._square = square if self._square is None else self._square + square
        self._magnitude = part.magnitude() if self._magnitude is None else self._magnitude + part.magnitude()
        self._keep(part)
        self._relative = max(self._relative, *(kept.norm_rounding() for kept in self.parts))
        self._absolute += part.underflow()
        self.arrivals += 1

    def squared_norm(self) -> Tensor:
        """‖gradient_i‖², float64 (B,)."""
        assert self._square is not None
        return self._square

    def squared_norm_error(self) -> Tensor:
        """Bound on the rounding error of `squared_norm`, float64 (B,)."""
        assert self._magnitude is not None
        return self._relative * self._magnitude.square() + self._absolute

    def sum_error(self) -> Tensor:
        """Bound on the norm of the error with which one gradient enters a weighted sum, float64 (B,)."""
        assert self._magnitude is not None
        return max(part.sum_rounding() for part in self.parts) * self._magnitude

    def _keep(self, part: FactoredGradient) -> None:
        """Dense parts are added up, so that a layer called often is held once."""
        if isinstance(part, DenseGradient):
            part = DenseGradient(part.values.reshape(self._batch_size, *self._shape))
            for index, earlier in enumerate(self.parts):
                if isinstance(earlier, DenseGradient):
                    self.parts[index] = earlier.plus(part)
                    return
        self.parts.append(part)


def norms_and_bounds(accounts: Collection[Account]) -> tuple[Tensor, Tensor]:
    """Norms of the gradients of several parameters together, and upper bounds of the norm with which they are realised.

    Both float64 (B,), on the first parameter's device. The realised contribution is the exact gradient plus the
    rounding errors of the weighted sums, which lie in different parameters: their norms add as squares.
    """
    device = next(iter(accounts)).squared_norm().device
    square = _total([account.squared_norm() for account in accounts], device).clamp(min=0)  # NaN stays NaN
    error = _total([account.squared_norm_error() for account in accounts], device)
    realised = _total([account.sum_error().square() for account in accounts], device).sqrt()
    return square.sqrt(), (square + error).sqrt() + realised


def _total(values: list[Tensor], device: torch.device) -> Tensor:
    return torch.stack([value.to(device) for value in values]).sum(dim=0)
