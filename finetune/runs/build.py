"""From a recipe to its workload."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

from ..tasks import ClassificationTask, Splits, Task
from .data import read, task_of
from .noise import released_dimension
from .pooled import PooledWorkload
from .recipe import Recipe
from .workload import TokenWorkload, Workload


def build(recipe: Recipe) -> Workload:
    """Read the data, load the model, choose its trained part: every check that needs no training and little time.

    Raises ValueError naming the key, file, column, label, model or package at fault.
    """
    task = task_of(recipe)
    return workload_for(recipe, task, read(recipe, task))


def dimension_of(recipe: Recipe) -> int:
    """Numbers that one step of the recipe releases: what a noise is searched for. Loads the model, reads no data.

    Raises ValueError as `build`.
    """
    if recipe.training.method == "zeroth_order":
        return released_dimension(recipe, 0)
    return released_dimension(recipe, workload_for(recipe, task_of(recipe), Splits((), ())).dimension)


def workload_for(recipe: Recipe, task: Task, splits: Splits[Any]) -> Workload:
    """The recipe's model on rows that were read before. Raises ValueError as `build`."""
    if recipe.model.kind == "mean_pooled":
        assert isinstance(task, ClassificationTask)
        return PooledWorkload(recipe, task, splits)
    return TokenWorkload(recipe, task, splits)


def data_digest(workload: Workload) -> str:
    """Of the training rows, to tell other data. Derived from private data without noise: never in a report."""
    rows: list[Any] = [dataclasses.astuple(row) for row in workload.splits.train]
    return hashlib.sha256(repr(rows).encode()).hexdigest()
