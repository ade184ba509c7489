"""`PrivateTrainer`: the Trainer of `transformers`, with clipping, noise and a ledger in each of its steps.

The loop, schedulers, callbacks, evaluation and checkpoints are the Trainer's own. Its data loader hands out one Poisson
batch a step (`get_train_dataloader`), `training_step` cuts it into microbatches, clips, adds the noise once and leaves
the noisy gradient in `.grad`; then the Trainer steps its optimizer. So whatever stands between the two (callbacks,
logged gradient norms, accelerate) sees the released gradient only.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

if importlib.util.find_spec("accelerate") is None:
    raise ImportError("PrivateTrainer needs accelerate: pip install optnoise[trainer]")

from accelerate.utils import send_to_device
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import TrainOutput

from ..accounting import Ledger
from ..mechanisms import Mechanism
from .layer_rules import LAYER_RULES, Rules
from .private import innermost
from .replicas import check_not_wrapped
from .sampling import LogicalBatch
from .secure import check_secure
from .settings import PrivacySettings
from .support import trainable_parameters
from .trainer_arguments import check_placement, private_arguments, steps_per_epoch
from .trainer_callback import PrivacyCallback
from .trainer_losses import (
    PerExampleLoss,
    check_columns,
    check_first_rows,
    columns_of,
    derived_loss,
)
from .trainer_rows import BATCH, LogicalBatches, check_same_rows, checked_size, microbatches, rows_at, without_unused
from .trainer_run import Plan, PrivateRun, last_checkpoint

_FIRST_ROWS = 32  # of the training data, on which the loss is checked before training
_NAMES_IN_CARDS = {"epsilon": "privacy_epsilon", "not_private": "seeded_not_private"}
_TOLERANCE = {"no": 1e-3}  # relative, of a loss in other company: padding moves it a little,
_HALF_TOLERANCE = 0.05  # and in half precision more; a shared divisor moves it by far more


class PrivateTrainer(Trainer):
    """`transformers.Trainer` that trains privately: one step is one Poisson batch, one draw of noise, one release.

    Args:
        model: its parameters with requires_grad=True when `train()` is called are trained. PEFT models as well.
        args: as for `Trainer`. `per_device_train_batch_size` is the *microbatch*: it decides memory, not the result.
            The length of the run is `privacy.steps`; `epoch` counts steps times the sampling rate. What would break the
            guarantee, or act on the batch instead of the example, is refused by name.
        data_collator: as for `Trainer`. With a `per_example_loss` it gets every column but text, else the columns that
            the model takes.
        train_dataset: as for `Trainer`; it has a length and rows by index.
        eval_dataset: as for `Trainer`.
        mechanism: noise in units of the clipping norm, calibrated for `privacy`.
        privacy: what the guarantee depends on, chosen before seeing the data. `divisor` divides the noisy sum.
        per_example_loss: (model, batch) to losses (B,), each a function of its own example alone. None derives it:
            cross entropy for a sequence classifier, mean over an example's own tokens for a causal language model.
        ledger: where each release is recorded before it is used: a path or a `Ledger`; `ledger.jsonl` in
            `args.output_dir` by default.
        noise_seed: leave None. A seed makes noise and samples repeatable, and the run *not private*.
        secure: noise and samples from ChaCha20, noisy sums rounded to a grid; see `make_private`.
        continue_ledger: True: the ledger may hold releases of this run, which ended before its first checkpoint. The
            training begins anew, with these releases charged as well.
        log_training_loss: leave False. The training loss is a number about the private batch without any noise, and
            logs travel with checkpoints and model cards. True logs it as `loss`.
        rules: see `make_private`.
        fallback: see `make_private`.
        more: further arguments of `Trainer`: `processing_class`, `compute_metrics`, `callbacks`, `optimizers` …

    Raises:
        ValueError: an argument that private training does not take; no loss is known for the model.

    Started by torchrun or accelerate in several processes, with a whole copy of the model in each, or its frozen
    weights in pieces (`shard_frozen`), they share each logical batch; the noise is drawn once. The first process logs
    and saves. See docs/scaling.md.

    Each line of the log has `epsilon`, the proven upper end so far; no line before the first release has one. The
    model comes out as it went in, without hooks; evaluation, prediction and saving are the Trainer's own.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        *,
        mechanism: Mechanism,
        privacy: PrivacySettings,
        per_example_loss: PerExampleLoss | None = None,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        noise_seed: int | None = None,
        secure: bool = False,
        continue_ledger: bool = False,
        log_training_loss: bool = False,
        rules: Rules = LAYER_RULES,
        fallback: bool = True,
        **more: Any,
    ) -> None:
        _check_own_arguments(mechanism, privacy, per_example_loss, more)
        check_secure(secure, noise_seed, name="noise_seed")
        args = private_arguments(args or TrainingArguments(output_dir="tmp_trainer"), privacy)
        self._private_plan = Plan(
            mechanism=mechanism,
            privacy=privacy,
            noise_seed=noise_seed,
            secure=secure,
            rules=rules,
            fallback=fallback,
            continue_ledger=continue_ledger,
        )
        self._private_run: PrivateRun | None = None
        self._log_training_loss = log_training_loss
        more["callbacks"] = [PrivacyCallback(self), *(more.pop("callbacks", None) or [])]
        super().__init__(model, args, data_collator, train_dataset, eval_dataset, **more)
        check_placement(self)
        self._loss_is_derived = per_example_loss is None
        self._example_loss = derived_loss(self._own_model()) if per_example_loss is None else per_example_loss
        self._private_ledger = Path(str(args.output_dir)) / "ledger.jsonl" if ledger is None else ledger

    # ---- what is being done -------------------------------------------------------------------------------------

    @property
    def privacy(self) -> PrivacySettings:
        """What the guarantee depends on."""
        return self._private_plan.privacy

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which each example is drawn once on average."""
        return steps_per_epoch(self.privacy)

    @property
    def private_run(self) -> PrivateRun:
        """The latest `train()`, with its ledger and budget. Raises RuntimeError before the first."""
        if self._private_run is None:
            raise RuntimeError("no private training was begun: call train()")
        return self._private_run

    def _own_model(self) -> nn.Module:
        assert self.model is not None
        return self.model

    # ---- training -----------------------------------------------------------------------------------------------

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
        **more: Any,
    ) -> TrainOutput:
        """Train for `privacy.steps` releases, or until one more would exceed the budget `privacy.epsilon`.

        Args:
            resume_from_checkpoint: a checkpoint folder, or True for the last whole one in `args.output_dir`. The
                ledger goes on: steps that were taken after the checkpoint are taken again *and charged again*, so such
                a run may stop early. A private run draws fresh randomness; a seeded one repeats its own.
            trial: as for `Trainer.train`.
            ignore_keys_for_eval: as for `Trainer.train`.
            more: as for `Trainer.train`.

        Returns:
            As `Trainer.train`; `metrics` has `epsilon`, and `stopped_at_budget` where that is why it ended.
            `training_loss` is NaN unless `log_training_loss`.

        Raises:
            ValueError: the noise's proven ε exceeds `privacy.epsilon`; the data set is missing, without a length, or
                smaller than the expected batch; a column is missing; the ledger belongs to another run; a checkpoint
                was made with other settings (the error names which).
        """
        check_placement(self)
        folder = self._checkpoint_folder(resume_from_checkpoint)
        size = self._check_data()
        self._private_run = PrivateRun(
            self._private_plan,
            self._private_ledger,
            dataset_size=size,
            dimension=sum(p.numel() for p in trainable_parameters(self._own_model()).values()),
            resume=folder,
        )
        try:
            output = super().train(folder, trial, ignore_keys_for_eval, **more)
        finally:
            self._private_run.end()
            self.is_in_train = False
        return output if self._log_training_loss else output._replace(training_loss=float("nan"))

    def begin_private_training(self) -> None:
        """Called by the training loop once model and optimizer are in place; clipping and noise start here."""
        run = self.private_run
        check_not_wrapped(self.model_wrapped or self._own_model())
        run.begin(self._own_model(), innermost(self.optimizer))
        first = range(min(_FIRST_ROWS, run.dataset_size))
        check_same_rows(lambda: self._training_rows(first), run.processes)
        check_first_rows(
            self._own_model(),
            lambda batch: self._example_losses(self._own_model(), batch),
            self._training_rows(first),
            self.data_collator,
            tolerance=_TOLERANCE.get(str(self.accelerator.mixed_precision), _HALF_TOLERANCE),
        )

    def create_optimizer(self, *arguments: Any, **more: Any) -> Any:
        """As `Trainer.create_optimizer`. With several processes the model is then prepared already, by the one way that
        wraps it in nothing: the clipped sums are added up here, not gradients inside the backward pass."""
        if self.args.world_size > 1:
            self.accelerator.prepare_model(self._own_model(), evaluation_mode=True)
        return super().create_optimizer(*arguments, **more)

    def get_train_dataloader(self, *arguments: Any, **more: Any) -> Any:
        """The logical batches, drawn one at a time while the loop asks for them."""
        return LogicalBatches(
            self.train_dataset,
            self.steps_per_epoch,
            draw=self._draw_batch,
            position=lambda: self.state.global_step,
        )

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None, **more: Any
    ) -> Tensor:
        """Clip each example of one logical batch, record the release, add the noise, leave the result in `.grad`.

        `num_items_in_batch` is a count over several examples, and is not used (B81).
        """
        training = self.private_run.active()
        batch = inputs.get(BATCH) if isinstance(inputs, Mapping) else None
        if batch is None or batch is not self.private_run.batch:
            raise RuntimeError("private training takes its batches from its own get_train_dataloader() only")
        self._set_train_mode(model)
        total = torch.zeros((), device=self.args.device)
        for rows in self._microbatches(batch):
            with training.record(len(rows)) as recording:
                losses = self._example_losses(model, self.data_collator(rows))
                recording.backward(losses)
            if recording.counts:
                total += losses.detach().sum()
        self._free_memory()
        training.privatise()
        return self._mean_over_processes(total, len(batch)) if self._log_training_loss else torch.zeros_like(total)

    def _microbatches(self, batch: LogicalBatch) -> Iterator[list[Any]]:
        """The rows of each microbatch; at last those that are for nothing, so that all processes take as many."""
        size = self.args.train_batch_size
        yield from microbatches(self._training_rows(batch.indices.tolist()), size)
        for _ in range(batch.idle(size)):
            yield self._training_rows([0])

    def _mean_over_processes(self, total: Tensor, count: int) -> Tensor:
        """The mean loss of the whole logical batch."""
        whole: Any = self.accelerator.reduce(torch.stack([total, torch.full_like(total, count)]), reduction="sum")
        return whole[0] / whole[1].clamp(min=1)

    def _draw_batch(self) -> Any:
        batch = self.private_run.draw(self.state.global_step)
        if batch is None:
            self.control.should_training_stop = True
        return batch

    def _example_losses(self, model: nn.Module, batch: Any) -> Tensor:
        try:
            with self.accelerator.autocast():
                return self._example_loss(model, send_to_device(batch, self.args.device))
        except KeyError as error:
            found = f"the batch has {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else "see its columns"
            raise ValueError(
                f"the loss needs {error}, and {found}; name the columns as the loss does, and keep them in the collator"
            ) from error

    def _set_train_mode(self, model: nn.Module) -> None:
        model.train()
        if callable(train := getattr(self.optimizer, "train", None)):  # optimizers without a schedule have modes
            train()

    def _free_memory(self) -> None:
        every = self.args.torch_empty_cache_steps
        if every is not None and self.state.global_step % every == 0 and torch.cuda.is_available():
            torch.cuda.empty_cache()

    # ---- data ---------------------------------------------------------------------------------------------------

    def _training_rows(self, indices: Any) -> list[Any]:
        used = columns_of(self._own_model()) if self._loss_is_derived else None
        rows = rows_at(self.train_dataset, indices)
        return [without_unused(row, used) for row in rows] if self.args.remove_unused_columns else rows

    def _check_data(self) -> int:
        size = checked_size(self.train_dataset, self.privacy.divisor)
        first = rows_at(self.train_dataset, [0])[0]
        if self._loss_is_derived and isinstance(first, Mapping):
            check_columns(list(first), self._training_rows([0])[0], self.data_collator)
        return size

    def _checkpoint_folder(self, resume: str | bool | None) -> str | None:
        if resume is None or resume is False:
            return None
        folder = last_checkpoint(str(self.args.output_dir)) if resume is True else str(resume)
        if folder is None:
            raise ValueError(f"there is no run to resume: no checkpoint in {self.args.output_dir}")
        return folder

    # ---- what others see ----------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], *arguments: Any, **more: Any) -> None:
        """As `Trainer.log`, with ε; without the training loss, unless that was asked for."""
        if self._private_run is not None:
            self._private_run.annotate(logs)
        if not self._log_training_loss:
            logs.pop("loss", None)
            logs.pop("train_loss", None)
        super().log(logs, *arguments, **more)

    def get_total_train_batch_size(self, args: Any, *arguments: Any, **more: Any) -> int:
        """The divisor, for the Trainer's statistics: they are logged, and the number of rows is private (B97)."""
        return max(1, round(self.privacy.divisor))

    def floating_point_ops(self, inputs: Any, *arguments: Any, **more: Any) -> int:
        """0: the count would tell the number of tokens in each private batch."""
        return 0

    def create_model_card(self, *arguments: Any, **more: Any) -> None:
        """As `Trainer.create_model_card`, with ε under its name: the card drops the first word of each key."""
        lines = self.state.log_history
        self.state.log_history = [
            {_NAMES_IN_CARDS.get(key, key): value for key, value in line.items()} for line in lines
        ]
        try:
            super().create_model_card(*arguments, **more)
        finally:
            self.state.log_history = lines

    def hyperparameter_search(self, *arguments: Any, **more: Any) -> Any:
        """Refused: every trial is a release of its own, and choosing the best of them is another."""
        raise ValueError(
            "PrivateTrainer does not take hyperparameter_search: each trial spends ε on the same data, and so does the "
            "choice among them; search on public data"
        )


def _check_own_arguments(mechanism: Any, privacy: Any, per_example_loss: Any, more: dict[str, Any]) -> None:
    if not isinstance(mechanism, Mechanism):
        raise ValueError(f"expected mechanism to be a Mechanism, such as Gaussian(1.0), got {mechanism!r}")
    if not isinstance(privacy, PrivacySettings):
        raise ValueError(f"expected privacy to be PrivacySettings, got {privacy!r}")
    if per_example_loss is not None and not callable(per_example_loss):
        raise ValueError(f"expected per_example_loss to be a function of (model, batch), got {per_example_loss!r}")
    if more.get("compute_loss_func") is not None:
        raise ValueError(
            "PrivateTrainer does not take compute_loss_func, a loss of the whole batch: pass per_example_loss, "
            "a function of (model, batch) that returns one loss for each example"
        )
