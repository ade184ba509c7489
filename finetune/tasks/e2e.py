"""E2E: restaurant attributes to text. (Novikova et al., SIGDIAL 2017.)

Files: `src1_train.txt`, `src1_valid.txt`, `src1_test.txt`, one pair a line,
`name : Blue Spice | Type : coffee shop | area : city centre||A coffee shop in the city centre ...` (the form of
prefix-tuning, on which arXiv 2110.05679 trains); or the challenge's own `trainset.csv`, `devset.csv` and
`testset_w_refs.csv` with the columns `mr` and `ref`, whose `name[Blue Spice], eatType[coffee shop]` becomes that form
(texts and values stay untokenized there: "£30", not "£ 30"). Hub: `tuetschek/e2e_nlg`, the same 42,061 pairs. (The
hub's `GEM/e2e_nlg` is the cleaned version, with other meaning representations; it is understood too.)

Protected unit: a row, which is one (meaning representation, text) pair. A meaning representation has about 9 texts
by different writers, each a row of its own; nothing is merged for training. For evaluation the rows of one meaning
representation are one, with all its texts as references.
"""

from __future__ import annotations

import re
from pathlib import Path

from .base import DataSource, GenerationTask
from .files import checked_text, read_table, read_text
from .hub import HubSplit
from .loading import HubData, Layout, Pair, Rows
from .paired import GenerationLoader, checked_pairs, pairs_of_entries

_ATTRIBUTE = re.compile(r"\s*([^\[\],\s][^\[\],]*)\[([^\[\]]*)\]\s*(?:,|$)")
_HUB_SPLITS = {"train": "train", "dev": "validation", "test": "test"}
_KEYS = {"eatType": "Type", "priceRange": "price", "familyFriendly": "family friendly"}


def linearised_attributes(where: str, meaning: str) -> str:
    """`name[Alimentum], eatType[pub]` as `name : Alimentum | Type : pub`. Raises ValueError naming the row."""
    parts: list[str] = []
    end = 0
    while end < len(meaning):
        match = _ATTRIBUTE.match(meaning, end)
        if match is None:
            raise ValueError(f"{where}: expected a meaning representation as 'name[X], food[Y]', got {meaning!r}")
        key, value = match[1].strip(), match[2].strip()
        parts.append(f"{_KEYS.get(key, key)} : {value}")
        end = match.end()
    return " | ".join(parts)


def _read_lines(path: Path, source: DataSource) -> Rows[Pair]:
    rows = []
    for number, line in enumerate(read_text(path, source.encoding).split("\n"), start=1):
        if not line.strip():
            continue
        parts = line.split("||")
        if len(parts) != 2:
            raise ValueError(f"{path}, line {number}: expected 'attributes||text', got {len(parts)} parts in {line!r}")
        rows.append((f"{path}, line {number}", parts[0].strip(), parts[1].strip()))
    return checked_pairs(rows, source)


def _read_csv(path: Path, source: DataSource) -> Rows[Pair]:
    rows = read_table(path, source, columns=("mr", "ref"), delimiter=",", quoted=True)
    return checked_pairs(
        ((where, linearised_attributes(where, row["mr"]), row["ref"].strip()) for where, row in rows), source
    )


def _read_hub(split: HubSplit, source: DataSource) -> Rows[Pair]:
    rows = []
    for where, row in split.rows(("meaning_representation", "human_reference")):
        meaning = checked_text(where, "meaning_representation", row["meaning_representation"])
        text = checked_text(where, "human_reference", row["human_reference"])
        rows.append((where, linearised_attributes(where, meaning), text))
    return checked_pairs(rows, source)


def _read_gem(split: HubSplit, source: DataSource) -> Rows[Pair]:
    return pairs_of_entries(
        (where, linearised_attributes(where, row["meaning_representation"]), split.texts(row))
        for where, row in split.rows(("meaning_representation", "target", "references"))
    )


E2E = GenerationTask(
    name="e2e",
    protected_unit="one row: a pair of meaning representation and text; one meaning representation has many rows",
    loader=GenerationLoader(
        "e2e",
        (
            Layout(
                files={"train": "src1_train.txt", "dev": "src1_valid.txt", "test": "src1_test.txt"}, read=_read_lines
            ),
            Layout(files={"train": "trainset.csv", "dev": "devset.csv", "test": "testset_w_refs.csv"}, read=_read_csv),
        ),
        (
            HubData(name="tuetschek/e2e_nlg", config=None, splits=_HUB_SPLITS, read=_read_hub),
            HubData(name="GEM/e2e_nlg", config=None, splits=_HUB_SPLITS, read=_read_gem),
        ),
    ),
)
