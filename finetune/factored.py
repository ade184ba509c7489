"""Per-example gradients of one parameter in factored form: norms and clipped sums without building them.

A layer call leaves, for each example i, an input a_i (T × d) and an output gradient g_i (T × p). Each class here stands
for the gradients that such a pair gives to one parameter, and knows their norms, their inner products with another
factored gradient of the same parameter (a weight used twice needs the cross terms) and their weighted sum.

B: examples, T: positions, d and p: input and output width. Everything is computed in float32 at least; float64 stays.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import final

import torch
from torch import Tensor

_CHUNK_ELEMENTS = 2**24  # elements of instantiated gradients held at a time (64 MiB in float32)
_SMALLEST_POWER = 0.4  # of the smallest float: factors below it would underflow when they are squared


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor in float32 or wider: half precision is never accumulated in half precision."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _sum_of_norms(norms: Tensor) -> Tensor:
    """Σ over positions (B, T), added in float64: error bounds rest on it, so small terms must not be lost in it."""
    return norms.sum(dim=1, dtype=torch.float64).to(norms.dtype)


class FactoredGradient(abc.ABC):
    """B gradients of one parameter, one per example, of which only the factors are stored."""

    @property
    @abc.abstractmethod
    def batch_size(self) -> int:
        """B."""

    @property
    @abc.abstractmethod
    def element_count(self) -> int:
        """Number of elements of one example's gradient."""

    @property
    @abc.abstractmethod
    def dot_length(self) -> int:
        """Number of terms in the longest chain of additions behind one norm; it scales the rounding error."""

    @abc.abstractmethod
    def squared_norm(self) -> Tensor:
        """Squared L2 norm of each example's gradient, shape (B,)."""

    @abc.abstractmethod
    def magnitude(self) -> Tensor:
        """Σ_t of the norms of the terms that make up each example's gradient, shape (B,): at least its norm."""

    @abc.abstractmethod
    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        """out += Σ_i weights[i] · gradient_i; `weights` (B,), `out` of the parameter's shape."""

    @abc.abstractmethod
    def instantiate(self, start: int, stop: int) -> Tensor:
        """The gradients of examples start … stop−1, shape (stop − start, element_count)."""

    @abc.abstractmethod
    def keep(self, mask: Tensor) -> FactoredGradient:
        """The same gradients, exactly zero where the boolean `mask` (B,) is False, whatever stood there."""

    def rounding(self) -> float:
        """r such that the computed squared norm errs by at most r · magnitude².

        An inner product of n terms errs by at most n·u·Σ|x_j·y_j| to first order, in every order of summation (Higham
        2002, section 3.1; u the unit roundoff); a record may be chosen so that roundings do not average out, so no
        probabilistic bound is used. It matters where the terms of a sum over positions cancel: there the norm is
        small and its error is not.
        """
        return 2 * (self.dot_length + 8) * self._unit_roundoff()

    @abc.abstractmethod
    def largest_factors(self) -> list[Tensor]:
        """The largest magnitude in each factor, per example: tensors of shape (B,)."""

    def without_underflow(self) -> FactoredGradient:
        """The same gradients, zero for examples whose factors are so small that their squares would underflow.

        Such a gradient is far below the resolution of the sum; a norm of 0 computed for it would leave it unclipped.
        """
        factors = self.largest_factors()
        product = factors[0]
        for factor in factors[1:]:
            product = product * factor
        smallest = torch.finfo(product.dtype).tiny ** _SMALLEST_POWER
        small = torch.stack([*(factor < smallest for factor in factors), product < smallest]).any(dim=0)
        return self.keep(~small) if bool(small.any()) else self

    @abc.abstractmethod
    def _unit_roundoff(self) -> float:
        """Half the machine epsilon of the dtype of the factors."""

    def chunks(self) -> list[tuple[int, int]]:
        """(start, stop) ranges of examples whose instantiated gradients fit the memory bound."""
        size = max(1, _CHUNK_ELEMENTS // max(1, self.element_count))
        return [(start, min(start + size, self.batch_size)) for start in range(0, self.batch_size, size)]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class DenseGradient(FactoredGradient):
    """Gradients that are cheap to hold: biases and normalisation weights.

    `values` (B, …parameter shape) is the sum over T terms of each example, `magnitudes` (B,) the sum of their norms.
    """

    values: Tensor
    magnitudes: Tensor
    terms: int

    @classmethod
    def from_positions(cls, terms: Tensor) -> DenseGradient:
        """Sum `terms` (B, T, p) over T: the gradient of a bias is the sum of its output gradients."""
        terms = at_least_float32(terms)
        return cls(terms.sum(dim=1), _sum_of_norms(torch.linalg.vector_norm(terms, dim=2)), terms.shape[1])

    @property
    def batch_size(self) -> int:
        return self.values.shape[0]

    @property
    def element_count(self) -> int:
        return self.values[0].numel()

    @property
    def dot_length(self) -> int:
        return self.element_count + self.terms

    def squared_norm(self) -> Tensor:
        return self.values.flatten(1).square().sum(dim=1)

    def magnitude(self) -> Tensor:
        return self.magnitudes

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        out.view(-1).addmv_(self.values.flatten(1).T, weights.to(self.values.dtype))

    def instantiate(self, start: int, stop: int) -> Tensor:
        return self.values[start:stop].flatten(1)

    def largest_factors(self) -> list[Tensor]:
        return [self.magnitudes]

    def keep(self, mask: Tensor) -> DenseGradient:
        return dataclasses.replace(self, values=_keep(self.values, mask), magnitudes=_keep(self.magnitudes, mask))

    def _unit_roundoff(self) -> float:
        return torch.finfo(self.values.dtype).eps / 2


@final
class OuterGradient(FactoredGradient):
    """Gradients Σ_t g_t a_tᵀ of a matrix (p × d): a linear layer's weight.

    `inputs` a is (B, T, d), `output_grads` g is (B, T, p).
    """

    def __init__(self, inputs: Tensor, output_grads: Tensor) -> None:
        dtype = torch.promote_types(torch.promote_types(inputs.dtype, output_grads.dtype), torch.float32)
        self.inputs, self.output_grads = inputs.to(dtype), output_grads.to(dtype)

    @property
    def batch_size(self) -> int:
        return self.inputs.shape[0]

    @property
    def element_count(self) -> int:
        return self.inputs.shape[2] * self.output_grads.shape[2]

    @property
    def dot_length(self) -> int:
        return self.inputs.shape[2] + self.output_grads.shape[2] + self.inputs.shape[1]

    def ghost_is_cheaper(self) -> bool:
        """Ghost costs 2BT²(p + d) flops, instantiating 2BTpd."""
        time, width_in, width_out = self.inputs.shape[1], self.inputs.shape[2], self.output_grads.shape[2]
        return time * (width_in + width_out) < width_in * width_out

    def squared_norm(self) -> Tensor:
        """By whichever of `ghost_squared_norm` and `instantiated_squared_norm` takes fewer flops, shape (B,)."""
        return self.ghost_squared_norm() if self.ghost_is_cheaper() else self.instantiated_squared_norm()

    def ghost_squared_norm(self) -> Tensor:
        """Σ_{t,s} ⟨a_t, a_s⟩⟨g_t, g_s⟩ = ‖Σ_t g_t a_tᵀ‖² (arXiv 2110.05679), shape (B,)."""
        input_gram = self.inputs @ self.inputs.mT
        output_gram = self.output_grads @ self.output_grads.mT
        return input_gram.mul_(output_gram).sum(dim=(1, 2))

    def instantiated_squared_norm(self) -> Tensor:
        """‖Σ_t g_t a_tᵀ‖² from the gradients themselves, some examples at a time, shape (B,)."""
        parts = [self.instantiate(start, stop).square().sum(dim=1) for start, stop in self.chunks()]
        return torch.cat(parts)

    def magnitude(self) -> Tensor:
        norms = torch.linalg.vector_norm(self.inputs, dim=2) * torch.linalg.vector_norm(self.output_grads, dim=2)
        return _sum_of_norms(norms)

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        scaled = self.output_grads * weights.to(self.output_grads.dtype)[:, None, None]
        out.addmm_(scaled.flatten(0, 1).T, self.inputs.flatten(0, 1))

    def largest_factors(self) -> list[Tensor]:
        return [factor.abs().flatten(1).amax(dim=1) for factor in (self.inputs, self.output_grads)]

    def instantiate(self, start: int, stop: int) -> Tensor:
        return (self.output_grads[start:stop].mT @ self.inputs[start:stop]).flatten(1)

    def keep(self, mask: Tensor) -> OuterGradient:
        return OuterGradient(_keep(self.inputs, mask), _keep(self.output_grads, mask))

    def _unit_roundoff(self) -> float:
        return torch.finfo(self.inputs.dtype).eps / 2


@final
class RowGradient(FactoredGradient):
    """Gradients Σ_t e_{id_t} g_tᵀ of a table (V × p): an embedding's weight.

    `ids` is (B, T), `output_grads` g is (B, T, p), `rows` is V. Rows that the layer never trains (padding) must come
    with g = 0.
    """

    def __init__(self, ids: Tensor, output_grads: Tensor, rows: int) -> None:
        self.ids, self.output_grads, self.rows = ids, at_least_float32(output_grads), rows

    @property
    def batch_size(self) -> int:
        return self.ids.shape[0]

    @property
    def element_count(self) -> int:
        return self.rows * self.output_grads.shape[2]

    @property
    def dot_length(self) -> int:
        return self.output_grads.shape[2] + self.ids.shape[1]

    def squared_norm(self) -> Tensor:
        """Positions of one example with the same id are added up first: O(BTp), no T × T and no V × p matrix."""
        examples = torch.arange(self.batch_size, device=self.ids.device)[:, None]
        keys, slots = torch.unique(examples * self.rows + self.ids, return_inverse=True)
        width = self.output_grads.shape[2]
        touched = self.output_grads.new_zeros(len(keys), width)
        touched.index_add_(0, slots.flatten(), self.output_grads.flatten(0, 1))
        norms = self.output_grads.new_zeros(self.batch_size)
        return norms.index_add_(0, keys // self.rows, touched.square().sum(dim=1))

    def magnitude(self) -> Tensor:
        return _sum_of_norms(torch.linalg.vector_norm(self.output_grads, dim=2))

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        scaled = self.output_grads * weights.to(self.output_grads.dtype)[:, None, None]
        out.index_add_(0, self.ids.flatten(), scaled.flatten(0, 1))

    def instantiate(self, start: int, stop: int) -> Tensor:
        ids, grads = self.ids[start:stop], self.output_grads[start:stop]
        full = grads.new_zeros(stop - start, self.rows, grads.shape[2])
        full.scatter_add_(1, ids[:, :, None].expand_as(grads), grads)
        return full.flatten(1)

    def largest_factors(self) -> list[Tensor]:
        return [self.output_grads.abs().flatten(1).amax(dim=1)]

    def keep(self, mask: Tensor) -> RowGradient:
        return RowGradient(self.ids, _keep(self.output_grads, mask), self.rows)

    def _unit_roundoff(self) -> float:
        return torch.finfo(self.output_grads.dtype).eps / 2


def inner_product(x: FactoredGradient, y: FactoredGradient) -> Tensor:
    """⟨x_i, y_i⟩ for each example i, shape (B,); both belong to the same parameter."""
    match x, y:
        case OuterGradient(), OuterGradient():
            return _outer_outer(x, y)
        case RowGradient(), RowGradient():
            return _row_row(x, y)
        case RowGradient(), OuterGradient():
            return _row_outer(x, y)
        case OuterGradient(), RowGradient():
            return _row_outer(y, x)
    ranges = max(x.chunks(), y.chunks(), key=len)
    return torch.cat([(x.instantiate(*span) * y.instantiate(*span)).sum(dim=1) for span in ranges])


def squared_norm(parts: list[FactoredGradient]) -> Tensor:
    """‖Σ_k parts[k]‖² per example, cross terms included, shape (B,): a weight used in several calls."""
    total = parts[0].squared_norm()
    for index, part in enumerate(parts[1:], start=1):
        total = total + part.squared_norm()
        for earlier in parts[:index]:
            total = total + 2 * inner_product(earlier, part)
    return total


def squared_norm_error(parts: list[FactoredGradient]) -> Tensor:
    """Bound on the rounding error of `squared_norm(parts)`, shape (B,); see `FactoredGradient.rounding`."""
    magnitude = torch.stack([part.magnitude() for part in parts]).sum(dim=0)
    return max(part.rounding() for part in parts) * magnitude.square()


def sum_error(parts: list[FactoredGradient]) -> Tensor:
    """Bound on the norm of the rounding error with which one example's gradient enters a weighted sum, shape (B,)."""
    magnitude = torch.stack([part.magnitude() for part in parts]).sum(dim=0)
    return max(part.rounding() for part in parts) * magnitude


def _outer_outer(x: OuterGradient, y: OuterGradient) -> Tensor:
    """Σ_{t,s} ⟨a_t, a'_s⟩⟨g_t, g'_s⟩."""
    return ((x.inputs @ y.inputs.mT) * (x.output_grads @ y.output_grads.mT)).sum(dim=(1, 2))


def _row_row(x: RowGradient, y: RowGradient) -> Tensor:
    """Σ_{t,s} [id_t = id'_s]⟨g_t, g'_s⟩."""
    equal = x.ids[:, :, None] == y.ids[:, None, :]
    return ((x.output_grads @ y.output_grads.mT) * equal).sum(dim=(1, 2))


def _row_outer(row: RowGradient, outer: OuterGradient) -> Tensor:
    """Σ_{t,s} ⟨g_emb_t, a_s⟩ · g_out_s[id_t]: the table of an embedding that is also a linear layer's weight."""
    batch, time_out = outer.output_grads.shape[:2]
    index = row.ids[:, None, :].expand(batch, time_out, row.ids.shape[1])
    picked = outer.output_grads.gather(2, index)  # (B, S, T): g_out_s[id_t]
    return (picked * (outer.inputs @ row.output_grads.mT)).sum(dim=(1, 2))


def _keep(tensor: Tensor, mask: Tensor) -> Tensor:
    """Zero (not a product with zero: NaN · 0 is NaN) where `mask` (B,) is False."""
    return torch.where(mask.to(tensor.device).view(-1, *[1] * (tensor.dim() - 1)), tensor, torch.zeros_like(tensor))
