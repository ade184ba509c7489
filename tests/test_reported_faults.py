"""The table of reported faults (docs/reported_faults.md) against the tests that there are."""

from __future__ import annotations

import re

import pytest
from named_tests import ALL, TESTS

TABLE = (TESTS.parent / "docs" / "reported_faults.md").read_text(encoding="utf-8")
ROWS = {
    line.split("|")[1].strip(): re.findall(r"`(test_[\w/]+\.py::\w+)`", line.split("|")[4])
    for line in TABLE.splitlines()
    if re.match(r"\| B\d\d ", line)
}


def numbers(text: str) -> set[str]:
    """The rows named in a text: B54, b54_, or several of them."""
    return {found.upper() for found in re.findall(r"(?<![A-Za-z0-9])[bB]\d\d(?!\d)", text.replace("_", " "))}


def test_the_table_has_its_rows_once():
    assert len(ROWS) == len(re.findall(r"^\| B\d\d ", TABLE, flags=re.MULTILINE)) >= 50
    assert list(ROWS) == sorted(ROWS)


@pytest.mark.parametrize("row", ROWS)
def test_every_test_that_the_table_names_exists(row):
    assert ROWS[row], f"{row} names no test"
    assert [name for name in ROWS[row] if name not in ALL] == []
    assert any(row in numbers(ALL[name]) for name in ROWS[row]), f"no test of {row} says its number"


def test_every_numbered_test_stands_in_the_table():
    missing = [
        f"{row}: {name}"
        for name, text in ALL.items()
        if not name.startswith("test_reported_faults.py")
        for row in sorted(numbers(text))
        if name not in ROWS.get(row, ())
    ]
    assert missing == []
