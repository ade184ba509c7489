"""RoBERTa, BERT, GPT-2 and Llama: exact against one example at a time, whatever part of them is trained."""

from __future__ import annotations

import pytest
from model_zoo import FAMILIES, PARTS, build, data, losses_of, train_part


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_norms_and_clipped_sums_are_exact(exact, family, part):
    model = train_part(build(family), part)
    exact(model, losses_of(model, family, data(family, 7)), 7, splits=(1, 2, 7))
