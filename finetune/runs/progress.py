"""How a run by a Trainer shows itself: one bar on the error stream, and lines in the log."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, final

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..progress import progress_bar
from .log_lines import note

_LOG = logging.getLogger(__name__)


@final
class RunProgress(TrainerCallback):
    """In place of the Trainer's own bar and printed dictionaries; ε stands in each line."""

    def __init__(self, description: str, delta: float | None, *, shown: bool) -> None:
        self._description, self._delta, self._shown = description, delta, shown
        self._open = contextlib.ExitStack()
        self._update: Any = lambda done, total, note: None
        self._note = ""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more) -> None:
        self._update = self._open.enter_context(progress_bar(self._description, shown=self._shown))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more) -> None:
        self._update(state.global_step, state.max_steps, self._note)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **more: Any
    ) -> None:
        line = note(logs or {}, self._delta)
        _LOG.info("step %d/%d: %s", state.global_step, state.max_steps, line)
        if any(name.startswith("eval_") for name in logs or {}):
            self._note = line
            self._update(state.global_step, state.max_steps, line)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar away; safe to call twice."""
        self._open.close()
