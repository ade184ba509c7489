"""Ledgers that are damaged or altered: refused by file and line, or what was recorded is still charged."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys

import pytest
from damage import ODD_TEXTS, ODD_VALUES, as_json, damaged, edited, not_files, refused, without_permission
from hypothesis import given, settings
from hypothesis import strategies as st
from optnoise.accounting import Ledger, Release
from optnoise.mechanisms import Gaussian, Laplace, Tabulated

RELEASES = [
    Release(Gaussian(1.0), sampling_rate=0.01, dimension=1000),
    Release(Laplace(2.0), steps=7, dimension=math.inf),
    Release(Gaussian(0.5), steps=2, adjacency="replace_one"),
    Release(Tabulated((0.5, 2.0), (0.2, 1.0, 3.0)), dimension=1),
    Release(Gaussian(1.0), sampling_rate=0.01, dimension=1000),
]
OLD_HEADER = b'{"format": 1, "kind": "optnoise ledger"}\n'


def fill(path, releases=RELEASES):
    ledger = Ledger(path)
    for release in releases:
        ledger.record(release, clipping_norm=0.1, divisor=64.0)
    return ledger


def read(path):
    return [dataclasses.replace(release, steps=1) for release in Ledger(path).releases], Ledger(path).steps


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a ledger, and the path of another that each example writes anew."""
    folder = tmp_path_factory.mktemp("ledgers")
    fill(folder / "whole.jsonl")
    return (folder / "whole.jsonl").read_bytes(), folder / "ledger.jsonl"


def steps_after(lines):
    """What is charged after so many of the lines."""
    return sum(release.steps for release in RELEASES[:lines])


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_ledger_is_refused_or_is_a_beginning_of_the_whole_one(whole, data):
    """Nothing but a cut at the end is taken, and then all whole lines are charged, and the torn one at least once."""
    content, path = whole
    found = data.draw(damaged(content))
    path.write_bytes(found)
    if refused(lambda: Ledger(path), "ledger.jsonl") is not None:
        return
    *lines, torn = found.split(b"\n")
    kept = max(0, len(lines) - 1)
    first = [json.loads(line) for line in lines]
    assert first == [json.loads(line) for line in content.split(b"\n")[: len(first)]]
    ledger = Ledger(path)
    if torn and kept:
        assert ledger.steps >= steps_after(kept) + min(RELEASES[kept - 1].steps, steps_after(kept + 1))
    else:
        assert ledger.steps == steps_after(kept)


@settings(max_examples=300)
@given(st.data())
def test_no_edit_of_a_line_lowers_epsilon(whole, data):
    """Whatever is written into a line: it is refused, or the very same is charged."""
    content, path = whole
    header, *lines = content.splitlines()
    number = data.draw(st.integers(0, len(lines) - 1))
    lines[number] = as_json(data.draw(edited(json.loads(lines[number]))))
    path.write_bytes(b"\n".join([header, *lines]) + b"\n")
    if refused(lambda: Ledger(path), "ledger.jsonl", f"line {number + 2}") is None:
        assert json.loads(lines[number]) == json.loads(content.splitlines()[number + 1])
        assert Ledger(path).steps == steps_after(len(RELEASES))


@pytest.mark.parametrize("change", ["remove", "swap", "repeat", "move", "foreign", "fewer steps", "larger noise"])
def test_lines_that_are_altered_moved_or_removed_are_refused(tmp_path, change):
    path = tmp_path / "ledger.jsonl"
    fill(path)
    header, *lines = path.read_bytes().splitlines()
    fill(tmp_path / "other.jsonl", RELEASES[3:])
    foreign = (tmp_path / "other.jsonl").read_bytes().splitlines()[1]
    lines = {
        "remove": lines[:1] + lines[2:],
        "swap": [lines[1], lines[0], *lines[2:]],
        "repeat": [lines[0], *lines],
        "move": [*lines[1:], lines[0]],
        "foreign": [foreign, *lines[1:]],
        "fewer steps": [lines[0], lines[1].replace(b'"steps": 7', b'"steps": 1'), *lines[2:]],
        "larger noise": [lines[0].replace(b'"noise_multiplier": 1.0', b'"noise_multiplier": 9.0'), *lines[1:]],
    }[change]
    path.write_bytes(b"\n".join([header, *lines]) + b"\n")
    assert "check does not hold" in refused(lambda: Ledger(path), "ledger.jsonl, line")


@pytest.mark.parametrize("torn", [b'{"mechanism": {"format": 1', b"\x00" * 300, b"{", b"\xff"])
def test_a_torn_line_is_charged_as_all_steps_of_the_line_before_it(tmp_path, torn):
    path = tmp_path / "ledger.jsonl"
    fill(path, RELEASES[:2])
    with path.open("ab") as file:
        file.write(torn)
    assert Ledger(path).steps == 1 + 7 + 7
    assert Ledger(path).steps == 15  # mended once


def test_a_whole_last_line_that_was_altered_is_no_torn_one(tmp_path):
    path = tmp_path / "ledger.jsonl"
    fill(path, RELEASES[:2])
    path.write_bytes(path.read_bytes()[:-1].replace(b'"steps": 7', b'"steps": 1'))
    assert "line 3" in refused(lambda: Ledger(path))


def test_a_ledger_of_the_first_format_is_read_and_continued_as_it_is(tmp_path):
    path = tmp_path / "ledger.jsonl"
    fill(path)
    lines = [{k: v for k, v in json.loads(line).items() if k != "check"} for line in path.read_bytes().splitlines()[1:]]
    del lines[0]["sampling"]  # the very first ones did not have it
    path.write_bytes(OLD_HEADER + b"".join(as_json(line) + b"\n" for line in lines))
    ledger = fill(path, RELEASES[:1])
    assert ledger.steps == Ledger(path).steps == steps_after(len(RELEASES)) + 1
    assert b"check" not in path.read_bytes()


def test_a_ledger_without_its_checks_is_not_taken_for_an_old_one(tmp_path):
    path = tmp_path / "ledger.jsonl"
    fill(path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"format": 2', b'"format": 1'))
    assert "unknown field: check" in refused(lambda: Ledger(path), "line 2")
    lines = [json.loads(line) for line in content.splitlines()]
    path.write_bytes(b"".join(as_json({k: v for k, v in line.items() if k != "check"}) + b"\n" for line in lines))
    assert "missing or unknown field: check" in refused(lambda: Ledger(path), "line 2")


def test_several_writers_know_of_each_other(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first, second = Ledger(path), Ledger(path)
    for ledger in (first, second, first, first, second):
        ledger.record(RELEASES[0], clipping_norm=0.1, divisor=64.0)
    assert second.steps == Ledger(path).steps == 5
    script = (
        "import sys\nfrom optnoise.accounting import Ledger, Release\nfrom optnoise.mechanisms import Gaussian\n"
        f"ledger = Ledger({str(path)!r})\n"
        "for _ in range(40):\n    ledger.record(Release(Gaussian(1.0)), clipping_norm=1.0, divisor=1.0)\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", script], env=os.environ) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert Ledger(path).steps == 85


def test_a_ledger_that_became_shorter_under_its_writer_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = fill(path)
    path.write_bytes(b"\n".join(path.read_bytes().split(b"\n")[:3]) + b"\n")
    assert "shorter" in refused(lambda: ledger.record(RELEASES[0], clipping_norm=1, divisor=1), "ledger.jsonl")
    path.unlink()
    assert refused(lambda: ledger.record(RELEASES[0], clipping_norm=1, divisor=1), "ledger.jsonl")
    assert not path.exists()


@pytest.mark.parametrize("text", [text for text in ODD_TEXTS if text], ids=lambda text: ascii(text[:12]))
def test_odd_texts_are_no_ledger(tmp_path, text):
    path = tmp_path / "ledger.jsonl"
    for content in (text, text + b"\n"):
        path.write_bytes(content)
        assert refused(lambda: Ledger(path), "ledger.jsonl, line 1")
        assert path.read_bytes() == content  # a foreign file is left as it is
    fill(tmp_path / "begun.jsonl", RELEASES[:1])
    path.write_bytes((tmp_path / "begun.jsonl").read_bytes() + text + b"\n")
    assert refused(lambda: Ledger(path), "ledger.jsonl, line 3")


@given(ODD_VALUES)
def test_odd_headers(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "ledger.jsonl"
    path.write_bytes(as_json({"format": value, "kind": "optnoise ledger"}) + b"\n")
    assert (refused(lambda: Ledger(path), "ledger.jsonl, line 1") is None) == (value == 1)


def test_what_is_no_file_is_no_ledger(tmp_path):
    for path in not_files(tmp_path):
        assert refused(lambda path=path: Ledger(path), path.name)
    path = tmp_path / "ledger.jsonl"
    fill(path)
    assert refused(lambda: Ledger(without_permission(path)), "ledger.jsonl")
