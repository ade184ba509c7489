"""`search`: each family proposes shapes, `accounting` calibrates and checks them, the cheapest come first."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..mechanisms import Gaussian, Laplace, Mechanism, _validate
from ._progress import track
from .exact import SearchError, calibrated, proven
from .families import PROPOSERS, Proposer
from .parametric import NoFiniteCost, ParametricFamily
from .problem import Problem
from .result import SearchEntry, SearchResult
from .store import Finished, Store

_SAME_AS_LAPLACE = 0.02  # relative difference of costs below which an LMO noise counts as a Laplace
_LOOSE = 0.98  # lower over upper end of an ε interval below which a note says that the bound may be loose

Families = Sequence[str | ParametricFamily]


def search(
    problem: Problem,
    *,
    families: Families | None = None,
    progress: bool = True,
    top: int = 3,
    seed: int = 0,
    resume: str | Path | None = None,
) -> SearchResult:
    """The cheapest noises for `problem`, best first.

    Args:
        problem: budget, use and cost.
        families: names among `PROPOSERS`, or `ParametricFamily` objects; all registered ones if not given. With the
            Gaussian among them the best result is never worse than the calibrated Gaussian.
        progress: show progress bars on standard error.
        top: how many LMO noises to list at most; the other families have one.
        seed: of the points at which families with three or more shape parameters are swept. The search is a
            deterministic function of the problem, the families and the seed.
        resume: a folder in which each finished family is kept, and from which a search of the same problem takes what
            is finished already. Not for a cost function.

    Every noise listed was calibrated by `accounting.calibrate` under every constraint of the problem, and its proven ε
    was computed once more as it stands, the other accountants asked too: `epsilon.upper` never exceeds the target. A
    family without a finite cost, or for which nothing is proven, is left out with a note.

    Raises:
        ValueError: a bad argument, or a budget for which nothing is proven even for the Gaussian.
        SearchError: no family is left.
        AccountantsDisagree: two accountants contradict each other on a noise that was found.
    """
    chosen = resolve_families(families)
    return check_run(problem, top=top, seed=seed, progress=progress, resume=resume).result(chosen)


def resolve_families(families: Families | None) -> dict[str, Proposer]:
    """The proposers by family name, in the order asked for; ValueError for an unknown name."""
    if families is None:
        return dict(PROPOSERS)
    if isinstance(families, str | Mapping) or not families:
        raise ValueError(f"expected families to be a non-empty list of names, got families={families!r}")
    chosen: dict[str, Proposer] = {}
    for family in families:
        if isinstance(family, ParametricFamily):
            chosen[family.family] = family
        else:
            chosen[family] = PROPOSERS[_validate.one_of("family", family, tuple(PROPOSERS))]
    return chosen


def check_run(problem: Problem, *, top: int, seed: int, progress: bool, resume: str | Path | None) -> Run:
    """The run of a search; ValueError for a bad argument, before any work."""
    if not isinstance(problem, Problem):
        raise ValueError(f"expected problem to be a Problem, got problem={problem!r}")
    top = _validate.integer("top", top, minimum=1)
    seed = _validate.integer("seed", seed, minimum=0)
    store = None if resume is None else Store(resume)
    if store is not None:
        store.check(problem)
    return Run(problem, top, seed, progress, store)


@dataclasses.dataclass(frozen=True)
class Run:
    """One search: its problem and its settings."""

    problem: Problem
    top: int
    seed: int
    progress: bool
    store: Store | None

    def result(self, chosen: Mapping[str, Proposer]) -> SearchResult:
        """The search over the chosen families."""
        gaussian = self.reference(Gaussian(1.0), None)
        references = [gaussian, *self.laplace_reference(gaussian)]
        entries: list[SearchEntry] = []
        notes: list[str] = []
        for family, proposer in chosen.items():
            finished = self.family(family, proposer, references)
            entries += finished.entries
            if finished.left_out is not None:
                notes.append(f"{family} is left out: {finished.left_out}")
        if not entries:
            raise SearchError("no family has a noise for this problem; " + "; ".join(notes))
        entries.sort(key=lambda entry: entry.cost)
        notes += _findings(self.problem, entries, references)
        return SearchResult(self.problem, tuple(entries), tuple(references), tuple(notes))

    def reference(self, shape: Mechanism, gaussian_cost: float | None) -> SearchEntry:
        """The entry of a family with one shape, kept in the store."""
        kept = self._kept(shape.family)
        if kept is not None and kept.entries:
            return kept.entries[0]
        entry = self._entry(shape, gaussian_cost)
        self._keep(shape.family, Finished((entry,)))
        return entry

    def laplace_reference(self, gaussian: SearchEntry) -> list[SearchEntry]:
        try:
            return [self.reference(Laplace(1.0), gaussian.gaussian_cost)]
        except ValueError:  # nothing is proven for it here; the note comes with its family
            return []

    def family(self, family: str, proposer: Proposer, references: Sequence[SearchEntry]) -> Finished:
        """What a family comes to: a reference, a finished part of the store, or a search."""
        for entry in references:
            if entry.family == family:
                return _finite(self.problem, [entry])
        kept = self._kept(family)
        if kept is not None:
            return kept
        finished = self._searched(family, proposer, references[0].gaussian_cost)
        self._keep(family, finished)
        return finished

    def _searched(self, family: str, proposer: Proposer, gaussian_cost: float) -> Finished:
        try:
            shapes = proposer(self.problem, top=self.top, progress=self.progress, seed=self.seed)
            bar = track(shapes, f"proof: {family}", show=self.progress)
            return _finite(self.problem, [self._entry(shape, gaussian_cost) for shape in bar])
        except (NoFiniteCost, ValueError) as error:
            return Finished(left_out=str(error))

    def _entry(self, shape: Mechanism, gaussian_cost: float | None) -> SearchEntry:
        """The shape at the budget, its proven ε under every constraint, and its cost."""
        constraints = self.problem.constraints
        mechanism, binding = calibrated(constraints, shape)
        intervals = [proven(asked, mechanism, verify=True) for asked in constraints]
        for interval, asked in zip(intervals, constraints, strict=True):
            if not interval.upper <= asked.epsilon:
                raise SearchError(f"calibrated {mechanism!r} has epsilon {interval.upper} > target {asked.epsilon}")
        cost = self.problem.cost_of(mechanism)
        of_gaussian = cost if gaussian_cost is None else gaussian_cost
        return SearchEntry(mechanism, cost, of_gaussian, intervals[0], tuple(intervals[1:]), binding)

    def _kept(self, family: str) -> Finished | None:
        return None if self.store is None else self.store.read(self.problem, family, top=self.top, seed=self.seed)

    def _keep(self, family: str, finished: Finished) -> None:
        if self.store is not None:
            self.store.write(self.problem, family, finished, top=self.top, seed=self.seed)


def _finite(problem: Problem, found: Sequence[SearchEntry]) -> Finished:
    finite = tuple(entry for entry in found if math.isfinite(entry.cost))
    return Finished(finite) if finite else Finished(left_out=f"its {problem.cost_label} is infinite")


def _findings(problem: Problem, entries: Sequence[SearchEntry], references: Sequence[SearchEntry]) -> list[str]:
    """Sentences on what the search ran into, with its numbers."""
    notes = []
    mixtures = [entry for entry in entries if entry.family in ("lmo", "gamma_laplace")]
    laplace = [entry for entry in references if entry.family == Laplace.family]
    if mixtures and laplace:
        gain = 1 - mixtures[0].cost / laplace[0].cost
        if abs(gain) <= _SAME_AS_LAPLACE:
            notes.append(
                f"the best mixture of Laplace noises costs within {100 * _SAME_AS_LAPLACE:g} % of plain Laplace noise: "
                "the search tends to a Laplace"
            )
    loose = [entry for entry in entries if entry.epsilon.lower < _LOOSE * entry.epsilon.upper]
    if loose:
        notes.append(
            f"the guarantee of {', '.join(dict.fromkeys(entry.family for entry in loose))} is a Rényi bound that may "
            "be loose (ε lower stands far below it): at equal exact ε its cost may be smaller than stated"
        )
    if problem.dimension == math.inf and mixtures:
        notes.append(
            "in every dimension the Fisher information I decides: a mixture of Laplace noises has I·variance >= 2 and "
            "E|X|·√I >= 1, plain Laplace attains both, and the Gaussian has I·variance = 1"
        )
    return notes
