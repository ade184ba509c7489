"""The table of promises (docs/guarantees.md) against the tests that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "guarantees.md").read_text(encoding="utf-8")
PROMISES = {
    line.split("|")[1].strip(): re.findall(r"`(test_[\w/]+\.py)::(\w+)`", line.split("|")[3])
    for line in PAGE.splitlines()
    if line.startswith("| ") and "::" in line
}


def test_the_table_is_read():
    assert len(PROMISES) == len([line for line in PAGE.splitlines() if line.count("|") == 4]) - 2


@pytest.mark.parametrize("promise", PROMISES)
def test_every_promise_names_tests_that_exist(promise):
    assert PROMISES[promise], f"no test of {promise!r}"
    for file, name in PROMISES[promise]:
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file}::{name}"
