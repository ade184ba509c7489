"""Ways in which files are damaged or hostile, as hypothesis strategies, and files that are none."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

ODD_VALUES = st.sampled_from(
    [
        None,
        True,
        False,
        "",
        "nan",
        "inf",
        "\ud800",
        "\x00",
        "x" * 5000,
        0,
        -1,
        0.5,
        -0.0,
        1e-320,
        1e308,
        -1e308,
        float("nan"),
        float("inf"),
        10**18,
        2**64,
        10**400,
        [],
        [[]],
        {},
        {"format": 1},
        [1, 2],
        list(range(200)),
    ]
).map(copy.deepcopy)
ODD_TEXTS = [
    b"",
    b"\x00" * 64,
    b"\xff\xfe{\x00}\x00",  # UTF-16
    b"\xef\xbb\xbf{}",  # a byte order mark
    b"\x80\x81",
    b"null",
    b"3",
    b'"text"',
    b"[]",
    b"{}",
    b'{"a": 1, "a": 2}',
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"[" * 900 + b"]" * 900,
    b'{"parameters":' * 400 + b"1" + b"}" * 400,
    b"1" * 10_000,
    b'{"format": ' + b"9" * 5000 + b"}",
    b"NaN",
    b"-Infinity",
    b'{"\\ud800": "\\udfff"}',
    b"\x80\x04\x95cos\nsystem\n",  # a pickle
]


@st.composite
def damaged(draw: Callable, content: bytes) -> bytes:
    """`content` with a few bytes changed, cut out, put in, moved, repeated, or its end cut off."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from([1, 1, 2, 8, 60, 400])))
        kind = draw(st.sampled_from(["flip", "cut", "end", "insert", "repeat", "zero"]))
        part = content[start:end]
        if kind == "flip":
            part = bytes(byte ^ (1 << draw(st.integers(0, 7))) for byte in part[:2]) + part[2:]
        elif kind == "zero":
            part = bytes(len(part))
        content = {
            "cut": content[:start] + content[end:],
            "end": content[:start],
            "insert": content[:start] + draw(st.binary(min_size=1, max_size=8)) + content[start:],
            "repeat": content[:end] + part + content[end:],
        }.get(kind, content[:start] + part + content[end:])
    return content


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every node of a JSON document, the root's first."""
    found = [path]
    if isinstance(document, dict | list):
        for key, value in document.items() if isinstance(document, dict) else enumerate(document):
            found += places(value, (*path, key))
    return found


@st.composite
def edited(draw: Callable, document: Any) -> Any:
    """The document with one to three nodes replaced, removed, renamed, or given a neighbour."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        below = [path for path in places(document) if path]
        if not below:
            break
        *parents, key = draw(st.sampled_from(below))
        target = document
        for part in parents:
            target = target[part]
        kind = draw(st.sampled_from(["replace", "replace", "remove", "rename", "add"]))
        if kind == "replace" or isinstance(target, list):
            target[key] = draw(ODD_VALUES)
        elif kind == "remove":
            del target[key]
        else:
            target[draw(st.sampled_from(["new", "", "\ud800", "steps", "format"]))] = (
                target.pop(key) if kind == "rename" else draw(ODD_VALUES)
            )
    return document


def as_json(document: Any) -> bytes:
    """As Python writes it: NaN and infinities by name, as many damaged files have them."""
    return json.dumps(document).encode()


def not_files(folder: Path) -> list[Path]:
    """Paths where a file is expected, and none is: a folder, links that lead nowhere or in circles, a pipe."""
    made = [folder / name for name in ("folder", "dangling", "circle", "pipe")]
    made[0].mkdir()
    made[1].symlink_to(folder / "nowhere" / "at all")
    made[2].symlink_to(made[2])
    os.mkfifo(made[3])
    return [*made, folder / ("long" * 100)]


def without_permission(path: Path) -> Path:
    """The file with all permissions taken away; skips the test where that means nothing."""
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    return path


def refused(read: Callable[[], Any], *names: str) -> str | None:
    """None if `read` takes it, else its ValueError as one line, which must name all of `names`. Nothing else is let
    through."""
    try:
        read()
    except ValueError as error:
        text = str(error)
        assert all(name in text for name in names), f"{text!r} does not name {names}"
        text.encode("utf-8")  # it can be printed
        return text
    return None
