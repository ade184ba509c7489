"""Where private training meets the events of the Trainer's loop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy

if TYPE_CHECKING:
    from .trainer import PrivateTrainer


@final
class PrivacyCallback(TrainerCallback):
    """Begins the private training, stops at the budget, completes each checkpoint."""

    def __init__(self, trainer: PrivateTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        self._trainer.begin_private_training()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more) -> None:
        state.epoch = state.global_step / self._trainer.steps_per_epoch  # also in an epoch that was resumed half way
        if not self._trainer.private_run.may_go_on(state.global_step):
            control.should_training_stop = control.should_log = True
            control.should_save = control.should_save or args.save_strategy == SaveStrategy.STEPS

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more) -> None:
        folder = Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        self._trainer.private_run.save(folder, state.global_step)
