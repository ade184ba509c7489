"""Norm bounds in float32 against float64, where the terms of a gradient cancel: they must hold, and not be loose."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optnoise.finetune.account import Account, norms_and_bounds
from optnoise.finetune.factored import DenseGradient, OuterGradient, RowGradient
from optnoise.finetune.recorded import RUN, Recorded, gram, gram_terms

ROWS, WIDTH = 9, 7


def cancelling(shape, seed, rest):
    """Float32 numbers (B, T, w) whose later positions nearly undo the earlier ones."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator)
    half = shape[1] // 2
    values[:, half : 2 * half] = -values[:, :half] * (1 + rest * torch.randn(shape[0], half, 1, generator=generator))
    return values


def exactly(part):
    """The same gradients in float64."""
    if isinstance(part, OuterGradient):
        return OuterGradient(part.inputs.tensor.double(), part.output_grads.tensor.double())
    return RowGradient(part.ids, part.output_grads.tensor.double(), part.rows)


def parts_of(kinds, length, seed, rest):
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for number, kind in enumerate(kinds):
        grads = cancelling((3, length, ROWS if kind == "outer" else WIDTH), seed + number, rest)
        if kind == "outer":
            inputs = torch.randn(3, 1, WIDTH, generator=generator).expand(3, length, WIDTH).contiguous()
            parts.append(OuterGradient(inputs, grads))
        else:
            parts.append(RowGradient(torch.randint(0, 2, (3, length), generator=generator), grads, ROWS))
    return parts


@settings(max_examples=80)
@given(
    kinds=st.lists(st.sampled_from(["outer", "row"]), min_size=1, max_size=3),
    length=st.integers(1, 60),
    seed=st.integers(0, 2**16),
    rest=st.sampled_from([1.0, 1e-3, 1e-6, 0.0]),
    compact=st.booleans(),
)
def test_the_bound_covers_what_is_realised(kinds, length, seed, rest, compact):
    parts = parts_of(kinds, length, seed, rest)
    account = Account(torch.Size([ROWS, WIDTH]), 3)
    with pytest.MonkeyPatch.context() as patch:
        if not compact:  # keep the factors, whatever would be cheaper
            patch.setattr(OuterGradient, "compact", lambda part: part)
        for part in parts:
            account.add(part)
    true = sum(exactly(part).instantiate(0, 3) for part in parts).norm(dim=1)
    norms, bounds = norms_and_bounds([account])
    if not compact:  # instantiated gradients are added as they were rounded; only the sum below counts
        assert bool((bounds >= true).all())
    magnitude = account._magnitude
    assert bool((bounds - norms <= 0.02 * magnitude).all())
    for index in range(3):
        out = torch.zeros(ROWS, WIDTH)
        weights = torch.zeros(3)
        weights[index] = 1.0
        for part in account.parts:
            part.add_weighted_sum(weights, out)
        assert float(out.double().norm()) <= float(bounds[index])


@pytest.mark.parametrize("width", [600, 5000, 50_000])
def test_wide_layers_have_no_wide_bounds(width):
    """A vocabulary of 50,000 in one float32 sum would double the bound; in runs of 512 it costs under 1 %."""
    torch.manual_seed(0)
    part = OuterGradient(torch.randn(2, 16, 300), torch.randn(2, 16, width))
    account = Account(torch.Size([width, 300]), 2)
    account.add(part)
    norms, bounds = norms_and_bounds([account])
    assert bool((bounds < 1.01 * norms).all())
    true = exactly(part).instantiate(0, 2).norm(dim=1)
    assert bool((bounds >= true).all())
    torch.testing.assert_close(norms, true, rtol=1e-5, atol=0)


def test_tiles_and_chunks_give_the_whole(monkeypatch):
    """Long sequences: Gram matrices by tiles, examples by chunks; the same numbers."""
    from optnoise.finetune import factored, recorded

    x = OuterGradient(torch.randn(5, 23, 40, dtype=torch.float64), torch.randn(5, 23, 50, dtype=torch.float64))
    whole = x.squared_norm()
    monkeypatch.setattr(factored, "_TILE", 4)
    torch.testing.assert_close(x.squared_norm(), whole, rtol=1e-12, atol=0)
    monkeypatch.setattr(factored, "CHUNK_ELEMENTS", 200)
    monkeypatch.setattr(recorded, "CHUNK_ELEMENTS", 200)
    torch.testing.assert_close(x.squared_norm(), whole, rtol=1e-12, atol=0)
    monkeypatch.setattr(factored, "_TILE", 64)
    torch.testing.assert_close(x.squared_norm(), whole, rtol=1e-12, atol=0)
    torch.testing.assert_close(whole, x.instantiated().squared_norm(), rtol=1e-12, atol=0)


def test_dense_gradients_are_bounded_by_their_own_norm():
    values = torch.randn(4, 3000)
    account = Account(torch.Size([3000]), 4)
    account.add(DenseGradient(values))
    norms, bounds = norms_and_bounds([account])
    torch.testing.assert_close(norms, values.double().norm(dim=1), rtol=1e-6, atol=0)
    assert bool((bounds >= values.double().norm(dim=1)).all())
    assert bool((bounds < 1.001 * norms).all())


@pytest.mark.parametrize("width", [1, RUN - 1, RUN, RUN + 1, 3 * RUN, 5 * RUN + 7])
def test_inner_products_over_a_width_err_by_less_than_their_terms_allow(width):
    generator = torch.Generator().manual_seed(width)
    x, y = torch.randn(2, 2, 5, width, generator=generator)
    found = gram(x, y, torch.float32)
    assert found.dtype == torch.float32
    allowed = gram_terms(width) * 2.0**-24 * (x.double().abs() @ y.double().abs().mT)
    assert bool(((found - x.double() @ y.double().mT).abs() <= allowed).all())
    assert gram_terms(width) <= RUN + width // RUN


@pytest.mark.parametrize("size", [1.0, 1e-19, 1e-22, 1e15])
def test_row_norms_from_a_gram_matrix_are_upper_bounds_too(size):
    """Of positions whose squares underflow as well; and no looser than those of a pass of their own."""
    tensor = size * torch.randn(3, 6, 1300, generator=torch.Generator().manual_seed(0))
    with_gram, without = Recorded(tensor), Recorded(tensor)
    with_gram.own_gram(torch.float32)
    true = tensor.double().norm(dim=2)
    assert bool((with_gram.row_norms() >= true).all())
    torch.testing.assert_close(with_gram.row_norms(), without.row_norms(), rtol=1e-5, atol=1e-17)
