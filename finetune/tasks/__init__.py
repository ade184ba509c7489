"""Tasks: where their data come from, how a row is written for a model, and how predictions are scored."""

from . import metrics
from .base import (
    DEFAULT_HUB,
    ClassificationExample,
    ClassificationTask,
    DataSource,
    GenerationExample,
    GenerationSettings,
    GenerationTask,
    Prompt,
    Splits,
    Task,
)
from .dart import DART
from .delimited import delimited_classification, delimited_generation
from .e2e import E2E
from .mnli import MNLI
from .qnli import QNLI
from .qqp import QQP
from .registry import TASKS, find_task
from .sst2 import SST2, SST2_SENTENCES
from .webnlg import WEBNLG

__all__ = [
    "DART",
    "DEFAULT_HUB",
    "E2E",
    "MNLI",
    "QNLI",
    "QQP",
    "SST2",
    "SST2_SENTENCES",
    "TASKS",
    "WEBNLG",
    "ClassificationExample",
    "ClassificationTask",
    "DataSource",
    "GenerationExample",
    "GenerationSettings",
    "GenerationTask",
    "Prompt",
    "Splits",
    "Task",
    "delimited_classification",
    "delimited_generation",
    "find_task",
    "metrics",
]
