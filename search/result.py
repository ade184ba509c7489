"""What a search found: one JSON file that is written whole or not at all and read back equal.

Numbers that are not finite are null in the file, so that any JSON reader takes it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any, final

from rich.table import Table

from ..accounting import EpsilonInterval, rounded_down, rounded_up
from ..mechanisms import Mechanism, from_spec, independent
from .problem import Problem

RESULT_FORMAT = 1  # version of the JSON document that `save` writes


@final
@dataclasses.dataclass(frozen=True)
class SearchEntry:
    """One noise at the budget. `epsilon.upper` is the guarantee; `cost` and `gaussian_cost` are in the problem's unit.

    `gaussian_cost` is the cost of the Gaussian calibrated to the same budget by the same package.
    """

    mechanism: Mechanism
    cost: float
    gaussian_cost: float
    epsilon: EpsilonInterval

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
            "epsilon": {name: _finite_or_null(value) for name, value in self.epsilon._asdict().items()},
        }

    @classmethod
    def from_document(cls, document: Any) -> SearchEntry:
        _check_fields("search entry", document, {"mechanism", "family", "cost", "gaussian_cost", "epsilon"})
        _check_fields("epsilon interval", document["epsilon"], set(EpsilonInterval._fields))
        interval = EpsilonInterval(**{name: _infinite_if_null(value) for name, value in document["epsilon"].items()})
        return cls(
            mechanism=independent(from_spec(document["mechanism"])),
            cost=_infinite_if_null(document["cost"]),
            gaussian_cost=_infinite_if_null(document["gaussian_cost"]),
            epsilon=interval,
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
        path = Path(path)
        text = json.dumps(self.document(), indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    @classmethod
    def load(cls, path: str | Path) -> SearchResult:
        """Read the file that `save` wrote; ValueError names the file and what is wrong with it."""
        try:
            return cls.from_document(json.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise ValueError(f"cannot read the search result {str(path)!r}: {error.strerror}") from error
        except ValueError as error:
            raise ValueError(f"search result {str(path)!r}: {error}") from error


def render(result: SearchResult) -> Table:
    """A table of the results, best first, then the references that are not among them.

    A noise is written as `mechanisms.parse` reads it, rounded to four digits; the file keeps all of them.
    """
    table = Table(title=_title(result.problem), caption="\n".join(result.notes) or None, caption_justify="left")
    table.add_column("noise", overflow="fold")
    for heading in (result.problem.cost_label, "over Gaussian", "ε lower", "ε guarantee"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in result.results:
        table.add_row(*_cells(entry))
    shown = {entry.mechanism for entry in result.results}
    for entry in result.references:
        if entry.mechanism not in shown:
            table.add_row(*_cells(entry), style="dim")
    return table


def _title(problem: Problem) -> str:
    dimension = "every dimension" if problem.dimension == math.inf else f"dimension {problem.dimension:g}"
    sampling = "" if problem.sampling_rate == 1 else f", sampling rate {problem.sampling_rate:g}"
    return (
        f"ε <= {problem.epsilon:g} at δ = {problem.delta:g}: "
        f"{problem.steps} release{'s' * (problem.steps > 1)}{sampling}, {dimension}, {problem.adjacency}"
    )


def _cells(entry: SearchEntry) -> tuple[str, ...]:
    low, _, high = entry.epsilon
    return (
        _inline(entry.mechanism),
        f"{entry.cost:.5g}",
        f"{entry.ratio:.4f}",
        rounded_down(low, 4),
        rounded_up(high, 5),
    )


def _inline(mechanism: Mechanism) -> str:
    short = {field: key for key, field in mechanism.short_keys.items()}
    parameters = mechanism.spec()["parameters"].items()
    return f"{mechanism.family}:" + ",".join(
        f"{short[name]}={value:.4g}" for name, value in parameters if value or name == "uniform_low"
    )


def _finite_or_null(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _infinite_if_null(value: Any) -> float:
    return math.inf if value is None else float(value)


def _check_fields(what: str, document: Any, fields: set[str]) -> None:
    if not isinstance(document, dict):
        raise ValueError(f"expected a {what} to be a JSON object, got {document!r}")
    if odd := sorted(set(document) ^ fields):
        raise ValueError(f"unknown or missing field {odd[0]!r} in a {what}; fields: {', '.join(sorted(fields))}")
