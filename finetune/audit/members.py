"""Membership inference on a finished run: rows that its saved model was trained on, and rows held out by a hash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..models.objective import evaluating, length_sorted, to_device
from ..progress import progress_bar
from ..runs.build import workload_for
from ..runs.data import is_chosen, resolved, task_of
from ..runs.recipe import Recipe
from ..runs.workload import Workload
from ..tasks import Splits, Task
from ..trainer_rows import rows_at
from .finished import FinishedRun
from .membership import MembershipResult, membership_inference


class Refused(ValueError):
    """This part of an audit is not for this run; the run itself is not at fault."""


def attack_members(run: FinishedRun, *, confidence: float, progress: bool = False) -> MembershipResult:
    """Attack the run's saved model by the losses of its training rows and of rows held out by a hash of their text.

    In generation a source with several texts counts once, by its first: the hash keeps or holds out whole sources. The
    ε is an estimate, not a bound: all records share one model (see `membership`).

    Raises Refused for a run without held-out rows or saved weights; ValueError if data or weights are not the run's.
    """
    recipe = run.recipe
    if not recipe.runtime.save_model:
        raise Refused("the run kept no weights (runtime.save_model = false)")
    task = task_of(recipe)
    sides = _sides(run, task)
    members, others = (_first_of_each_source(side) for side in sides)
    if len(others) < 2:
        raise Refused(
            "no rows of this run were held out by a hash of their text (task.dev_share, task.train_share): a dev or "
            "test file may be of another distribution, so membership cannot be judged by it"
        )
    _check_count(run, sides[0])
    workload = prepared(recipe, task, [*members, *others], progress=progress)
    workload.restore(run.path / "model")
    losses = losses_of(workload, progress=progress)
    cut = len(members)
    return membership_inference(losses[:cut], losses[cut:], delta=run.report["delta"], confidence=confidence)


def training_rows(run: FinishedRun, task: Task) -> list[Any]:
    """The examples that the run was trained on, read anew. Raises ValueError if their number is not the run's."""
    rows = _sides(run, task)[0]
    _check_count(run, rows)
    return rows


def prepared(recipe: Recipe, task: Task, rows: Sequence[Any], *, progress: bool) -> Workload:
    """The recipe's untrained model on `rows` as its training rows."""
    workload = workload_for(recipe, task, Splits(tuple(rows), ()))
    workload.prepare(progress=progress)
    return workload


def losses_of(workload: Workload, *, progress: bool = False) -> NDArray[np.float64]:
    """Losses (n,) of all its training rows, without dropout."""
    found, done = torch.zeros(len(workload.rows), dtype=torch.float64), 0
    size = workload.recipe.evaluation.batch_size
    with evaluating(workload.model), progress_bar("losses", shown=progress) as update:
        for places in length_sorted(workload.row_lengths(), size):
            batch = to_device(workload.collate(rows_at(workload.rows, places)), workload.model)
            found[places] = workload.losses(workload.model, batch).double().cpu()
            done += len(places)
            update(done, len(found), "rows")
    return found.numpy()


def _sides(run: FinishedRun, task: Task) -> tuple[list[Any], list[Any]]:
    """Training rows, and those that a hash of their text kept out."""
    settings = run.recipe.task
    splits: Splits[Any] = task.load(settings.source(resolved(settings.path)))
    sides: tuple[list[Any], list[Any]] = ([], [])
    for row in splits.train:
        sides[not is_chosen(row, settings)].append(row)
    if settings.dev_share is not None:
        sides[1].extend(splits.dev)
    return sides


def _check_count(run: FinishedRun, rows: Sequence[Any]) -> None:
    if len(rows) != (count := run.report["training_rows"]):
        raise ValueError(f"expected the run's {count} training rows, the data have {len(rows)}")


def _first_of_each_source(rows: Sequence[Any]) -> list[Any]:
    """Of a generation task's rows the first of each source; others as they are."""
    if not rows or not hasattr(rows[0], "source"):
        return list(rows)
    return list({row.source: row for row in reversed(rows)}.values())[::-1]
