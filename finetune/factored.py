"""Per-example gradients of one parameter in factored form: norms and clipped sums without building them.

A layer call leaves, for each example i, an input a_i (T × d) and an output gradient g_i (T × p). Each class here stands
for the gradients that such a pair gives to one parameter, and knows their norms and their weighted sum;
`inner_products.py` has the cross terms of a parameter that is used twice.

B: examples, T: positions, d and p: input and output width. Everything is computed in float32 at least; float64 stays.

Rounding. An inner product of n terms errs by at most n·u·Σ|x_j·y_j| to first order, in every order of summation (Higham
2002, section 3.1; u the unit roundoff). A record may be chosen so that roundings do not average out, so no
probabilistic bound is used. It matters where the terms of a sum over positions cancel: there the norm is small and its
error is not. So every bound is a multiple of the *magnitude*, the sum over positions of the norms of the terms.
"""

from __future__ import annotations

import abc
from typing import final

import torch
from torch import Tensor

from .recorded import (
    CHUNK_ELEMENTS,
    RUN,
    Recorded,
    at_least_float32,
    gram,
    gram_terms,
    padding,
    squared_lengths,
    unit_roundoff,
    wide_dtype,
    zero_unless,
)

_SUM_TERMS = 4096  # positions that one matrix product of a weighted sum adds up
_TILE = 256  # positions of one tile of a Gram matrix
_ROOM = 2  # see `OuterGradient.ghost_is_cheaper`
_SPARE = 16  # roundings not counted one by one


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
    def dtype(self) -> torch.dtype:
        """What is computed in: float32 or float64."""

    @property
    @abc.abstractmethod
    def norm_terms(self) -> int:
        """Additions in `dtype` that one term of the squared norm goes through, at most."""

    @property
    @abc.abstractmethod
    def sum_terms(self) -> int:
        """Additions in `dtype` that one term of the weighted sum goes through, at most."""

    @property
    @abc.abstractmethod
    def squares(self) -> int:
        """Products of two computed numbers in the squared norm of one example: each may underflow."""

    @abc.abstractmethod
    def squared_norm(self) -> Tensor:
        """Squared L2 norm of each example's gradient, float64 (B,)."""

    @abc.abstractmethod
    def magnitude(self) -> Tensor:
        """Σ_t of upper bounds of the norms of the terms that make up each gradient, float64 (B,)."""

    @abc.abstractmethod
    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        """out += Σ_i weights[i] · gradient_i; `weights` (B,), `out` of the parameter's shape."""

    def weighted_sum(self, weights: Tensor, shape: torch.Size) -> Tensor:
        """Σ_i weights[i] · gradient_i as a new tensor of the parameter's `shape`."""
        out = torch.zeros(shape, dtype=self.dtype, device=weights.device)
        self.add_weighted_sum(weights, out)
        return out

    @abc.abstractmethod
    def instantiate(self, start: int, stop: int) -> Tensor:
        """The gradients of examples start … stop−1, shape (stop − start, element_count)."""

    @abc.abstractmethod
    def keep(self, mask: Tensor) -> FactoredGradient:
        """The same gradients, exactly zero where the boolean `mask` (B,) is False, whatever stood there."""

    def compact(self) -> FactoredGradient:
        """The form in which to keep these gradients until the clip factors are known."""
        return self

    def norm_rounding(self) -> float:
        """r: the squared norm, and an inner product of two such gradients, err by at most r · (product of the
        magnitudes), apart from underflow."""
        return 2 * (self.norm_terms + _SPARE) * unit_roundoff(self.dtype)

    def sum_rounding(self) -> float:
        """r: the error with which one gradient enters the weighted sum has norm at most r · weight · magnitude."""
        return (self.sum_terms + _SPARE) * unit_roundoff(self.dtype)

    def underflow(self) -> float:
        """What underflow can take from the squared norm, at most."""
        return 4 * self.squares * torch.finfo(self.dtype).tiny

    def chunks(self) -> list[tuple[int, int]]:
        """(start, stop) ranges of examples whose instantiated gradients fit the memory bound."""
        return ranges(self.batch_size, self.element_count)


@final
class DenseGradient(FactoredGradient):
    """Gradients that are held as they are: biases, normalisation weights, small matrices.

    `values` (B, …parameter shape). They are what the clipped sum is made of, so how they were rounded when they were
    computed is no matter: the norm is that of the very numbers held here.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self._square: Tensor | None = None

    @classmethod
    def from_positions(cls, terms: Tensor | Recorded) -> DenseGradient:
        """Sum `terms` (B, …, p) over all but the first and last axis: the gradient of a bias is that sum."""
        recorded = terms if isinstance(terms, Recorded) else Recorded(terms)
        return cls(at_least_float32(recorded.positions).sum(dim=1))

    @property
    def batch_size(self) -> int:
        return self.values.shape[0]

    @property
    def element_count(self) -> int:
        return self.values[0].numel()

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def norm_terms(self) -> int:
        return min(RUN, self.element_count)

    @property
    def sum_terms(self) -> int:
        return self.batch_size

    @property
    def squares(self) -> int:
        return self.element_count

    def squared_norm(self) -> Tensor:
        if self._square is None:
            self._square = squared_lengths(self.values.flatten(1))
        return self._square

    def magnitude(self) -> Tensor:
        norms = self.squared_norm().sqrt() * (1 + self.norm_rounding())
        return norms + padding(self.element_count, self.dtype)

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        out.add_(self.weighted_sum(weights, out.shape))

    def weighted_sum(self, weights: Tensor, shape: torch.Size) -> Tensor:
        return (weights.to(self.values.dtype) @ self.values.flatten(1)).view(shape)

    def instantiate(self, start: int, stop: int) -> Tensor:
        return self.values[start:stop].flatten(1)

    def keep(self, mask: Tensor) -> DenseGradient:
        return DenseGradient(zero_unless(mask, self.values))

    def plus(self, other: DenseGradient) -> DenseGradient:
        """The sum, example by example: the same parameter in another call."""
        return DenseGradient(self.values + other.values)


@final
class OuterGradient(FactoredGradient):
    """Gradients Σ_t g_t a_tᵀ of a matrix (p × d): a linear layer's weight.

    `inputs` a is (B, …, d), `output_grads` g is (B, …, p).
    """

    def __init__(self, inputs: Tensor | Recorded, output_grads: Tensor | Recorded) -> None:
        self.inputs = inputs if isinstance(inputs, Recorded) else Recorded(inputs)
        self.output_grads = output_grads if isinstance(output_grads, Recorded) else Recorded(output_grads)

    @property
    def batch_size(self) -> int:
        return self.inputs.batch_size

    @property
    def length(self) -> int:
        """T."""
        return self.inputs.length

    @property
    def element_count(self) -> int:
        return self.inputs.width * self.output_grads.width

    @property
    def dtype(self) -> torch.dtype:
        return wide_dtype(self.inputs.dtype, self.output_grads.dtype)

    @property
    def norm_terms(self) -> int:
        # T: one row of a Gram tile, or an instantiated sum over positions
        return gram_terms(self.inputs.width) + gram_terms(self.output_grads.width) + self.length

    @property
    def sum_terms(self) -> int:
        positions = self.batch_size * self.length
        return min(positions, max(_SUM_TERMS, self.length)) + positions // _SUM_TERMS

    @property
    def squares(self) -> int:
        return max(self.length**2, self.element_count)

    def ghost_is_cheaper(self) -> bool:
        """Ghost costs 2T²(p + d) flops an example and keeps T(p + d) numbers for the product to come; the instantiated
        gradient costs 2Tpd flops *in place of* that product's 2Tpd, so no flops at all, but keeps pd numbers.

        Where pd is up to `_ROOM` times T(p + d) the second was faster on a CPU and its memory does not show at the
        peak; beyond, writing and reading it costs as much as the Gram matrices. One example alone always has its
        gradient instantiated: it is the sum.
        """
        if self.batch_size == 1:
            return False
        return _ROOM * self.length * (self.inputs.width + self.output_grads.width) < self.element_count

    def compact(self) -> FactoredGradient:
        return self if self.ghost_is_cheaper() else self.instantiated()

    def instantiated(self) -> DenseGradient:
        """The gradients themselves; the factors are not needed any more."""
        inputs, grads = self.inputs.positions.to(self.dtype), self.output_grads.positions.to(self.dtype)
        return DenseGradient(grads.mT @ inputs)

    def squared_norm(self) -> Tensor:
        """‖Σ_t g_t a_tᵀ‖² = Σ_{t,s} ⟨a_t, a_s⟩⟨g_t, g_s⟩ (arXiv 2110.05679), float64 (B,).

        From a few positions the two Gram matrices are made whole, and that of an input is shared by all layers that
        read it; from many, tile by tile, the upper half only: they are symmetric.
        """
        if self.length <= _TILE:
            rows = max(1, CHUNK_ELEMENTS // self.length**2)
            if rows >= self.batch_size:
                output_gram = self.output_grads.new_gram(self.dtype)
                return output_gram.mul_(self.inputs.own_gram(self.dtype)).sum(dim=2).double().sum(dim=1)
        return torch.cat([self._tiled(start, stop) for start, stop in ranges(self.batch_size, self.length * _TILE)])

    def _tiled(self, start: int, stop: int) -> Tensor:
        inputs, grads = self.inputs.positions[start:stop], self.output_grads.positions[start:stop]
        total = torch.zeros(stop - start, dtype=torch.float64, device=inputs.device)
        for first in range(0, self.length, _TILE):
            here = slice(first, first + _TILE)
            for second in range(first, self.length, _TILE):
                there = slice(second, second + _TILE)
                tile = gram(inputs[:, here], inputs[:, there], self.dtype)
                tile *= gram(grads[:, here], grads[:, there], self.dtype)
                total += tile.sum(dim=2).double().sum(dim=1) * (1 if first == second else 2)
        return total

    def magnitude(self) -> Tensor:
        return (self.inputs.row_norms() * self.output_grads.row_norms()).sum(dim=1)

    def add_weighted_sum(self, weights: Tensor, out: Tensor, *, fresh: bool = False) -> None:
        """One matrix product over examples and positions (in pieces of `_SUM_TERMS` rows); the narrower factor carries
        the weights. What stands in a `fresh` out is ignored."""
        weights = weights.to(self.dtype)[:, None, None]
        inputs, grads = self.inputs.positions, self.output_grads.positions
        for start, stop in self._pieces():
            a, g = inputs[start:stop].to(self.dtype), grads[start:stop].to(self.dtype)
            a, g = (a * weights[start:stop], g) if a.shape[2] < g.shape[2] else (a, g * weights[start:stop])
            out.addmm_(g.flatten(0, 1).T, a.flatten(0, 1), beta=0.0 if fresh and start == 0 else 1.0)

    def weighted_sum(self, weights: Tensor, shape: torch.Size) -> Tensor:
        out = torch.empty(shape, dtype=self.dtype, device=weights.device)
        self.add_weighted_sum(weights, out, fresh=True)
        return out

    def _pieces(self) -> list[tuple[int, int]]:
        size = max(1, _SUM_TERMS // max(1, self.length))
        if self.output_grads.dtype != self.output_grads.tensor.dtype:  # half precision is widened piece by piece
            size = min(size, max(1, CHUNK_ELEMENTS // max(1, self.length * self.output_grads.width)))
        return [(start, min(start + size, self.batch_size)) for start in range(0, self.batch_size, size)]

    def instantiate(self, start: int, stop: int) -> Tensor:
        inputs, grads = self.inputs.positions[start:stop], self.output_grads.positions[start:stop]
        return (grads.to(self.dtype).mT @ inputs.to(self.dtype)).flatten(1)

    def keep(self, mask: Tensor) -> OuterGradient:
        return OuterGradient(self.inputs.keep(mask), self.output_grads.keep(mask))


@final
class RowGradient(FactoredGradient):
    """Gradients Σ_t e_{id_t} g_tᵀ of a table (V × p): an embedding's weight.

    `ids` is (B, T), `output_grads` g is (B, …, p), `rows` is V. Rows that the layer never trains (padding) must come
    with g = 0.
    """

    def __init__(self, ids: Tensor, output_grads: Tensor | Recorded, rows: int) -> None:
        self.output_grads = output_grads if isinstance(output_grads, Recorded) else Recorded(output_grads)
        self.ids, self.rows = ids, rows

    @property
    def batch_size(self) -> int:
        return self.ids.shape[0]

    @property
    def element_count(self) -> int:
        return self.rows * self.output_grads.width

    @property
    def dtype(self) -> torch.dtype:
        return self.output_grads.dtype

    @property
    def norm_terms(self) -> int:
        return gram_terms(self.output_grads.width) + self.ids.shape[1]

    @property
    def sum_terms(self) -> int:
        return self.ids.numel()

    @property
    def squares(self) -> int:
        return self.ids.shape[1] * self.output_grads.width

    @property
    def touched_elements(self) -> int:
        """Elements of the rows that the positions touch, at most."""
        return self.ids.numel() * self.output_grads.width

    def grads(self) -> Tensor:
        """g as (B, T, p), in `dtype`."""
        return self.output_grads.positions.to(self.dtype)

    def squared_norm(self) -> Tensor:
        """Positions of one example with the same id are added up first: O(BTp), no T × T and no V × p matrix."""
        examples = torch.arange(self.batch_size, device=self.ids.device)[:, None]
        keys, slots = torch.unique(examples * self.rows + self.ids, return_inverse=True)
        grads = self.grads()
        touched = grads.new_zeros(len(keys), grads.shape[2])
        touched.index_add_(0, slots.flatten(), grads.flatten(0, 1))
        norms = torch.zeros(self.batch_size, dtype=torch.float64, device=grads.device)
        return norms.index_add_(0, keys // self.rows, squared_lengths(touched))

    def magnitude(self) -> Tensor:
        return self.output_grads.row_norms().sum(dim=1)

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        scaled = self.grads() * weights.to(self.dtype)[:, None, None]
        out.index_add_(0, self.ids.flatten(), scaled.flatten(0, 1))

    def instantiate(self, start: int, stop: int) -> Tensor:
        ids, grads = self.ids[start:stop], self.grads()[start:stop]
        full = grads.new_zeros(stop - start, self.rows, grads.shape[2])
        full.scatter_add_(1, ids[:, :, None].expand_as(grads), grads)
        return full.flatten(1)

    def keep(self, mask: Tensor) -> RowGradient:
        return RowGradient(self.ids, self.output_grads.keep(mask), self.rows)


def ranges(count: int, elements_each: int) -> list[tuple[int, int]]:
    """(start, stop) ranges of `count` things whose temporaries of `elements_each` fit the memory bound."""
    size = max(1, CHUNK_ELEMENTS // max(1, elements_each))
    return [(start, min(start + size, count)) for start in range(0, count, size)]
