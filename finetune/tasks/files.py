"""Local files: tables with a header line (CSV, TSV), JSON lines, JSON. Every fault is named with file and line."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .base import DataSource


class Row(NamedTuple):
    """One row of a file: where it stands, for error messages, and its values by column."""

    where: str
    values: dict[str, Any]


@contextlib.contextmanager
def reading(path: Path, encoding: str) -> Iterator[None]:
    """Turn what goes wrong with `path` into a ValueError that names it."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{str(path)!r} is not in encoding={encoding!r} ({error.reason} at byte {error.start}): give its encoding"
        ) from error
    except LookupError as error:
        raise ValueError(f"unknown encoding={encoding!r} for {str(path)!r}: {error}") from error


def read_text(path: Path, encoding: str) -> str:
    """The whole file, line ends as they are. Raises ValueError naming the file."""
    with reading(path, encoding), path.open(encoding=_with_mark(encoding), newline="") as file:
        return file.read()


def read_table(path: Path, source: DataSource, *, columns: Sequence[str], delimiter: str, quoted: bool) -> list[Row]:
    """Rows of a delimited table with a header line; other columns than `columns` are ignored.

    Without `quoted`, a quotation mark is a letter like any other, as in the GLUE files. Raises ValueError naming
    the file and the missing column, or the line of a row with more or fewer fields than the header.
    """
    text = read_text(path, source.encoding)
    style: dict[str, Any] = {"delimiter": delimiter, "quoting": csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE}
    reader = csv.reader(io.StringIO(text, newline=""), strict=quoted, **style)
    rows: list[Row] = []
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_columns(path, header, columns)
        for fields in reader:
            if not fields:
                continue  # an empty line, such as the last one
            where = f"{path}, line {reader.line_num}"
            if len(fields) != len(header):
                raise ValueError(f"{where}: expected {len(header)} fields as in the header, got {len(fields)}")
            values = dict(zip(header, fields, strict=True))
            rows.append(Row(where, {column: values[column] for column in columns}))
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: not a delimited table: {error}") from error
    return rows


def read_json_lines(path: Path, source: DataSource, *, columns: Sequence[str]) -> list[Row]:
    """Rows of a file with one JSON object a line. Raises ValueError naming the file, the line and the column."""
    rows = []
    for number, line in enumerate(read_text(path, source.encoding).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: not a JSON object: {error}") from error
        rows.append(Row(where, _entry(where, entry, columns)))
    return rows


def read_json_list(path: Path, source: DataSource, *, columns: Sequence[str]) -> list[Row]:
    """Rows of a file that is one JSON list of objects. Raises ValueError naming the file, the entry and the column."""
    try:
        entries = json.loads(read_text(path, source.encoding))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    if not isinstance(entries, list):
        raise ValueError(f"{path}: expected a JSON list of objects, got {type(entries).__name__}")
    named = [(f"{path}, entry {number}", entry) for number, entry in enumerate(entries, start=1)]
    return [Row(where, _entry(where, entry, columns)) for where, entry in named]


def checked_text(where: str, column: str, value: Any) -> str:
    """`value` without white space at its ends. Raises ValueError if it is no text."""
    if not isinstance(value, str):
        raise ValueError(f"{where}: expected {column} to be a text, got {value!r}")
    return value.strip()


def _entry(where: str, entry: Any, columns: Sequence[str]) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: expected a JSON object, got {type(entry).__name__}")
    _check_columns(where, list(entry), columns)
    return {column: entry[column] for column in columns}


def _check_columns(where: Path | str, found: Sequence[str], wanted: Sequence[str]) -> None:
    for column in wanted:
        if (times := found.count(column)) != 1:
            fault = "no" if times == 0 else f"{times} times the"
            raise ValueError(
                f"{where}: expected the columns {', '.join(wanted)}, got {fault} column {column!r} "
                f"among: {', '.join(found) or 'none'}"
            )


def _with_mark(encoding: str) -> str:
    return "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding
