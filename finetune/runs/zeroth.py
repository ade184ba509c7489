"""Forward passes alone: the run of a zeroth-order recipe, with checkpoints of its own."""

from __future__ import annotations

import logging
import math
from typing import Any, final

import torch
from torch import Tensor, nn

from ...accounting import EpsilonInterval, Ledger
from ...mechanisms import Mechanism
from ..budget import Budget, check_continues, check_same_kind
from ..checkpoint import Checkpoint, check_fields
from ..progress import progress_bar
from ..trainer_rows import length_of
from ..zeroth_order import ZerothOrderTraining, make_zeroth_order
from .folder import RunFolder
from .log_lines import note
from .outcome import Training
from .recipe import TrainingSection
from .workload import Workload

_LOG = logging.getLogger(__name__)


def train_by_forward_passes(
    workload: Workload,
    mechanism: Mechanism,
    planned: EpsilonInterval,
    folder: RunFolder,
    *,
    resume: bool,
    progress: bool,
) -> Training:
    """Train for the recipe's steps, or until one more would exceed its ε; see `make_zeroth_order`.

    `planned` is ε of all steps with this noise.

    Raises ValueError: a checkpoint or ledger that is not of this run.
    """
    run = _ForwardRun(workload, mechanism, planned, folder, resume=resume)
    with progress_bar("private steps", shown=progress) as update:
        run.go(update)
    return Training(tuple(run.history), run.training.ledger.steps, run.stopped)


@final
class _ForwardRun:
    """The loop, its evaluations, its checkpoints."""

    def __init__(
        self, workload: Workload, mechanism: Mechanism, planned: EpsilonInterval, folder: RunFolder, *, resume: bool
    ) -> None:
        self.workload, self.recipe = workload, workload.recipe
        self.checkpoint = Checkpoint(folder.private / "steps")
        self.device = _device(self.recipe.runtime.device)
        self.model = workload.model.to(self.device).eval()  # dropout would have to be the same in both passes: off
        folder.path.mkdir(parents=True, exist_ok=True)
        self.training = self._make(mechanism, Ledger(folder.ledger))
        check_same_kind(self.training.ledger, self.training.release)
        self.budget = Budget(self.recipe.settings(), planned, self.training.ledger)
        self.history: list[dict[str, Any]] = []
        self.done, self.stopped = 0, False
        self.lengths = torch.tensor([length_of(row) for row in workload.rows])
        if resume and self.checkpoint.exists():  # else it was interrupted before its first one, and begins anew
            self._restore()

    def go(self, update: Any) -> None:
        """The steps that are left."""
        steps = self.recipe.training.releases
        if not self.history:
            self._note()
        for step in range(self.done + 1, steps + 1):
            if not self.budget.allows_another_step():
                self.stopped = True
                _LOG.warning("stopped after step %d of %d: another would exceed the budget", self.done, steps)
                break
            batch = self.training.next_batch()
            self.training.step(
                self._losses, batch.microbatches(self.recipe.runtime.microbatch_size, lengths=self.lengths)
            )
            self.done = step
            if step % self.recipe.evaluation.every == 0 or step == steps:
                self._note()
            if step % self.recipe.runtime.save_every == 0:
                self._save()
            update(step, steps, self._text())

    def _make(self, mechanism: Mechanism, ledger: Ledger) -> ZerothOrderTraining:
        settings, training = self.recipe.settings(), self.recipe.training
        return make_zeroth_order(
            self.model,
            mechanism=mechanism,
            clipping_norm=settings.clipping_norm,
            dataset_size=len(self.workload.rows),
            sampling_rate=settings.sampling_rate,
            divisor=settings.divisor,
            smoothing=training.smoothing,
            learning_rate=_schedule(training),
            weight_decay=training.weight_decay,
            directions=training.directions,
            ledger=ledger,
            adjacency=settings.adjacency,
            seed=self.recipe.runtime.noise_seed,
            secure=self.recipe.runtime.secure,
        )

    def _losses(self, indices: Tensor) -> Tensor:
        batch = self.workload.collate([self.workload.rows[index] for index in indices.tolist()])
        enabled = self.recipe.runtime.bf16 is True
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled):
            return self.workload.losses(self.model, {name: value.to(self.device) for name, value in batch.items()})

    def _note(self) -> None:
        found = self.workload.evaluate(self.model, "dev", final=False)
        self.history.append({"step": self.done, "epsilon": self.budget.spent(), **found})
        _LOG.info("step %d/%d: %s", self.done, self.recipe.training.releases, self._text())

    def _text(self) -> str:
        spent, seeded = self.budget.spent(), self.training.seeded
        return note({**self.history[-1], "epsilon": spent, "not_private": seeded}, self.recipe.privacy.delta)

    # ---- checkpoints --------------------------------------------------------------------------------------------

    def _save(self) -> None:
        trained = {name: p.detach().cpu() for name, p in self.model.named_parameters() if p.requires_grad}
        state = {
            "step": self.done,
            "charged": self.training.ledger.steps,
            "trained": trained,
            "training": self.training.state_dict(),
            "history": self.history,
        }
        self.checkpoint.save(state)

    def _restore(self) -> None:
        fields = {"step": int, "charged": int, "trained": dict, "training": dict, "history": list}
        state = self.checkpoint.load(fields)
        try:
            for line in state["history"]:
                check_fields(line, {"step": int})
            parameters = self._restored_parameters(state["trained"])
            self.training.load_state_dict(state["training"])
        except ValueError as error:
            raise ValueError(f"the checkpoint {self.checkpoint.path} is damaged: {error}") from error
        with torch.no_grad():
            for parameter, value in parameters:
                parameter.copy_(value)
        self.done, self.history = state["step"], state["history"]
        ledger = self.training.ledger
        check_continues(ledger, max(state["step"], state["charged"]))
        _LOG.warning("resumed at step %d; %d steps are taken and charged again", self.done, ledger.steps - self.done)

    def _restored_parameters(self, trained: dict[str, Any]) -> list[tuple[nn.Parameter, Tensor]]:
        """The trained parameters with their values of then. Raises ValueError naming one that does not fit."""
        own = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if odd := sorted(map(str, own.keys() ^ trained.keys())):
            raise ValueError(f"missing or unknown trained parameter {odd[0]!r}")
        check_fields(trained, dict.fromkeys(own, Tensor))
        for name, parameter in own.items():
            found = trained[name]
            if (found.shape, found.dtype) != (parameter.shape, parameter.dtype):
                raise ValueError(
                    f"expected {name} of shape {tuple(parameter.shape)} and {parameter.dtype}, got "
                    f"{tuple(found.shape)} and {found.dtype}"
                )
        return [(parameter, trained[name]) for name, parameter in own.items()]


def _schedule(training: TrainingSection) -> Any:
    """Learning rate as a function of the updates made."""
    total, warmup = training.releases, training.warmup_steps

    def rate(updates: int) -> float:
        if updates < warmup:
            return training.learning_rate * updates / warmup
        share = (updates - warmup) / max(1, total - warmup)
        factors = {"linear": 1 - share, "cosine": (1 + math.cos(math.pi * share)) / 2, "constant": 1.0}
        return training.learning_rate * max(0.0, factors[training.schedule])

    return rate


def _device(name: str) -> torch.device:
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
