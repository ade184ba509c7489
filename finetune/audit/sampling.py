"""Are these batches Poisson samples? Four exact tests of who was drawn.

Outputs of one run hardly show how its batches were drawn: a record's own participation looks alike under fixed and
under Poisson batches, and what differs, whom it pushes out, needs a particular company (`optnoise check --batches
fixed_size` plays that game). The indices themselves show it at once. Under Poisson sampling of n records at rate q, of
K batches:

- all inclusions together are Binomial(nK, q);
- the number of batches with a size near nq (within the quartiles) is binomial: fixed sizes are all near;
- the number of records drawn nearly Kq times is binomial: shuffled epochs draw all equally often, favourites are not;
- records in both batches of a pair (1st and 2nd, 3rd and 4th, …) are Binomial(n·⌊K/2⌋, q²): shuffled epochs have few.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from ...accounting import CONSISTENT, CONTRADICTION
from ...mechanisms import _validate


@dataclasses.dataclass(frozen=True)
class BatchCheck:
    """The probability of each finding, or a rarer one, if the batches were Poisson samples."""

    p_values: Mapping[str, float]
    confidence: float

    @property
    def contradicted(self) -> bool:
        """True if some finding is too rare: Poisson batches are accused with probability at most 1 − confidence."""
        return min(self.p_values.values()) * len(self.p_values) <= 1 - self.confidence

    @property
    def verdict(self) -> str:
        """`consistent` or `CONTRADICTION`."""
        return CONTRADICTION if self.contradicted else CONSISTENT


def check_batches(
    batches: Iterable[ArrayLike], *, dataset_size: int, sampling_rate: float, confidence: float = 0.999
) -> BatchCheck:
    """Test whether `batches` are Poisson samples of `dataset_size` records at `sampling_rate` (see the module).

    Args:
        batches: for each step the indices (b,) that were drawn, each at most once; two steps at least. They are as
            secret as the data: keep them no longer than the check.
        confidence: in (0, 1); 1 − confidence is shared by the four tests.
    """
    n = _validate.integer("dataset_size", dataset_size, minimum=1)
    q = _validate.unit_interval("sampling_rate", sampling_rate)
    _validate.open_unit("confidence", confidence)
    drawn = _table(batches, n)
    steps = len(drawn)
    pairs = steps // 2
    together = int((drawn[0 : 2 * pairs : 2] & drawn[1 : 2 * pairs : 2]).sum())
    return BatchCheck(
        {
            "inclusions": _binomial(int(drawn.sum()), n * steps, q),
            "batch sizes": _near(drawn.sum(axis=1), n, q),
            "draws of a record": _near(drawn.sum(axis=0), steps, q),
            "drawn twice in a row": _binomial(together, n * pairs, q * q),
        },
        confidence,
    )


def _table(batches: Iterable[ArrayLike], records: int) -> NDArray[np.bool_]:
    """Who was drawn, shape (steps, records)."""
    rows = []
    for i, batch in enumerate(batches):
        indices = np.asarray(batch)
        if indices.ndim != 1 or (len(indices) and not np.issubdtype(indices.dtype, np.integer)):
            raise ValueError(f"expected batches[{i}] to be indices of shape (b,), got {indices.dtype} {indices.shape}")
        indices = indices.astype(np.int64)
        if len(indices) and not (indices.min() >= 0 and indices.max() < records):
            raise ValueError(f"expected indices from 0 to {records - 1}, got {indices.min()} … {indices.max()}")
        if len(np.unique(indices)) != len(indices):
            raise ValueError(f"expected every record at most once in a batch, batches[{i}] repeats one")
        row = np.zeros(records, dtype=np.bool_)
        row[indices] = True
        rows.append(row)
    if len(rows) < 2:
        raise ValueError(f"expected two batches or more, got {len(rows)}")
    return np.array(rows)


def _near(counts: NDArray[np.int64], trials: int, rate: float) -> float:
    """Of how many of the independent Binomial(trials, rate) `counts` lie within the quartiles."""
    low, high = stats.binom.ppf([0.25, 0.75], trials, rate)
    inside = float(stats.binom.cdf(high, trials, rate) - stats.binom.cdf(low - 1, trials, rate))
    return _binomial(int(((counts >= low) & (counts <= high)).sum()), len(counts), inside)


def _binomial(count: int, trials: int, rate: float) -> float:
    """Twice the smaller tail of Binomial(trials, rate) at `count`, at most 1."""
    tails = stats.binom.cdf(count, trials, rate), stats.binom.sf(count - 1, trials, rate)
    return min(2 * float(min(tails)), 1.0) if not math.isclose(rate, 1.0, abs_tol=1e-15) else float(count == trials)
