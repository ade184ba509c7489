"""The table of promises (docs/guarantees.md) against the tests that there are."""

from __future__ import annotations

import re

import pytest
from named_tests import ALL, TESTS

PAGE = (TESTS.parent / "docs" / "guarantees.md").read_text(encoding="utf-8")
PROMISES = {
    line.split("|")[1].strip(): re.findall(r"`(test_[\w/]+\.py::\w+)`", line.split("|")[3])
    for line in PAGE.splitlines()
    if line.startswith("| ") and "::" in line
}


def test_the_table_is_read():
    assert len(PROMISES) == len([line for line in PAGE.splitlines() if line.count("|") == 4]) - 2


@pytest.mark.parametrize("promise", PROMISES)
def test_every_promise_names_tests_that_exist(promise):
    assert PROMISES[promise], f"no test of {promise!r}"
    assert [name for name in PROMISES[promise] if name not in ALL] == []
