"""A person's own table: texts and labels, or sources and targets, in a CSV, TSV or JSON-lines file.

`DataSource.path` is one file, split by `dev_share`, or a folder with `train.csv`, `dev.csv` and perhaps `test.csv`
(or `.tsv`, `.jsonl`). CSV fields may be quoted; TSV fields are taken as they stand, unless `quoted` says otherwise.

Protected unit: a row. If one person wrote several rows, a guarantee for a row is weaker for the person.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from .base import (
    ClassificationExample,
    ClassificationTask,
    DataSource,
    GenerationExample,
    GenerationSettings,
    GenerationTask,
    Prompt,
    Splits,
)
from .files import Row, checked_text, read_json_lines, read_table
from .labelled import Labelled, text_key
from .loading import Layout, Pair, Reader, Rows, classification_splits, generation_splits
from .paired import checked_pairs, source_key

_DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_ROW = "one row of the table"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableFormat:
    """How a delimited file is written; by default by its name: comma and quotes for .csv, bare tabs for .tsv, .txt."""

    delimiter: str | None = None
    quoted: bool | None = None

    def __post_init__(self) -> None:
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '\r\n"'):
            raise ValueError(
                f"expected a delimiter of one character, not a quote or line break, got {self.delimiter!r}"
            )

    def rows(self, path: Path, source: DataSource, columns: Sequence[str]) -> list[Row]:
        """Rows of a table or JSON-lines file. Raises ValueError if the name does not say which, or as the readers."""
        if path.suffix == ".jsonl":
            return read_json_lines(path, source, columns=columns)
        delimiter = self.delimiter or _DELIMITERS.get(path.suffix)
        if delimiter is None:
            raise ValueError(f"expected {str(path)!r} to end in .csv, .tsv, .txt or .jsonl; or give its delimiter")
        quoted = delimiter != "\t" if self.quoted is None else self.quoted
        return read_table(path, source, columns=columns, delimiter=delimiter, quoted=quoted)


def delimited_classification(
    *,
    text_columns: Sequence[str],
    label_column: str,
    labels: Sequence[str],
    ignored_labels: Sequence[str] = (),
    prompt: Prompt | None = None,
    delimiter: str | None = None,
    quoted: bool | None = None,
    positive_label: str | None = None,
    name: str = "delimited",
    protected_unit: str = _ROW,
) -> ClassificationTask:
    """A classification task on a table of one's own: one text column, or two for pairs.

    `labels` are the labels as the file spells them; their order numbers the classes. Rows with one of
    `ignored_labels` are left out, with a notice. `positive_label` adds its F1 to the metrics. Raises ValueError if
    columns or labels repeat, there are fewer than two labels, or the prompt does not fit.
    """
    _distinct("text_columns and label_column", (*text_columns, label_column))
    _distinct("labels and ignored_labels", (*labels, *ignored_labels))
    _check_shape(text_columns, labels, prompt, positive_label)
    labelled = Labelled(
        text_columns=tuple(text_columns),
        label_column=label_column,
        spellings={label: number for number, label in enumerate(labels)},
        ignored_labels=tuple(ignored_labels),
    )
    return ClassificationTask(
        name=name,
        labels=tuple(labels),
        prompt=prompt,
        protected_unit=protected_unit,
        positive_label=None if positive_label is None else list(labels).index(positive_label),
        loader=_LabelledLoader(name, labelled, TableFormat(delimiter=delimiter, quoted=quoted)),
    )


def delimited_generation(
    *,
    source_column: str,
    target_column: str,
    generation: GenerationSettings | None = None,
    delimiter: str | None = None,
    quoted: bool | None = None,
    name: str = "delimited",
    protected_unit: str = _ROW,
) -> GenerationTask:
    """A generation task on a table of one's own. For evaluation, rows with the same source are one row.

    Raises ValueError if both columns are the same.
    """
    _distinct("source_column and target_column", (source_column, target_column))
    return GenerationTask(
        name=name,
        protected_unit=protected_unit,
        generation=generation or GenerationSettings(),
        loader=_PairLoader(name, source_column, target_column, TableFormat(delimiter=delimiter, quoted=quoted)),
    )


@dataclasses.dataclass(frozen=True)
class _LabelledLoader:
    task: str
    labelled: Labelled
    form: TableFormat

    def __call__(self, source: DataSource) -> Splits[ClassificationExample]:
        layouts = tuple(Layout(files=files, read=self._read) for files in _folder_layouts())
        reader = Reader(task=self.task, layouts=layouts, hub=(), key=text_key, read_file=self._read)
        return classification_splits(reader, source)

    def _read(self, path: Path, source: DataSource) -> Rows[ClassificationExample]:
        return self.labelled.examples(self.form.rows(path, source, self.labelled.columns), source)


@dataclasses.dataclass(frozen=True)
class _PairLoader:
    task: str
    source_column: str
    target_column: str
    form: TableFormat

    def __call__(self, source: DataSource) -> Splits[GenerationExample]:
        layouts = tuple(Layout(files=files, read=self._read) for files in _folder_layouts())
        reader = Reader(task=self.task, layouts=layouts, hub=(), key=source_key, read_file=self._read)
        return generation_splits(reader, source)

    def _read(self, path: Path, source: DataSource) -> Rows[Pair]:
        columns = (self.source_column, self.target_column)
        rows = self.form.rows(path, source, columns)
        texts = ((where, *(checked_text(where, column, row[column]) for column in columns)) for where, row in rows)
        return checked_pairs(((where, first, second) for where, first, second in texts), source)


def _folder_layouts() -> list[Mapping[str, str]]:
    return [{split: f"{split}{suffix}" for split in ("train", "dev", "test")} for suffix in (".tsv", ".csv", ".jsonl")]


def _distinct(what: str, names: Sequence[str]) -> None:
    if len(set(names)) != len(names) or not all(names):
        raise ValueError(f"expected {what} to be distinct and not empty, got {', '.join(map(repr, names))}")


def _check_shape(
    text_columns: Sequence[str], labels: Sequence[str], prompt: Prompt | None, positive_label: str | None
) -> None:
    if len(text_columns) not in (1, 2) or isinstance(text_columns, str):
        raise ValueError(f"expected one text column, or two for pairs, got text_columns={text_columns!r}")
    if len(labels) < 2:
        raise ValueError(f"expected at least two labels, got labels={list(labels)!r}")
    if positive_label is not None and positive_label not in labels:
        raise ValueError(f"expected positive_label to be one of {', '.join(labels)}, got {positive_label!r}")
    if prompt is not None and prompt.arity != len(text_columns):
        raise ValueError(f"expected a template for {len(text_columns)} texts, got {prompt.template!r}")
