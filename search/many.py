"""Many searches at once: over the cores of one machine, or over a cluster through joblib's `dask` or `ray` backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, final

import joblib

from ._progress import track
from .exact import SearchError
from .problem import Problem
from .result import SearchResult
from .runner import Families, Run, check_run, resolve_families


@final
@dataclasses.dataclass(frozen=True)
class Refused:
    """A problem for which the search found nothing, and why."""

    problem: Problem
    reason: str


def search_many(
    problems: Iterable[Problem],
    *,
    families: Families | None = None,
    n_jobs: int | None = None,
    progress: bool = True,
    top: int = 1,
    seed: int = 0,
    resume: str | Path | None = None,
) -> list[SearchResult | Refused]:
    """`search` for every problem, in their order; the arguments are as for `search`.

    The problems are spread over processes by joblib. `n_jobs` is joblib's (-1: all cores; None: one, or what the
    surrounding `joblib.parallel_config` says), and with a `dask.distributed.Client` at hand

        with joblib.parallel_config(backend="dask"):
            results = search_many(problems, resume="/a/shared/folder")

    spreads them over its workers (extra `cluster`). With `resume`, a folder that all workers see, each finished family
    of each problem is kept, and a sweep that was stopped goes on from there. Results do not depend on `n_jobs`.

    A problem for which nothing is proven, or no family has a noise, becomes a `Refused` in its place and does not stop
    the others.

    Raises:
        ValueError: no problem is given, an item is not a Problem, or a bad argument.
    """
    problems = list(problems)
    if not problems or not all(isinstance(problem, Problem) for problem in problems):
        raise ValueError(f"expected problems to be a non-empty list of Problem, got problems={problems!r}")
    chosen = resolve_families(families)
    runs = [check_run(problem, top=top, seed=seed, progress=False, resume=resume) for problem in problems]
    tasks = [joblib.delayed(_one)(run, chosen) for run in runs]
    done: Any = joblib.Parallel(n_jobs=n_jobs, return_as="generator")(tasks)
    return list(track(done, f"{len(tasks)} searches", show=progress, total=len(tasks)))


def _one(run: Run, chosen: dict[str, Any]) -> SearchResult | Refused:
    try:
        return run.result(chosen)
    except (ValueError, SearchError) as error:
        return Refused(run.problem, str(error))
