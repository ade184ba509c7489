"""Membership inference on a finished run: rows that its saved model was trained on, and rows held out by a hash."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..models.objective import evaluating
from ..runs.data import is_chosen, resolved, task_of
from ..runs.pooled import PooledWorkload
from ..runs.recipe import Recipe
from ..tasks import ClassificationTask, Splits
from .finished import FinishedRun
from .membership import MembershipResult, membership_inference

_SIZE = 256


class Refused(ValueError):
    """This part of an audit is not for this run; the run itself is not at fault."""


def attack_members(run: FinishedRun, *, confidence: float) -> MembershipResult:
    """Attack the run's saved model by the losses of its training rows and of rows held out by a hash of their text.

    The ε is an estimate, not a bound: all records share one model (see `membership`).

    Raises Refused for a kind other than mean_pooled, a run without held-out rows or saved weights; ValueError if the
    data are not the run's.
    """
    if not run.recipe.runtime.save_model:
        raise Refused("the run kept no weights (runtime.save_model = false)")
    pooled, members, _ = open_pooled(run, held_out=True)
    pooled.restore(run.path / "model")
    losses = losses_of(pooled)
    return membership_inference(losses[:members], losses[members:], delta=run.report["delta"], confidence=confidence)


def open_pooled(run: FinishedRun, *, held_out: bool) -> tuple[PooledWorkload, int, ClassificationTask]:
    """A prepared workload, untrained, on the run's training rows and then, if asked for, its held-out ones; the number
    of training rows; the task. Raises ValueError as `attack_members`."""
    recipe = run.recipe
    if recipe.model.kind != "mean_pooled":
        raise Refused(f"expected a run with model.kind = mean_pooled, got {recipe.model.kind}: other kinds cannot yet")
    task = task_of(recipe)
    assert isinstance(task, ClassificationTask)
    members, others = _rows(recipe, task)
    if held_out and len(others) < 2:
        raise Refused(
            "no rows of this run were held out by a hash of their text (task.dev_share, task.train_share): a dev or "
            "test file may be of another distribution, so membership cannot be judged by it"
        )
    if len(members) != run.report["training_rows"]:
        raise ValueError(
            f"expected the run's {run.report['training_rows']} training rows, the data have {len(members)}"
        )
    workload = PooledWorkload(recipe, task, Splits((*members, *(others if held_out else ())), ()))
    workload.prepare(progress=False)
    return workload, len(members), task


def losses_of(workload: PooledWorkload) -> NDArray[np.float64]:
    """Losses (n,) of all its rows, without dropout."""
    found = []
    with torch.no_grad(), evaluating(workload.model):
        for indices in torch.arange(len(workload.rows)).split(_SIZE):
            batch = workload.collate([workload.rows[int(index)] for index in indices])
            found.append(workload.losses(workload.model, batch))
    return torch.cat(found).double().numpy()


def _rows(recipe: Recipe, task: ClassificationTask) -> tuple[list[Any], list[Any]]:
    """Training rows, and those that a hash of their text kept out."""
    splits = task.load(recipe.task.source(resolved(recipe.task.path)))
    sides: tuple[list[Any], list[Any]] = ([], [])
    for row in splits.train:
        sides[not is_chosen(row, recipe.task)].append(row)
    if recipe.task.dev_share is not None:
        sides[1].extend(splits.dev)
    return sides
