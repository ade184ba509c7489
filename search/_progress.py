"""A progress bar around a loop, on standard error, so that standard output stays clean for results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

T = TypeVar("T")


def track(items: Iterable[T], title: str, *, show: bool, total: int | None = None) -> Iterator[T]:
    """Yield the items, moving a bar named `title` after each; it disappears at the end. No bar unless `show`.

    An iterator that works as it goes is given with its `total`; without one the items are listed first.
    """
    if total is None:
        items = list(items)
        total = len(items)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not show) as bar:
        task = bar.add_task(title, total=total)
        for item in items:
            yield item
            bar.advance(task)
