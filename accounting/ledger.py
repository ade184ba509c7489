"""The ledger: what was released, on disk before it is used, so that a crash can over-count and never under-count."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ..mechanisms import _validate, from_spec
from ..mechanisms._json import read_json
from .api import compose_epsilon
from .interval import EpsilonInterval
from .release import POISSON, Release

_HEADER = {"format": 1, "kind": "optnoise ledger"}
_FIELDS = {"mechanism", "steps", "sampling_rate", "dimension", "adjacency", "shift", "clipping_norm", "divisor"}
_OPTIONAL = {"sampling"}  # absent from ledgers of the first version, which knew Poisson sampling only


class Ledger:
    """An append-only list of releases, in memory or in a file of JSON lines.

    Opening an existing file continues it. A last line without its newline belongs to a record whose writing was
    interrupted, before its noisy step could be used; it is charged all the same, as itself if it is whole, else as a
    repeat of the line before it.

    Args:
        path: the file, created if missing; None keeps the ledger in memory only.

    Raises:
        ValueError: the file is not a ledger, or a line of it is damaged (the error names file, line and field).
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._entries: dict[tuple[Release, float, float], int] = {}
        self._last: tuple[Release, float, float] | None = None
        if self.path is not None:
            self._open(self.path)

    # ---- writing -------------------------------------------------------------------------------------------

    def record(self, release: Release, *, clipping_norm: float, divisor: float) -> None:
        """Append `release`; returns only when it is on the disk.

        `clipping_norm` (C) and `divisor` (of the noisy sum) do not enter ε; they are kept for the record.
        """
        if not isinstance(release, Release):
            raise ValueError(f"expected release to be a Release, got release={release!r}")
        entry = (release, _validate.positive("clipping_norm", clipping_norm), _validate.positive("divisor", divisor))
        if self.path is not None:
            with self.path.open("ab") as file:
                _write_line(file, _to_json(*entry))
        self._add(entry)

    def _add(self, entry: tuple[Release, float, float]) -> None:
        kind = (dataclasses.replace(entry[0], steps=1), *entry[1:])
        self._entries[kind] = self._entries.get(kind, 0) + entry[0].steps
        self._last = kind

    def in_memory(self) -> Ledger:
        """A copy of the entries so far without a file: for the other processes of a run, which follow the writer."""
        copy = Ledger()
        copy._entries, copy._last = dict(self._entries), self._last
        return copy

    # ---- reading -------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Number of releases recorded."""
        return sum(self._entries.values())

    @property
    def releases(self) -> list[Release]:
        """One `Release` for each kind recorded, with its number of steps; reading changes nothing."""
        return [dataclasses.replace(release, steps=steps) for (release, _, _), steps in self._entries.items()]

    def epsilon(
        self, *, delta: float, further_steps: int = 0, accountant: str = "best", relative_width: float = 1e-3
    ) -> EpsilonInterval:
        """ε of everything recorded and of `further_steps` >= 0 more of the latest kind; reading changes nothing."""
        _validate.integer("further_steps", further_steps, minimum=0)
        releases = self.releases
        if further_steps:
            if self._last is None:
                raise ValueError(f"expected further_steps=0 for an empty ledger, got further_steps={further_steps}")
            releases.append(dataclasses.replace(self._last[0], steps=further_steps))
        return compose_epsilon(releases, delta=delta, accountant=accountant, relative_width=relative_width)

    def _open(self, path: Path) -> None:
        content = path.read_bytes() if path.exists() else b""
        if _header_line().startswith(content):  # new, or cut off while its first line was written
            with path.open("wb") as file:
                _write_line(file, _HEADER)
            return
        *lines, torn = content.split(b"\n")
        if not lines or _read_json(path, 1, lines[0]) != _HEADER:
            raise ValueError(f"{path}, line 1: expected the ledger header {json.dumps(_HEADER)}")
        for number, line in enumerate(lines[1:], start=2):
            self._add(_from_json(path, number, _read_json(path, number, line)))
        if torn:
            self._mend(path, torn, number=len(lines) + 1)

    def _mend(self, path: Path, torn: bytes, *, number: int) -> None:
        """Charge the last line: as itself if it is whole but for its newline, else as a repeat of the one before it."""
        try:
            whole = _from_json(path, number, _read_json(path, number, torn))
        except ValueError:
            whole = None
        with path.open("r+b") as file:
            if whole is None:
                file.truncate(path.stat().st_size - len(torn))
            else:  # it stays where it is: no moment without it on the disk
                file.seek(0, os.SEEK_END)
                file.write(b"\n")
                file.flush()
            os.fsync(file.fileno())
        if whole is not None:
            self._add(whole)
        elif self._last is not None:
            release, clipping_norm, divisor = self._last
            self.record(release, clipping_norm=clipping_norm, divisor=divisor)


def _header_line() -> bytes:
    return json.dumps(_HEADER).encode() + b"\n"


def _write_line(file: BinaryIO, document: Mapping[str, Any]) -> None:
    file.write(json.dumps(document, allow_nan=False).encode() + b"\n")
    file.flush()
    os.fsync(file.fileno())


def _to_json(release: Release, clipping_norm: float, divisor: float) -> dict[str, Any]:
    return {
        "mechanism": release.mechanism.spec(),
        "steps": int(release.steps),
        "sampling_rate": float(release.sampling_rate),
        "dimension": "inf" if release.dimension == math.inf else release.dimension,
        "adjacency": release.adjacency,
        "sampling": release.sampling,
        "shift": release.shift,
        "clipping_norm": clipping_norm,
        "divisor": divisor,
    }


def _read_json(path: Path, number: int, line: bytes) -> Any:
    try:
        return read_json(line)
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: not JSON ({error})") from error


def _from_json(path: Path, number: int, document: Any) -> tuple[Release, float, float]:
    try:
        if not isinstance(document, dict) or set(document) - _OPTIONAL != _FIELDS:
            is_object = isinstance(document, dict)
            odd = sorted((set(document) - _OPTIONAL) ^ _FIELDS) if is_object else [type(document).__name__]
            raise ValueError(f"missing or unknown field: {', '.join(odd)}")
        release = Release(
            from_spec(document["mechanism"]),
            steps=document["steps"],
            sampling_rate=document["sampling_rate"],
            dimension=math.inf if document["dimension"] == "inf" else document["dimension"],
            adjacency=document["adjacency"],
            sampling=document.get("sampling", POISSON),
        )
        if document["shift"] != release.shift:
            raise ValueError(f"expected shift={release.shift} for {release.adjacency}, got shift={document['shift']}")
        norms = [_validate.positive(name, document[name]) for name in ("clipping_norm", "divisor")]
        return release, norms[0], norms[1]
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: {error}") from error
