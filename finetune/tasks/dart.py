"""DART: sets of triples to text. (Nan et al., NAACL 2021; version 1.1.1.)

Files: `dart-v1.1.1-full-train.json`, `dart-v1.1.1-full-dev.json`, `dart-v1.1.1-full-test.json`, each a JSON list of
entries with `tripleset` (list of [subject, predicate, object]) and `annotations` (list of {source, text}). Without
the training file, `DataSource(dev_share=...)` splits the dev file by triple set. Hub: `Yale-LILY/dart`, with the same
columns; those of `GEM/dart` (`tripleset`, `target`, `references`) are understood too.

Source text: `subject : predicate : object | ...` with the predicate in small letters, as prefix-tuning
(arXiv 2101.00190) and arXiv 2110.05679 write it. Empty texts are left out, with a notice.

Protected unit: a row, which is one (triple set, text) pair; a triple set has several texts. Evaluation rows are one
per distinct triple set: entries with the same triples are one row with the texts of both (the 5,097 entries of the
test file are 4,159 rows), where the papers score each entry on its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .base import DataSource, GenerationTask
from .files import read_json_list
from .hub import HubSplit
from .loading import HubData, Layout, Pair, Rows
from .paired import GenerationLoader, linearised, pairs_of_entries

_HUB_SPLITS = {"train": "train", "dev": "validation", "test": "test"}


def _texts(where: str, annotations: Any) -> list[Any]:
    """The texts of a list of {source, text}; the hub also gives one {source: [...], text: [...]}."""
    if isinstance(annotations, dict) and isinstance(annotations.get("text"), list):
        return annotations["text"]
    if not isinstance(annotations, list) or not all(isinstance(each, dict) and "text" in each for each in annotations):
        raise ValueError(f"{where}: expected annotations to be a list of objects with a text, got {annotations!r}")
    return [each["text"] for each in annotations]


def _source(where: str, tripleset: Any) -> str:
    return linearised(where, tripleset, lower_predicate=True)


def _read_json(path: Path, source: DataSource) -> Rows[Pair]:
    rows = read_json_list(path, source, columns=("tripleset", "annotations"))
    return pairs_of_entries(
        (where, _source(where, row["tripleset"]), _texts(where, row["annotations"])) for where, row in rows
    )


def _read_hub(split: HubSplit, source: DataSource) -> Rows[Pair]:
    return pairs_of_entries(
        (where, _source(where, row["tripleset"]), _texts(where, row["annotations"]))
        for where, row in split.rows(("tripleset", "annotations"))
    )


def _read_gem(split: HubSplit, source: DataSource) -> Rows[Pair]:
    return pairs_of_entries(
        (where, _source(where, row["tripleset"]), split.texts(row))
        for where, row in split.rows(("tripleset", "target", "references"))
    )


DART = GenerationTask(
    name="dart",
    protected_unit="one row: a pair of triple set and text; one triple set may have several rows",
    loader=GenerationLoader(
        "dart",
        (
            Layout(
                files={split: f"dart-v1.1.1-full-{split}.json" for split in ("train", "dev", "test")},
                read=_read_json,
            ),
        ),
        (
            HubData(name="Yale-LILY/dart", config=None, splits=_HUB_SPLITS, read=_read_hub),
            HubData(name="GEM/dart", config=None, splits=_HUB_SPLITS, read=_read_gem),
        ),
    ),
)
