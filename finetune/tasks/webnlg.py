"""WebNLG, challenge of 2017: sets of triples to text. (Gardent et al., INLG 2017.)

Files: `train.jsonl`, `dev.jsonl`, `test.jsonl`, and `test_unseen.jsonl` for the part of the test set whose categories
are not in training; one JSON object a line with `triples` (list of [subject, property, object]) and `texts` (the
references marked "good"). Hub: `webnlg-challenge/web_nlg`, configuration `webnlg_challenge_2017`. (`GEM/web_nlg` is
the challenge of 2020, another data set; it is understood too.)

Source text: `subject : property : object | ...`, as prefix-tuning (arXiv 2101.00190) writes it, underscores kept.
Entries without a text (5 in training, 1 in dev) are left out, with a notice.

Protected unit: a row, which is one (triple set, text) pair; a triple set has up to several texts. Evaluation rows are
one per distinct triple set, with all its texts as references.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .base import DataSource, GenerationTask
from .files import read_json_lines
from .hub import HubSplit
from .loading import HubData, Layout, Pair, Rows
from .paired import GenerationLoader, linearised, pairs_of_entries


def _read_json_lines(path: Path, source: DataSource) -> Rows[Pair]:
    entries = []
    for where, row in read_json_lines(path, source, columns=("triples", "texts")):
        if not isinstance(row["texts"], list):
            raise ValueError(f"{where}: expected texts to be a list, got {row['texts']!r}")
        entries.append((where, linearised(where, row["triples"]), row["texts"]))
    return pairs_of_entries(entries)


def _parts(where: str, triples: list[str]) -> str:
    return linearised(where, [triple.split(" | ") for triple in triples])


def _good_texts(lexicalisations: Any) -> list[Any]:
    """Texts marked "good", from a list of {comment, text} or one {comment: [...], text: [...]}."""
    if isinstance(lexicalisations, dict):
        marked = zip(lexicalisations["comment"], lexicalisations["text"], strict=True)
    else:
        marked = ((each["comment"], each["text"]) for each in lexicalisations)
    return [text for comment, text in marked if comment == "good"]


def _modified(sets: Any) -> list[str]:
    """The modified triple set, from a list of {mtriple_set} or one {mtriple_set: [...]}."""
    return sets["mtriple_set"][0] if isinstance(sets, dict) else sets[0]["mtriple_set"]


def _read_hub(split: HubSplit, source: DataSource) -> Rows[Pair]:
    return pairs_of_entries(
        (where, _parts(where, _modified(row["modified_triple_sets"])), _good_texts(row["lex"]))
        for where, row in split.rows(("modified_triple_sets", "lex"))
    )


def _read_gem(split: HubSplit, source: DataSource) -> Rows[Pair]:
    return pairs_of_entries(
        (where, _parts(where, row["input"]), split.texts(row))
        for where, row in split.rows(("input", "target", "references"))
    )


WEBNLG = GenerationTask(
    name="webnlg",
    protected_unit="one row: a pair of triple set and text; one triple set may have several rows",
    loader=GenerationLoader(
        "webnlg",
        (
            Layout(
                files={name: f"{name}.jsonl" for name in ("train", "dev", "test", "test_unseen")},
                read=_read_json_lines,
            ),
        ),
        (
            HubData(
                name="webnlg-challenge/web_nlg",
                config="webnlg_challenge_2017",
                splits={"train": "train", "dev": "dev", "test": "test"},
                read=_read_hub,
            ),
            HubData(
                name="GEM/web_nlg",
                config="en",
                splits={"train": "train", "dev": "validation", "test": "test"},
                read=_read_gem,
            ),
        ),
    ),
)
