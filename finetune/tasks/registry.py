"""The tasks by name."""

from __future__ import annotations

from .base import Task
from .dart import DART
from .e2e import E2E
from .mnli import MNLI
from .qnli import QNLI
from .qqp import QQP
from .sst2 import SST2, SST2_SENTENCES
from .webnlg import WEBNLG

TASKS: dict[str, Task] = {task.name: task for task in (SST2, SST2_SENTENCES, MNLI, QNLI, QQP, E2E, DART, WEBNLG)}


def find_task(name: str) -> Task:
    """The task of that name. Raises ValueError naming those known."""
    if name not in TASKS:
        raise ValueError(
            f"expected one of the tasks {', '.join(TASKS)}, got {name!r}; for a table of your own see "
            "delimited_classification and delimited_generation"
        )
    return TASKS[name]
