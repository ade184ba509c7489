"""A progress bar around a loop, on standard error, so that standard output stays clean for results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

T = TypeVar("T")


def track(items: Iterable[T], title: str, *, show: bool) -> Iterator[T]:
    """Yield the items, moving a bar named `title` after each; it disappears at the end. No bar unless `show`."""
    items = list(items)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not show) as bar:
        task = bar.add_task(title, total=len(items))
        for item in items:
            yield item
            bar.advance(task)
