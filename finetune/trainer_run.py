"""One `train()` of the Trainer: what is fixed before it, its ledger, its private state in checkpoints, its ε."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import random
import secrets
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import nn
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..accounting import EpsilonInterval, Ledger, rounded_up
from ..mechanisms import Mechanism
from ..mechanisms._json import read_json
from .budget import Budget, check_continues, check_noise, check_same_kind
from .checkpoint import Checkpoint, check_fields, check_same
from .layer_rules import Rules
from .private import PrivateTraining, make_private
from .processes import Processes, find_processes
from .randomness import secret_generator
from .sampling import LogicalBatch
from .settings import PrivacySettings
from .shared_ledger import open_ledger

_LOG = logging.getLogger(__name__)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What is decided before the data are seen."""

    mechanism: Mechanism
    privacy: PrivacySettings
    noise_seed: int | None = None
    secure: bool = False
    rules: Rules
    fallback: bool = True
    continue_ledger: bool = False

    @property
    def seeded(self) -> bool:
        """Whether the run is repeatable, and so *not private*."""
        return self.noise_seed is not None

    def binding(self, dataset_size: int, dimension: int) -> dict[str, Any]:
        """What a continuation must have in common with the run that it continues."""
        document = {
            "mechanism": self.mechanism.spec(),
            "privacy": self.privacy.model_dump(),
            "dataset_size": dataset_size,
            "dimension": dimension,
            "noise_seed": self.noise_seed,
            **({"secure": True} if self.secure else {}),
        }
        return json.loads(json.dumps(document))


@final
class PrivateRun:
    """From the checks before training to the last step. Its `end` leaves no hook behind."""

    def __init__(
        self, plan: Plan, ledger: Ledger | str | os.PathLike[str], *, dataset_size: int, dimension: int, resume: Any
    ) -> None:
        self.plan, self.dataset_size, self.dimension = plan, dataset_size, dimension
        self.processes = find_processes("auto")
        self.planned: EpsilonInterval = check_noise(plan.privacy, plan.mechanism, dimension)
        self._resumed_from = resume
        self._state = None if resume is None else _resumed_state(Path(resume), plan.binding(dataset_size, dimension))
        may_create = self._state is None or self._state["step"] == 0
        self.ledger = _open_ledger(ledger, may_create=may_create, processes=self.processes)
        self.done = 0 if self._state is None else int(self._state["step"])
        self._check_ledger()
        self.budget = Budget(plan.privacy, self.planned, self.ledger)
        self.training: PrivateTraining | None = None
        self.batch: LogicalBatch | None = None
        self.stopped_at_budget = False

    # ---- begin and end --------------------------------------------------------------------------------------------

    def begin(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Model and optimizer become private. Raises ValueError if the model is not what was checked."""
        privacy = self.plan.privacy
        self.training = make_private(
            model,
            optimizer,
            mechanism=self.plan.mechanism,
            clipping_norm=privacy.clipping_norm,
            dataset_size=self.dataset_size,
            sampling_rate=privacy.sampling_rate,
            divisor=privacy.divisor,
            ledger=self.ledger,
            adjacency=privacy.adjacency,
            seed=self.plan.noise_seed,
            secure=self.plan.secure,
            rules=self.plan.rules,
            fallback=self.plan.fallback,
        )
        if self.training.dimension != self.dimension:
            raise ValueError(
                f"the model trains {self.training.dimension} parameters, the noise was checked for {self.dimension}"
            )
        check_same_kind(self.ledger, self.training.release)
        if self._state is not None:
            self._load_generators(self.training, self._state["generators"])
        if not self.plan.seeded:
            _make_masks_secret()
        if self.processes.is_first:
            self._announce()

    def _load_generators(self, training: PrivateTraining, state: dict[str, Any]) -> None:
        try:
            training.load_state_dict(state)
        except ValueError as error:
            raise ValueError(f"the checkpoint {self._resumed_from} is damaged: generators: {error}") from error

    def end(self) -> None:
        """Detach from model and optimizer; safe to call twice."""
        if self.training is not None:
            self.training.detach()
        self.training = self.batch = None

    def active(self) -> PrivateTraining:
        """The training in progress. Raises RuntimeError outside `train()`, and where its callback was removed."""
        if self.training is None:
            raise RuntimeError("no private training is in progress: call train(), and keep its callback")
        return self.training

    def _announce(self) -> None:
        privacy = self.plan.privacy
        if self.plan.seeded:
            _LOG.warning("noise_seed=%s: whoever has it can undo the noise; NOT private", self.plan.noise_seed)
        _LOG.info(
            "private training: %d steps, proven epsilon <= %s at delta = %r, %s",
            privacy.steps,
            rounded_up(self.planned.upper),
            privacy.delta,
            privacy.adjacency,
        )
        if self._state is not None and (spent := self.budget.spent()) is not None:
            _LOG.warning(
                "resumed at step %d; %d steps taken after it are taken and charged again, epsilon <= %s so far",
                self.done,
                self.ledger.steps - self.done,
                rounded_up(spent),
            )

    # ---- steps ----------------------------------------------------------------------------------------------------

    def draw(self, step: int) -> LogicalBatch | None:
        """The batch for the step after `step` of them, or None if the run or its budget has come to its end."""
        if step >= self.plan.privacy.steps or not self.may_go_on(step):
            return None
        self.batch = self.active().next_batch()
        return self.batch

    def may_go_on(self, step: int) -> bool:
        """Whether the budget allows a step after `step` of them; the first refusal is logged."""
        steps = self.plan.privacy.steps
        if step >= steps or self.ledger.steps < steps:  # within the plan, which is within the budget
            return True
        if self.processes.from_first("asking the budget", self.budget.allows_another_step):
            return True
        if not self.stopped_at_budget and self.processes.is_first:
            _LOG.warning(
                "stopped after step %d of %d: the ledger has %d releases, another one would exceed epsilon = %g",
                step,
                self.plan.privacy.steps,
                self.ledger.steps,
                self.plan.privacy.epsilon,
            )
        self.stopped_at_budget = True
        return False

    def annotate(self, logs: dict[str, Any]) -> None:
        """Put ε (proven upper end, rounded up), and what else must be said of it, into a line of the log."""
        spent = self.budget.spent()
        if spent is not None:
            logs["epsilon"] = _shown(spent, self.plan.privacy.epsilon)
        if self.plan.seeded:
            logs["not_private"] = True
        if self.stopped_at_budget:
            logs["stopped_at_budget"] = True

    # ---- checkpoints ----------------------------------------------------------------------------------------------

    def save(self, folder: Path, step: int) -> None:
        """Add the private state to a checkpoint of the Trainer, readable by the owner only, if there is that folder.

        In a private run the states of the global generators are taken out of it: dropout masks are secret too. Each
        process has written a file of those; the rest is the first one's.
        """
        self.processes.agreed("saving", lambda: None)  # all have written their files
        if not folder.is_dir():
            return
        state = {
            "binding": json.dumps(self.plan.binding(self.dataset_size, self.dimension), sort_keys=True),
            "step": step,
            "charged": self.ledger.steps,
            "generators": self.active().state_dict(),
        }
        for file in folder.glob("rng_state*.pth"):
            if not self.plan.seeded:
                file.unlink(missing_ok=True)  # another process may have been here
            else:
                file.chmod(0o600)
        if self.processes.is_first:
            Checkpoint(folder / "private").save(state)  # last of all: where it is, the checkpoint is whole

    def _check_ledger(self) -> None:
        if self._state is None and self.ledger.steps and not self.plan.continue_ledger:
            raise ValueError(
                f"the ledger {self.ledger.path or ''} has {self.ledger.steps} releases already: continue that run by "
                "resume_from_checkpoint, or give another output_dir or ledger"
            )
        charged = 0 if self._state is None else max(self.done, self._state["charged"])
        check_continues(self.ledger, charged)


def _shown(spent: float, target: float) -> float:
    """Rounded up to the four digits that progress bars print; a budget that is kept is not shown as exceeded."""
    if not math.isfinite(spent):
        return spent
    shown = float(rounded_up(spent, 4))
    return min(shown, target) if spent <= target else shown


def _open_ledger(ledger: Ledger | str | os.PathLike[str], *, may_create: bool, processes: Processes) -> Ledger:
    def make_place() -> None:
        if isinstance(ledger, Ledger) or not processes.is_first:
            return
        path = Path(ledger)
        if not may_create and not path.exists():
            raise ValueError(f"there is no ledger at {path}: without its ledger a run cannot be continued")
        path.parent.mkdir(parents=True, exist_ok=True)

    processes.agreed("finding the ledger", make_place)
    return open_ledger(ledger, processes)


def last_checkpoint(folder: str | Path) -> str | None:
    """The latest checkpoint in `folder` that was written to its end; None if there is none.

    A process that is killed while it saves leaves a folder without the private part, which is written last.
    """
    numbered = []
    for path in Path(folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        step = path.name.rpartition("-")[2]
        if step.isdigit() and Checkpoint(path / "private").exists():
            numbered.append((int(step), str(path)))
    return max(numbered)[1] if numbered else None


def _resumed_state(folder: Path, binding: dict[str, Any]) -> dict[str, Any]:
    """The private state of the checkpoint. Raises ValueError naming what is not the same as then."""
    checkpoint = Checkpoint(folder / "private")
    if not checkpoint.exists():
        raise ValueError(f"{folder} is no checkpoint of a PrivateTrainer: {checkpoint.path} is missing")
    state = checkpoint.load({"binding": str, "step": int, "charged": int, "generators": dict})
    try:
        before = read_json(state["binding"])
        check_fields(before, {})
    except ValueError as error:
        raise ValueError(f"the checkpoint {checkpoint.path} is damaged: binding: {error}") from error
    check_same(before, binding)
    return state


def _make_masks_secret() -> None:
    """Dropout masks and a collator's draws: were they known, a record more would shift all others in a known way."""
    torch.set_rng_state(secret_generator("cpu").get_state())
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(secrets.randbits(63))
    random.seed(secrets.token_bytes(64))
    np.random.seed(np.frombuffer(secrets.token_bytes(64), dtype=np.uint32))  # noqa: NPY002 (collators use it)
