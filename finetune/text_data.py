"""Labelled texts from a table (CSV or TSV), and their fixed split into training and test texts."""

from __future__ import annotations

import collections
import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np


@dataclasses.dataclass(frozen=True)
class LabelledTexts:
    """Texts and, for each, the index of its label in `label_names`."""

    texts: tuple[str, ...]
    labels: tuple[int, ...]
    label_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def majority_share(self) -> float:
        """The share of the most common label: the accuracy of always answering it."""
        return max(collections.Counter(self.labels).values()) / len(self)

    def take(self, indices: Sequence[int]) -> LabelledTexts:
        """The texts at `indices`, in that order."""
        return LabelledTexts(
            tuple(self.texts[i] for i in indices), tuple(self.labels[i] for i in indices), self.label_names
        )


def read_table(
    path: str | Path,
    *,
    text_column: str,
    label_column: str,
    label_names: Sequence[str],
    encoding: str = "utf-8",
    delimiter: str = ",",
    ignored_labels: Sequence[str] = (),
) -> LabelledTexts:
    """Read a table with a header line. Rows whose label is among `ignored_labels` are left out.

    Raises ValueError naming the file and the missing column, the line of an unexpected label, or the wrong encoding.
    """
    texts: list[str] = []
    labels: list[int] = []
    numbers = {name: index for index, name in enumerate(label_names)}
    try:
        with Path(path).open(encoding=encoding, newline="") as file:
            reader = csv.DictReader(file, delimiter=delimiter)
            _check_columns(path, reader.fieldnames, (text_column, label_column))
            for row in reader:
                label = row[label_column]
                if label in ignored_labels:
                    continue
                if label not in numbers or row[text_column] is None:
                    raise ValueError(
                        f"{path}, line {reader.line_num}: expected {label_column} to be one of "
                        f"{', '.join(label_names)}, got {label!r}"
                    )
                texts.append(row[text_column])
                labels.append(numbers[label])
    except OSError as error:
        raise ValueError(f"cannot read the table {str(path)!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"the table {str(path)!r} is not in encoding={encoding!r}: {error.reason}") from error
    if not texts:
        raise ValueError(f"the table {str(path)!r} has no row with one of the labels {', '.join(label_names)}")
    return LabelledTexts(tuple(texts), tuple(labels), tuple(label_names))


def _check_columns(path: str | Path, found: Sequence[str] | None, wanted: Sequence[str]) -> None:
    for column in wanted:
        if column not in (found or ()):
            raise ValueError(f"{path}: expected a column {column!r}, got the columns {', '.join(found or ())}")


def split(data: LabelledTexts, *, test_share: float, seed: int) -> tuple[LabelledTexts, LabelledTexts]:
    """Training and test texts, by a permutation from a public `seed`: the same for everybody.

    Equal texts are kept on one side, so that no test text has been trained on.
    """
    if not 0 < test_share < 1:
        raise ValueError(f"expected 0 < test_share < 1, got {test_share=}")
    distinct = sorted(set(data.texts))
    order = np.random.default_rng(seed).permutation(len(distinct))
    in_test = {distinct[i] for i in order[: round(test_share * len(distinct))]}
    test = [i for i, text in enumerate(data.texts) if text in in_test]
    train = [i for i, text in enumerate(data.texts) if text not in in_test]
    if not test or not train:
        raise ValueError(f"expected test_share to leave texts on both sides, got {test_share=} of {len(data)} texts")
    return data.take(train), data.take(test)
