"""What a search found: one JSON file that is written whole or not at all and read back equal.

Numbers that are not finite are null in the file, so that any JSON reader takes it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, final

from rich.table import Table

from ..accounting import EpsilonInterval, rounded_down, rounded_up
from ..mechanisms import Mechanism, from_spec, independent
from ..mechanisms._json import write_json
from .problem import Problem

_LONGEST_LIST = 4  # numbers of a noise that a table shows
RESULT_FORMAT = 2  # version of the JSON document that `save` writes
_ENTRY_FIELDS = {"mechanism", "family", "cost", "gaussian_cost", "epsilon", "also_epsilon", "binding"}


@final
@dataclasses.dataclass(frozen=True)
class SearchEntry:
    """One noise at the budget. `epsilon.upper` is the guarantee; `cost` and `gaussian_cost` are in the problem's unit.

    `gaussian_cost` is the cost of the Gaussian calibrated to the same budget by the same package. `also_epsilon` holds
    the intervals under the further constraints of the problem (`Problem.also`), and `binding` the number of the one
    that decided the scale: 0 for the problem's own, i for `also[i-1]`.
    """

    mechanism: Mechanism
    cost: float
    gaussian_cost: float
    epsilon: EpsilonInterval
    also_epsilon: tuple[EpsilonInterval, ...] = ()
    binding: int = 0

    @property
    def intervals(self) -> tuple[EpsilonInterval, ...]:
        """ε under each of `Problem.constraints`."""
        return (self.epsilon, *self.also_epsilon)

    @property
    def family(self) -> str:
        return self.mechanism.family

    @property
    def ratio(self) -> float:
        """Cost over the Gaussian's; below 1 is better than the Gaussian, `inf` where only the Gaussian's cost is 0."""
        if self.cost == self.gaussian_cost:
            return 1.0
        return self.cost / self.gaussian_cost if self.gaussian_cost else math.inf

    def document(self) -> dict[str, Any]:
        return {
            "mechanism": self.mechanism.spec(),
            "family": self.family,
            "cost": _finite_or_null(self.cost),
            "gaussian_cost": _finite_or_null(self.gaussian_cost),
            "epsilon": _interval_document(self.epsilon),
            "also_epsilon": [_interval_document(interval) for interval in self.also_epsilon],
            "binding": self.binding,
        }

    @classmethod
    def from_document(cls, document: Any) -> SearchEntry:
        _check_fields("search entry", document, _ENTRY_FIELDS)
        return cls(
            mechanism=independent(from_spec(document["mechanism"])),
            cost=_infinite_if_null(document["cost"]),
            gaussian_cost=_infinite_if_null(document["gaussian_cost"]),
            epsilon=_interval(document["epsilon"]),
            also_epsilon=tuple(_interval(other) for other in document["also_epsilon"]),
            binding=int(document["binding"]),
        )


@final
@dataclasses.dataclass(frozen=True)
class SearchResult:
    """Noises at the budget of `problem`, best first.

    `references` holds the Gaussian and the Laplace at the same guarantee, whether or not their families were searched.
    `notes` are sentences about what was found, and which families were left out and why.
    """

    problem: Problem
    results: tuple[SearchEntry, ...]
    references: tuple[SearchEntry, ...]
    notes: tuple[str, ...]

    @property
    def best(self) -> SearchEntry:
        return self.results[0]

    def best_of(self, family: str) -> SearchEntry:
        """The best entry of a family; ValueError if the family is not in the result."""
        for entry in self.results:
            if entry.family == family:
                return entry
        known = ", ".join(sorted({entry.family for entry in self.results}))
        raise ValueError(f"expected family to be one of {known}, got family={family!r}")

    def document(self) -> dict[str, Any]:
        """JSON-ready, as `save` writes it."""
        return {
            "format": RESULT_FORMAT,
            "problem": self.problem.document(),
            "results": [entry.document() for entry in self.results],
            "references": [entry.document() for entry in self.references],
            "notes": list(self.notes),
        }

    @classmethod
    def from_document(cls, document: Any) -> SearchResult:
        """The result that `document` wrote; unknown or missing fields raise ValueError naming the field."""
        _check_fields("search result", document, {"format", "problem", "results", "references", "notes"})
        if document["format"] != RESULT_FORMAT:
            raise ValueError(f"expected format={RESULT_FORMAT}, got format={document['format']!r}")
        return cls(
            problem=Problem.from_document(document["problem"]),
            results=tuple(SearchEntry.from_document(entry) for entry in document["results"]),
            references=tuple(SearchEntry.from_document(entry) for entry in document["references"]),
            notes=tuple(document["notes"]),
        )

    def save(self, path: str | Path) -> None:
        """Write the JSON file at `path`: to a temporary file beside it, then renamed over it."""
        write_json(Path(path), self.document())

    @classmethod
    def load(cls, path: str | Path) -> SearchResult:
        """Read the file that `save` wrote; ValueError names the file and what is wrong with it."""
        try:
            return cls.from_document(json.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise ValueError(f"cannot read the search result {str(path)!r}: {error.strerror}") from error
        except ValueError as error:
            raise ValueError(f"search result {str(path)!r}: {error}") from error


_ROUNDED = "Noises to four digits; use the saved result (--output, --json), which has all of them."


def render(result: SearchResult) -> Table:
    """A table of the results, best first, then the references that are not among them.

    A noise is written as `mechanisms.parse` reads it, rounded to four digits: typed in again it may miss the budget by
    a little, so the caption says where all digits are. With several constraints the ε shown is that under the binding
    one, whose number stands beside it.
    """
    title = "\nand ".join(asked.text() for asked in result.problem.constraints)
    table = Table(title=title, caption="\n".join((_ROUNDED, *result.notes)), caption_justify="left")
    table.add_column("noise", overflow="fold")
    headings = [result.problem.cost_label, "over Gaussian", "ε lower", "ε guarantee"]
    for heading in (*headings, *(["binding"] if result.problem.also else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in result.results:
        table.add_row(*_cells(entry))
    shown = {entry.mechanism for entry in result.results}
    for entry in result.references:
        if entry.mechanism not in shown:
            table.add_row(*_cells(entry), style="dim")
    return table


def _cells(entry: SearchEntry) -> tuple[str, ...]:
    low, _, high = entry.intervals[entry.binding]
    cells = (
        _inline(entry.mechanism),
        f"{entry.cost:.5g}",
        f"{entry.ratio:.4f}",
        rounded_down(low, 4),
        rounded_up(high, 5),
    )
    return (*cells, str(entry.binding)) if entry.also_epsilon else cells


def _inline(mechanism: Mechanism) -> str:
    """The noise as `mechanisms.parse` reads it, to four digits; of a long list only how long it is."""
    short = {field: key for key, field in mechanism.short_keys.items()}
    parameters = mechanism.spec()["parameters"].items()
    return f"{mechanism.family}:" + ",".join(
        f"{short.get(name, name)}={_number(value)}" for name, value in parameters if value or name == "uniform_low"
    )


def _number(value: float | list[float]) -> str:
    if not isinstance(value, list | tuple):
        return f"{value:.4g}"
    return ";".join(_number(item) for item in value) if len(value) <= _LONGEST_LIST else f"<{len(value)} numbers>"


def _interval_document(interval: EpsilonInterval) -> dict[str, float | None]:
    return {name: _finite_or_null(value) for name, value in interval._asdict().items()}


def _interval(document: Any) -> EpsilonInterval:
    _check_fields("epsilon interval", document, set(EpsilonInterval._fields))
    return EpsilonInterval(**{name: _infinite_if_null(value) for name, value in document.items()})


def _finite_or_null(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _infinite_if_null(value: Any) -> float:
    return math.inf if value is None else float(value)


def _check_fields(what: str, document: Any, fields: set[str]) -> None:
    if not isinstance(document, dict):
        raise ValueError(f"expected a {what} to be a JSON object, got {document!r}")
    if odd := sorted(set(document) ^ fields):
        raise ValueError(f"unknown or missing field {odd[0]!r} in a {what}; fields: {', '.join(sorted(fields))}")
