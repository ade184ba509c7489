"""Poisson batches and their microbatches."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from optnoise.finetune import LogicalBatch, PoissonSampler


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_each_record_is_drawn_independently_at_the_rate():
    """Counts of every record, and sizes, as a binomial has them; a fixed batch size would have no spread."""
    sampler = PoissonSampler(200, 0.1, generator())
    drawn = torch.zeros(4000, 200)
    for row in drawn:
        row[sampler.draw().indices] = 1
    assert abs(float(drawn.mean()) - 0.1) < 5 * math.sqrt(0.09 / drawn.numel())
    assert float((drawn.mean(0) - 0.1).abs().max()) < 5 * math.sqrt(0.09 / 4000)
    assert abs(float(drawn.sum(1).var()) / (200 * 0.09) - 1) < 5 * math.sqrt(2 / 4000)
    pairs = torch.corrcoef(drawn.T[:20]) - torch.eye(20)
    assert float(pairs.abs().max()) < 5 / math.sqrt(4000)


def test_rate_one_takes_everybody_and_tiny_rates_take_nobody():
    assert len(PoissonSampler(50, 1.0, generator()).draw()) == 50
    empty = PoissonSampler(50, 1e-12, generator()).draw()
    assert len(empty) == 0
    assert list(empty.microbatches(4)) == []
    assert list(empty.microbatches(4, lengths=list(range(50)))) == []


@given(st.lists(st.integers(0, 60), unique=True), st.integers(1, 9))
def test_microbatches_are_a_partition_sorted_by_length(indices, size):
    lengths = torch.arange(61) * 7919 % 13
    batch = LogicalBatch(torch.tensor(sorted(indices), dtype=torch.long))
    pieces = list(batch.microbatches(size, lengths=lengths))
    assert sorted(int(i) for piece in pieces for i in piece) == sorted(indices)
    assert all(1 <= len(piece) <= size for piece in pieces)
    assert len(pieces) == math.ceil(len(indices) / size)
    ordered = [int(lengths[i]) for piece in pieces for i in piece]
    assert ordered == sorted(ordered)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="dataset_size"):
        PoissonSampler(0, 0.5, generator())
    for rate in (0.0, 1.1, math.nan):
        with pytest.raises(ValueError, match="sampling_rate"):
            PoissonSampler(5, rate, generator())
    with pytest.raises(ValueError, match="size"):
        list(LogicalBatch(torch.arange(3)).microbatches(0))
