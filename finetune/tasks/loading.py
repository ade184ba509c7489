"""From a data source to checked splits: which files, which hub splits, and what is held out."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from .base import DEFAULT_HUB, ClassificationExample, DataSource, GenerationExample, Splits
from .hub import HubSplit, load_hub

RowType = TypeVar("RowType")
Pair = tuple[str, str]
"""A source and one target text."""


@dataclasses.dataclass(frozen=True)
class Rows(Generic[RowType]):
    """What a file or hub split holds, and what was left out of it."""

    items: tuple[RowType, ...]
    notices: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout(Generic[RowType]):
    """One way in which the files of a task lie in a folder: split name to file name, and how to read one."""

    files: Mapping[str, str]
    read: Callable[[Path, DataSource], Rows[RowType]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HubData(Generic[RowType]):
    """A hub data set: its splits by our names (`train`, `dev`, `test`, others), and how to read one."""

    name: str
    config: str | None
    splits: Mapping[str, str]
    read: Callable[[HubSplit, DataSource], Rows[RowType]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reader(Generic[RowType]):
    """All that is needed to read one task. `read_file` is set for tasks that may be one single file."""

    task: str
    layouts: tuple[Layout[RowType], ...]
    hub: tuple[HubData[RowType], ...]
    """The task's own hub data set first; then others that are understood."""
    key: Callable[[RowType], str]
    """The text that decides on which side of a split a row falls; rows with equal keys stay together."""
    read_file: Callable[[Path, DataSource], Rows[RowType]] | None = None

    def rows(self, source: DataSource) -> tuple[dict[str, tuple[RowType, ...]], tuple[str, ...]]:
        """The rows of every split, with `train` and `dev` among them, and the notices."""
        found = self._from_files(source) if source.path is not None else self._from_hub(source)
        notices = [notice for rows in found.values() for notice in rows.notices]
        splits = {name: rows.items for name, rows in found.items() if rows.items}
        splits, said = _hold_out(self, source, splits)
        return splits, (*notices, *said)

    def _from_files(self, source: DataSource) -> dict[str, Rows[RowType]]:
        path = Path(source.path or "").expanduser()
        if path.is_file() and self.read_file is not None:
            return {"train": _not_empty(path, self.read_file(path, source))}
        if not path.is_dir():
            kind = "a folder with" if self.read_file is None else "a file, or a folder with"
            fault = "" if path.exists() else ", which does not exist"
            raise ValueError(
                f"{self.task}: expected path to be {kind} {self.expected_files()}; got {str(path)!r}{fault}"
            )
        layout = max(self.layouts, key=lambda each: sum((path / each.files[s]).is_file() for s in ("train", "dev")))
        present = {split: path / name for split, name in layout.files.items() if (path / name).is_file()}
        if not {"train", "dev"} & present.keys():
            raise ValueError(f"{self.task}: expected {self.expected_files()} in {str(path)!r}, found neither")
        return {split: _not_empty(file, layout.read(file, source)) for split, file in present.items()}

    def _from_hub(self, source: DataSource) -> dict[str, Rows[RowType]]:
        if not self.hub:
            raise ValueError(f"{self.task}: there is no hub data set for it; give a folder as path")
        name = self.hub[0].name if source.hub == DEFAULT_HUB else str(source.hub)
        known = next((each for each in self.hub if name.endswith(each.name)), self.hub[0])
        config = known.config if source.config is None else source.config
        return {split.name: known.read(split, source) for split in load_hub(name, config, known.splits, source)}

    def expected_files(self) -> str:
        """The file names that are understood, in words."""
        return ", or ".join(f"{each.files['train']} and {each.files['dev']}" for each in self.layouts)


def classification_splits(reader: Reader[ClassificationExample], source: DataSource) -> Splits[ClassificationExample]:
    """Checked splits of a classification task."""
    rows, notices = reader.rows(source)
    others = {name: items for name, items in rows.items() if name not in ("train", "dev", "test")}
    return Splits(rows["train"], rows["dev"], rows.get("test"), others, notices)


def generation_splits(reader: Reader[Pair], source: DataSource) -> Splits[GenerationExample]:
    """Checked splits of a generation task: training pairs as they are, evaluation rows by distinct source."""
    rows, notices = reader.rows(source)
    train = tuple(GenerationExample(source, target, (target,)) for source, target in rows["train"])
    grouped = {name: by_source(pairs) for name, pairs in rows.items() if name != "train"}
    others = {name: items for name, items in grouped.items() if name not in ("dev", "test")}
    return Splits(train, grouped["dev"], grouped.get("test"), others, notices)


def by_source(pairs: Sequence[Pair]) -> tuple[GenerationExample, ...]:
    """One row per distinct source, in order of first appearance, with all its target texts as references."""
    references: dict[str, list[str]] = {}
    for source, target in pairs:
        references.setdefault(source, []).append(target)
    return tuple(GenerationExample(source, texts[0], tuple(texts)) for source, texts in references.items())


def is_held_out(key: str, *, share: float, seed: int) -> bool:
    """Whether a row goes to the dev side: a hash of the public seed and of its own key alone.

    A shuffle of all rows would not do: one row more would move many others across, and the training sets of two
    neighbouring data sets would differ in more than one row, which the privacy accounting does not cover.
    """
    digest = hashlib.blake2b(f"{seed}\n{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def _hold_out(
    reader: Reader[RowType], source: DataSource, splits: dict[str, tuple[RowType, ...]]
) -> tuple[dict[str, tuple[RowType, ...]], list[str]]:
    present = [name for name in ("train", "dev") if name in splits]
    where = source.path if source.path is not None else source.hub
    if len(present) == 2:
        if source.dev_share is not None:
            raise ValueError(f"{reader.task}: {str(where)!r} has train and dev rows: leave dev_share out")
        return splits, []
    if not present:
        raise ValueError(f"{reader.task}: {str(where)!r} has neither train nor dev rows")
    missing = "dev" if present == ["train"] else "train"
    if source.dev_share is None:
        raise ValueError(
            f"{reader.task}: {str(where)!r} has no {missing} rows (expected {reader.expected_files()}); "
            "add them, or give dev_share to split the others"
        )
    sides: tuple[list[RowType], list[RowType]] = ([], [])
    for row in splits[present[0]]:
        sides[is_held_out(reader.key(row), share=source.dev_share, seed=source.split_seed)].append(row)
    if not sides[0] or not sides[1]:
        raise ValueError(
            f"{reader.task}: dev_share={source.dev_share} of {len(splits[present[0]])} rows leaves one side empty"
        )
    notice = f"{where}: no {missing} rows; {len(sides[1])} of the {len(splits[present[0]])} {present[0]} rows are dev"
    return {**splits, "train": tuple(sides[0]), "dev": tuple(sides[1])}, [notice]


def _not_empty(file: Path, rows: Rows[RowType]) -> Rows[RowType]:
    if not rows.items:
        raise ValueError(f"{str(file)!r} has no rows{''.join(f' ({notice})' for notice in rows.notices)}")
    return rows
