"""A folder of finished parts of searches, so that a search that was stopped goes on where it was.

One JSON file for each problem and family, named by a hash of all that decides the answer: the problem, the family, the
number of noises asked for, the seed, and the version of this package. Files are written whole or not at all, so many
processes may share a folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from .. import __version__
from ..mechanisms._json import write_json
from .problem import Problem
from .result import SearchEntry

_FORMAT = 1
_FIELDS = {"part", "entries", "left_out"}


@final
@dataclasses.dataclass(frozen=True)
class Finished:
    """What a family came to: its entries, or the reason why it was left out."""

    entries: tuple[SearchEntry, ...] = ()
    left_out: str | None = None


@final
class Store:
    """The parts that `folder` holds; it is made where it is missing.

    Raises ValueError where the folder cannot be made, and for a problem with a cost function: a function has no text by
    which it could be recognised again.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"cannot use resume={str(folder)!r} as a folder: {error.strerror}") from error

    def check(self, problem: Problem) -> None:
        """ValueError for a problem whose parts cannot be kept."""
        _part(problem, "", 1, 0)

    def read(self, problem: Problem, family: str, *, top: int, seed: int) -> Finished | None:
        """The finished part, or None. A damaged file, or one that breaks the budget, is a ValueError with its name."""
        part = _part(problem, family, top, seed)
        path = self._path(part)
        if not path.is_file():
            return None
        try:
            return _checked(json.loads(path.read_text(encoding="utf-8")), part, problem)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{str(path)!r} is not a finished part of this search ({error}); delete it") from error

    def write(self, problem: Problem, family: str, finished: Finished, *, top: int, seed: int) -> None:
        """Keep a finished part."""
        part = _part(problem, family, top, seed)
        entries = [entry.document() for entry in finished.entries]
        write_json(self._path(part), {"part": part, "entries": entries, "left_out": finished.left_out})

    def _path(self, part: dict[str, Any]) -> Path:
        text = json.dumps(part, sort_keys=True, allow_nan=False)
        return self.folder / f"{part['family']}-{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def _part(problem: Problem, family: str, top: int, seed: int) -> dict[str, Any]:
    if problem.cost_kind == "callable":
        raise ValueError(
            f"expected a cost given by name with resume, got the function cost={problem.cost_name!r}: a finished part "
            "could not be recognised; leave resume out"
        )
    return {
        "format": _FORMAT,
        "version": __version__,
        "problem": problem.document(),
        "family": family,
        "top": top,
        "seed": seed,
    }


def _checked(document: dict[str, Any], part: dict[str, Any], problem: Problem) -> Finished:
    if set(document) != _FIELDS or document["part"] != part:
        raise ValueError("it answers another question")
    entries = tuple(SearchEntry.from_document(entry) for entry in document["entries"])
    _check_budget(entries, problem)
    if not entries and not document["left_out"]:
        raise ValueError("it is empty")
    return Finished(entries, document["left_out"])


def _check_budget(entries: Sequence[SearchEntry], problem: Problem) -> None:
    for entry in entries:
        if len(entry.intervals) != len(problem.constraints):
            raise ValueError("it lacks an ε interval")
        for interval, asked in zip(entry.intervals, problem.constraints, strict=True):
            if not interval.upper <= asked.epsilon:
                raise ValueError(f"its epsilon {interval.upper} exceeds the target {asked.epsilon}")
