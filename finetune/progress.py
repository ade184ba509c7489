"""Progress bars on the error stream, or none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextlib.contextmanager
def progress_bar(description: str, *, shown: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Yield `update(done, total, note)`; does nothing if not `shown`."""
    if not shown:
        yield lambda done, total, note: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=None, note="")
        yield lambda done, total, note: bar.update(task, completed=done, total=total, note=note)
