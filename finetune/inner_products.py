"""Cross terms: a parameter that is used twice has the norm of the *sum* of its gradients, ‖x‖² + ‖y‖² + 2⟨x, y⟩."""

from __future__ import annotations

import torch
from torch import Tensor

from .factored import FactoredGradient, OuterGradient, RowGradient, ranges
from .recorded import CHUNK_ELEMENTS, dots, gram, wide_dtype


def inner_product(x: FactoredGradient, y: FactoredGradient) -> Tensor:
    """⟨x_i, y_i⟩ for each example i, float64 (B,); both belong to the same parameter."""
    match x, y:
        case OuterGradient(), OuterGradient() if _pairs_are_cheaper(x, y):
            return _by_examples(_outer_outer, x, y)
        case RowGradient(), RowGradient():
            return _by_examples(_row_row, x, y)
        case RowGradient(), OuterGradient():
            return _by_examples(_row_outer, x, y)
        case OuterGradient(), RowGradient():
            return _by_examples(_row_outer, y, x)
    spans = ranges(x.batch_size, x.element_count)
    dtype = wide_dtype(x.dtype, y.dtype)
    return torch.cat([dots(x.instantiate(*span).to(dtype), y.instantiate(*span).to(dtype)) for span in spans])


def _pairs_are_cheaper(x: OuterGradient, y: OuterGradient) -> bool:
    """Two Gram matrices of T × S, or two instantiated gradients."""
    pairs = x.length * y.length * (x.inputs.width + x.output_grads.width)
    return pairs < (x.length + y.length) * x.element_count


def _by_examples(pairs, x, y) -> Tensor:
    """Σ over all pairs of positions, some examples at a time: at most CHUNK_ELEMENTS pairs are held."""
    size = max(1, CHUNK_ELEMENTS // max(1, _length(x) * _length(y)))
    spans = [slice(start, start + size) for start in range(0, x.batch_size, size)]
    return torch.cat([pairs(x, y, span).sum(dim=2).double().sum(dim=1) for span in spans])


def _length(x: OuterGradient | RowGradient) -> int:
    return x.length if isinstance(x, OuterGradient) else x.ids.shape[1]


def _outer_outer(x: OuterGradient, y: OuterGradient, span: slice) -> Tensor:
    """⟨a_t, a'_s⟩⟨g_t, g'_s⟩, shape (b, T, S)."""
    dtype = wide_dtype(x.dtype, y.dtype)
    inputs = gram(x.inputs.positions[span], y.inputs.positions[span], dtype)
    return inputs.mul_(gram(x.output_grads.positions[span], y.output_grads.positions[span], dtype))


def _row_row(x: RowGradient, y: RowGradient, span: slice) -> Tensor:
    """[id_t = id'_s]⟨g_t, g'_s⟩, shape (b, T, S)."""
    dtype = wide_dtype(x.dtype, y.dtype)
    equal = x.ids[span, :, None] == y.ids[span, None, :]
    return gram(x.output_grads.positions[span], y.output_grads.positions[span], dtype).mul_(equal)


def _row_outer(row: RowGradient, outer: OuterGradient, span: slice) -> Tensor:
    """⟨g_emb_t, a_s⟩ · g_out_s[id_t], shape (b, S, T): a table that is also a linear layer's weight."""
    dtype = wide_dtype(row.dtype, outer.dtype)
    grads = outer.output_grads.positions[span]
    index = row.ids[span, None, :].expand(-1, grads.shape[1], -1)
    picked = grads.gather(2, index).to(dtype)  # g_out_s[id_t]
    return picked.mul_(gram(outer.inputs.positions[span], row.output_grads.positions[span], dtype))
