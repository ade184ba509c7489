"""Rows of a map-style data set: how many, which, how long; and the logical batches that Trainer iterates."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import Any, final

from torch.utils.data import IterableDataset

from .processes import Processes
from .sampling import LogicalBatch

BATCH = "logical_batch"
"""The key under which a logical batch travels through the Trainer's loop."""


def checked_size(dataset: Any, divisor: float) -> int:
    """The number n of training records. Raises ValueError if it is unknown, or below the expected batch."""
    if dataset is None:
        raise ValueError("expected a train_dataset, got None")
    if isinstance(dataset, Mapping):
        raise ValueError(f"expected one train_dataset, got a mapping of {', '.join(map(str, dataset))}: choose a split")
    streams = isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")
    if streams or not isinstance(dataset, Sized):
        raise ValueError(
            f"expected a train_dataset with a length and rows by index, got {type(dataset).__name__}: a stream has no "
            "records to draw with a known probability; load it into a map-style data set"
        )
    size = len(dataset)
    if size < divisor:
        raise ValueError(
            f"expected a train_dataset of at least the expected batch (privacy.divisor={divisor:g}), got {size} rows"
        )
    return size


def rows_at(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """The rows at `indices`, in that order."""
    if not len(indices):
        return []
    if hasattr(dataset, "__getitems__"):  # torch's protocol for many rows at once; `datasets` has it too
        return list(dataset.__getitems__(list(indices)))
    return [dataset[index] for index in indices]


def check_same_rows(read: Callable[[], Sequence[Any]], processes: Processes) -> None:
    """Raise ValueError if the first rows of the data, from `read`, are others in another process.

    Shuffled by different seeds, a record could be in one batch twice. Rows that are another time others (a random crop)
    are not compared.
    """

    def digest() -> dict[str, str]:
        first, again = (re.sub("0x[0-9a-f]+", "", repr(read())) for _ in range(2))  # without addresses of objects
        shown = hashlib.blake2b(first.encode(), digest_size=8).hexdigest() if first == again else "random"
        return {"train_dataset, in the same order (digest of its first rows),": shown}

    if processes.are_several:
        processes.same("comparing the data", digest)


def length_of(row: Any) -> int:
    """Its number of tokens; for rows without `input_ids`, the length of its longest entry. Only for sorting."""
    if not isinstance(row, Mapping):
        return 0
    entries = [row["input_ids"]] if "input_ids" in row else list(row.values())
    return max((_length(entry) for entry in entries), default=0)


def _length(entry: Any) -> int:
    if getattr(entry, "shape", None) == ():
        return 0
    return len(entry) if isinstance(entry, Sized) else 0


def microbatches(rows: Sequence[Any], size: int) -> Iterator[list[Any]]:
    """Cut into at most `size` rows each, similar lengths together, which saves padding."""
    ordered = sorted(rows, key=length_of)
    for start in range(0, len(ordered), size):
        yield ordered[start : start + size]


def without_unused(row: Any, used: set[str] | None) -> Any:
    """The columns in `used`; None keeps all but text, which no tensor can hold."""
    if not isinstance(row, Mapping):
        return row
    if used is None:
        return {name: value for name, value in row.items() if not _is_text(value)}
    return {name: value for name, value in row.items() if name in used}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list | tuple) and any(isinstance(part, str) for part in value))


@final
class LogicalBatches:
    """What the Trainer iterates in place of a loader: one Poisson batch each item, drawn when it is asked for.

    No batch is drawn ahead and none is skipped. `draw` gives None when no further step may be taken. An epoch has
    `steps` batches; one that is begun at step `position()` of the run has what is left of it.
    """

    def __init__(
        self, dataset: Any, steps: int, draw: Callable[[], LogicalBatch | None], position: Callable[[], int]
    ) -> None:
        self.dataset = dataset  # Trainer counts the examples here
        self._steps, self._draw, self._position = steps, draw, position

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[dict[str, LogicalBatch]]:
        for _ in range(self._position() % self._steps, self._steps):
            batch = self._draw()
            if batch is None:
                return
            yield {BATCH: batch}
