"""Sources and target texts, shared by the generation tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from .base import DataSource, GenerationExample, Splits
from .labelled import is_empty
from .loading import HubData, Layout, Pair, Reader, Rows, generation_splits


@dataclasses.dataclass(frozen=True)
class GenerationLoader:
    """Loader of a generation task: files in one of `layouts`, or a hub data set."""

    task: str
    layouts: tuple[Layout[Pair], ...]
    hub: tuple[HubData[Pair], ...] = ()

    def __call__(self, source: DataSource) -> Splits[GenerationExample]:
        return generation_splits(Reader(task=self.task, layouts=self.layouts, hub=self.hub, key=source_key), source)


def source_key(pair: Pair) -> str:
    """Rows with the same source stay on one side of a split."""
    return pair[0]


def checked_pairs(rows: Iterable[tuple[str, str, str]], source: DataSource) -> Rows[Pair]:
    """Pairs of (where, source text, target text). Raises ValueError naming the row of an empty text."""
    pairs: list[Pair] = []
    dropped, name = 0, ""
    for where, text, target in rows:
        name = where.rpartition(",")[0]
        if is_empty(where, {"the source": text, "the target": target}, source):
            dropped += 1
        else:
            pairs.append((text, target))
    return Rows(tuple(pairs), (f"{name}: left out {dropped} rows with an empty text",) if dropped else ())


def linearised(where: str, triples: Any, *, lower_predicate: bool = False) -> str:
    """Triples as `subject : predicate : object | ...`, the form of prefix-tuning (arXiv 2101.00190).

    Raises ValueError naming the row if `triples` is not a non-empty list of three texts each.
    """
    if not isinstance(triples, Sequence) or isinstance(triples, str) or not triples:
        raise ValueError(f"{where}: expected a non-empty list of triples, got {triples!r}")
    parts = []
    for triple in triples:
        if isinstance(triple, str) or len(triple) != 3 or not all(isinstance(part, str) for part in triple):
            raise ValueError(f"{where}: expected triples of three texts each, got {triple!r}")
        subject, predicate, target = (part.strip() for part in triple)
        parts.append(f"{subject} : {predicate.lower() if lower_predicate else predicate} : {target}")
    return " | ".join(parts)


def pairs_of_entries(entries: Iterable[tuple[str, str, Sequence[Any]]]) -> Rows[Pair]:
    """Pairs from entries of (where, source, texts). Empty texts, and entries without any, are left out with a notice.

    The published files hold a few of them. Raises ValueError naming the row if a text is none.
    """
    pairs: list[Pair] = []
    empty, without, name = 0, 0, ""
    for where, source, texts in entries:
        name = where.rpartition(",")[0]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{where}: expected a list of texts, got {list(texts)!r}")
        written = [text.strip() for text in texts if text.strip()]
        empty += len(texts) - len(written)
        without += not written
        pairs += [(source, text) for text in written]
    notices = []
    if empty:
        notices.append(f"{name}: left out {empty} empty texts")
    if without:
        notices.append(f"{name}: left out {without} entries without a text")
    return Rows(tuple(pairs), tuple(notices))
