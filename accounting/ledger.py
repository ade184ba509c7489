"""The ledger: what was released, on disk before it is used, so that a crash can over-count and never under-count."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import BinaryIO

from ..mechanisms import _validate
from ._ledger_lines import Chain, Entry, is_json, is_torn_header, opened
from .api import compose_epsilon
from .interval import EpsilonInterval
from .release import Release


class Ledger:
    """An append-only list of releases, in memory or in a file of JSON lines.

    Opening an existing file continues it. A last line without its newline belongs to a record whose writing was
    interrupted, before its noisy step could be used; it is charged all the same, as itself if it is whole, else as a
    repeat of the line before it.

    Each line has a check that depends on all lines before it: one that was altered, moved or removed is refused. That
    guards against accidents and careless editing, not against somebody who writes the file anew. Lines missing at the
    *end* cannot be told from a ledger that never had them; a checkpoint knows how many there were. Ledgers of the first
    format have no checks; they are read, and continued as they are.

    Several objects and processes may record into one file; each knows the others' releases when it next records.

    Args:
        path: the file, created if missing; None keeps the ledger in memory only.

    Raises:
        ValueError: the file is not a ledger, cannot be opened, or a line of it is damaged (the error names file, line
            and field).
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._entries: dict[tuple[Release, float, float], int] = {}
        self._last: Entry | None = None
        self._chain: Chain | None = None  # None until the header was read
        self._lines = self._end = 0  # lines and bytes of the file that are taken in
        if self.path is not None:
            with opened(self.path, create=True) as file:
                self._take_in(self.path, file)

    # ---- writing -------------------------------------------------------------------------------------------

    def record(self, release: Release, *, clipping_norm: float, divisor: float) -> None:
        """Append `release`; returns only when it is on the disk.

        `clipping_norm` (C) and `divisor` (of the noisy sum) do not enter ε; they are kept for the record.
        """
        if not isinstance(release, Release):
            raise ValueError(f"expected release to be a Release, got release={release!r}")
        entry = (release, _validate.positive("clipping_norm", clipping_norm), _validate.positive("divisor", divisor))
        if self.path is None:
            self._add(entry)
            return
        with opened(self.path) as file:
            self._take_in(self.path, file)
            self._append(self.path, file, entry)

    def _append(self, path: Path, file: BinaryIO, entry: Entry) -> None:
        assert self._chain is not None
        line, chain = self._chain.write(entry)
        _write(path, file, line)
        self._accept(entry, chain, len(line))

    def _accept(self, entry: Entry, chain: Chain, size: int) -> None:
        self._chain, self._lines, self._end = chain, self._lines + 1, self._end + size
        self._add(entry)

    def _add(self, entry: Entry) -> None:
        kind = (dataclasses.replace(entry[0], steps=1), *entry[1:])
        self._entries[kind] = self._entries.get(kind, 0) + entry[0].steps
        self._last = entry

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

    def _take_in(self, path: Path, file: BinaryIO) -> None:
        """Read what stands in the file after what is known of it: all of it at first, then what others recorded."""
        if file.seek(0, os.SEEK_END) < self._end:
            raise ValueError(f"{path}: the ledger has become shorter since it was opened: releases were removed")
        file.seek(self._end)
        content = file.read()
        if self._chain is None:
            if is_torn_header(content):  # new, or cut off while its first line was written
                self._begin(path, file)
                return
            header, newline, content = content.partition(b"\n")
            self._chain = Chain.after_header(path, header)
            self._lines, self._end = 1, len(header + newline)
        *lines, torn = content.split(b"\n")
        for line in lines:
            self._accept(*self._chain.read(path, self._lines + 1, line), len(line) + 1)
        if torn:
            self._mend(path, file, torn)

    def _begin(self, path: Path, file: BinaryIO) -> None:
        line, self._chain = Chain.begin()
        _truncate(path, file, 0)
        _write(path, file, line)
        self._lines, self._end = 1, len(line)

    def _mend(self, path: Path, file: BinaryIO, torn: bytes) -> None:
        """Charge the last line: as itself if it is whole but for its newline, else as a repeat of the one before it."""
        assert self._chain is not None
        if is_json(torn):
            entry, chain = self._chain.read(path, self._lines + 1, torn)
            _write(path, file, b"\n")  # the record stays where it is: no moment without it on the disk
            self._accept(entry, chain, len(torn) + 1)
            return
        _truncate(path, file, self._end)
        if self._last is not None:
            self._append(path, file, self._last)


def _write(path: Path, file: BinaryIO, content: bytes) -> None:
    """At the end of the file; returns when it is on the disk."""
    _check_writable(path, file)
    file.seek(0, os.SEEK_END)
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def _truncate(path: Path, file: BinaryIO, size: int) -> None:
    _check_writable(path, file)
    file.truncate(size)


def _check_writable(path: Path, file: BinaryIO) -> None:
    if not file.writable():
        raise ValueError(f"cannot write to the ledger {path}: it may only be read here; check its permissions")
