"""From a recipe to its workload."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

from ..tasks import ClassificationTask
from .data import read, task_of
from .pooled import PooledWorkload
from .recipe import Recipe
from .workload import TokenWorkload, Workload


def build(recipe: Recipe) -> Workload:
    """Read the data, load the model, choose its trained part: every check that needs no training and little time.

    Raises ValueError naming the key, file, column, label, model or package at fault.
    """
    task = task_of(recipe)
    splits = read(recipe, task)
    if recipe.model.kind == "mean_pooled":
        assert isinstance(task, ClassificationTask)
        return PooledWorkload(recipe, task, splits)
    return TokenWorkload(recipe, task, splits)


def data_digest(workload: Workload) -> str:
    """Of the training rows, to tell other data. Derived from private data without noise: never in a report."""
    rows: list[Any] = [dataclasses.astuple(row) for row in workload.splits.train]
    return hashlib.sha256(repr(rows).encode()).hexdigest()
