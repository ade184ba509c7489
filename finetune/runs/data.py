"""The task of a recipe and its rows."""

from __future__ import annotations

import dataclasses
import logging
import re
from typing import Any

from ..packages import file_in_package
from ..tasks import (
    TASKS,
    ClassificationTask,
    GenerationTask,
    Prompt,
    Splits,
    Task,
    delimited_classification,
    delimited_generation,
    find_task,
)
from ..tasks.loading import is_held_out
from .recipe import EvaluationSection, Recipe, TableSection, TaskSection

_LOG = logging.getLogger(__name__)
_IN_PACKAGE = re.compile(r"([A-Za-z_]\w*):(.+)")


def task_of(recipe: Recipe) -> Task:
    """The task, with the recipe's own generation settings. Raises ValueError for a name that is none, and why."""
    task = _table(recipe.task.table) if recipe.task.table is not None else _named(recipe.task.name)
    _check_kind(task, recipe.model.kind)
    return _with_generation(task, recipe.evaluation)


def read(recipe: Recipe, task: Task) -> Splits[Any]:
    """All rows: of the training rows the recipe's share.

    Raises ValueError: files, columns or labels at fault, or data of another size than the recipe is for.
    """
    splits: Splits[Any] = task.load(recipe.task.source(resolved(recipe.task.path)))
    for notice in splits.notices:
        _LOG.info("%s", notice)
    train = tuple(example for example in splits.train if is_chosen(example, recipe.task))
    _check_size(recipe, len(train))
    return dataclasses.replace(splits, train=train)


def _named(name: str) -> Task:
    if name not in TASKS:
        raise ValueError(f"expected task.name to be table or one of {', '.join(TASKS)}, got {name!r}")
    return find_task(name)


def _table(table: TableSection) -> Task:
    if table.source_column is not None:
        assert table.target_column is not None
        return delimited_generation(
            source_column=table.source_column,
            target_column=table.target_column,
            delimiter=table.delimiter,
            quoted=table.quoted,
        )
    assert table.text_columns is not None
    assert table.label_column is not None
    assert table.labels is not None
    return delimited_classification(
        text_columns=table.text_columns,
        label_column=table.label_column,
        labels=table.labels,
        ignored_labels=table.ignored_labels,
        prompt=None if table.template is None else Prompt(table.template, table.label_words or ()),
        delimiter=table.delimiter,
        quoted=table.quoted,
    )


def _check_kind(task: Task, kind: str) -> None:
    generation = kind == "causal_lm"
    if generation != isinstance(task, GenerationTask):
        wanted = (
            "causal_lm" if isinstance(task, GenerationTask) else "encoder_head, masked_word, mean_pooled or causal_head"
        )
        raise ValueError(f"expected model.kind = {wanted} for the task {task.name!r}, got {kind!r}")


def _with_generation(task: Task, settings: EvaluationSection) -> Task:
    if isinstance(task, ClassificationTask):
        return task
    own = {"num_beams": settings.num_beams, "max_new_tokens": settings.max_new_tokens}
    given = {name: value for name, value in own.items() if value is not None}
    return dataclasses.replace(task, generation=dataclasses.replace(task.generation, **given))


def resolved(path: str | None) -> str | None:
    if path is not None and (match := _IN_PACKAGE.fullmatch(path)):
        return str(file_in_package(match[1], match[2]))
    return path


def is_chosen(example: Any, settings: TaskSection) -> bool:
    """A row's own text alone decides, so that a row more or less changes no other row's fate."""
    key = example.source if hasattr(example, "source") else "\n".join(example.texts)
    return settings.train_share == 1 or is_held_out(
        f"train\n{key}", share=settings.train_share, seed=settings.split_seed
    )


def _check_size(recipe: Recipe, count: int) -> None:
    """Data of another size than the recipe says are a mistake, unless near: the rate is a constant of the recipe."""
    batch, expected = recipe.training.batch_size, recipe.training.rate * count
    if count < batch:
        raise ValueError(f"expected at least training.batch_size={batch:g} training rows, got {count}")
    if not 0.5 * batch <= expected <= 2 * batch:
        raise ValueError(
            f"expected training.batch_size near the expected size of a batch, got batch_size={batch:g} and "
            f"{expected:g} = {recipe.training.rate:g} · {count} rows; set training.dataset_size (public) for these data"
        )
