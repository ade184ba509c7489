"""Labelled rows, shared by the classification tasks: labels to class numbers, texts checked, row by row."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path

from .base import ClassificationExample, DataSource, Splits
from .files import Row, checked_text, read_table
from .hub import HubSplit
from .loading import HubData, Layout, Reader, Rows, classification_splits

_UNLABELLED = -1  # how the hub's GLUE marks the rows of a test split


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labelled:
    """Which columns hold the texts and the label, and how labels are spelt (spelling to class number)."""

    text_columns: tuple[str, ...]
    label_column: str
    spellings: Mapping[str, int]
    ignored_labels: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.text_columns, self.label_column)

    def examples(self, rows: Iterable[Row], source: DataSource) -> Rows[ClassificationExample]:
        """Checked examples. Raises ValueError naming the row of an unexpected label or an empty text."""
        found: list[ClassificationExample] = []
        left_out: collections.Counter[str] = collections.Counter()
        name = ""
        for where, values in rows:
            name = where.rpartition(",")[0]
            label = str(values[self.label_column]).strip()
            if label in self.ignored_labels:
                left_out[f"with the label {label}"] += 1
                continue
            if label not in self.spellings:
                allowed = ", ".join(self.spellings)
                raise ValueError(f"{where}: expected {self.label_column} to be one of {allowed}, got {label!r}")
            texts = tuple(checked_text(where, column, values[column]) for column in self.text_columns)
            if is_empty(where, dict(zip(self.text_columns, texts, strict=True)), source):
                left_out["with an empty text"] += 1
                continue
            found.append(ClassificationExample(texts, self.spellings[label]))
        return Rows(tuple(found), tuple(f"{name}: left out {count} rows {why}" for why, count in left_out.items()))

    def read_tsv(self, path: Path, source: DataSource) -> Rows[ClassificationExample]:
        """A tab-separated file with a header line, without quoting."""
        return self.examples(read_table(path, source, columns=self.columns, delimiter="\t", quoted=False), source)

    def read_hub(self, split: HubSplit, source: DataSource) -> Rows[ClassificationExample]:
        """A hub split, whose labels are numbers with names. If all are unlabelled it is left out, with a notice."""
        rows = split.rows(self.columns)
        labels = {row.values[self.label_column] for row in rows}
        if labels == {_UNLABELLED}:
            return Rows((), (f"{split.where}: left out, as none of its {len(rows)} rows has a label",))
        names = getattr(split.dataset.features[self.label_column], "names", None)
        if names is not None:
            rows = [self._named(row, names) for row in rows]
        return self.examples(rows, source)

    def _named(self, row: Row, names: list[str]) -> Row:
        number = row.values[self.label_column]
        label = names[number] if isinstance(number, int) and 0 <= number < len(names) else number
        return Row(row.where, {**row.values, self.label_column: label})


def is_empty(where: str, texts: Mapping[str, str], source: DataSource) -> bool:
    """Whether the row is to be dropped for an empty text. Raises ValueError if the source refuses such rows."""
    empty = [column for column, text in texts.items() if not text]
    if not empty or source.empty_texts == "keep":
        return False
    if source.empty_texts == "refuse":
        raise ValueError(
            f"{where}: {empty[0]} is empty; give empty_texts = 'drop' to leave such rows out, or 'keep' to use them"
        )
    return True


@dataclasses.dataclass(frozen=True)
class GlueLoader:
    """Loader of a GLUE task: TSV files by the names in `layouts`, or a configuration of `nyu-mll/glue` on the hub."""

    task: str
    labelled: Labelled
    layouts: tuple[Mapping[str, str], ...]
    config: str | None = None
    hub_splits: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"train": "train", "dev": "validation", "test": "test"}
    )

    def __call__(self, source: DataSource) -> Splits[ClassificationExample]:
        hub = HubData(name="nyu-mll/glue", config=self.config, splits=self.hub_splits, read=self.labelled.read_hub)
        layouts = tuple(Layout(files=files, read=self.labelled.read_tsv) for files in self.layouts)
        reader = Reader(task=self.task, layouts=layouts, hub=(hub,) if self.config else (), key=text_key)
        return classification_splits(reader, source)


def text_key(example: ClassificationExample) -> str:
    """Rows with the same texts stay on one side of a split."""
    return "\t".join(example.texts)
