"""Run a recipe: prepare, calibrate or check the noise, train, report. ε stands in every log line of the training."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import logging
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import safetensors.torch
import torch
from torch import Tensor, nn

from .. import __version__
from ..accounting import EpsilonInterval, calibrate, rounded_up
from ..mechanisms import Gaussian, Mechanism, from_spec, independent
from . import budget
from .checkpoint import Checkpoint, check_same
from .evaluate import accuracy
from .non_private import NonPrivateTraining
from .prepare import Prepared, prepare, trainable_dimension
from .private import PrivateTraining, make_private
from .progress import progress_bar
from .randomness import secret_generator
from .recipe import OptimizerSettings, Recipe

_LOG = logging.getLogger(__name__)
_OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a run found; `report()` is what stands in report.json.

    `epsilon` is None and `delta` is None for a run without privacy. `history` lists (step, accuracy, upper end of ε).
    """

    mechanism: Mechanism | None
    epsilon: EpsilonInterval | None
    delta: float | None
    private: bool
    accuracy: float
    majority_accuracy: float
    history: tuple[tuple[int, float, float | None], ...]
    seconds: float
    details: dict[str, Any]

    def report(self) -> dict[str, Any]:
        """A JSON-ready document."""
        interval = None if self.epsilon is None else {k: _finite(v) for k, v in self.epsilon._asdict().items()}
        return {
            "private": self.private,
            "epsilon": interval,
            "delta": self.delta,
            "mechanism": None if self.mechanism is None else self.mechanism.spec(),
            "accuracy": self.accuracy,
            "majority_accuracy": self.majority_accuracy,
            "seconds": round(self.seconds, 2),
            **self.details,
            "history": [{"step": s, "accuracy": a, "epsilon_upper": e} for s, a, e in self.history],
        }


def run_recipe(
    recipe: Recipe,
    *,
    mechanism: Mechanism | None = None,
    output_dir: str | Path,
    resume: bool = False,
    progress: bool = True,
    prepared: Prepared | None = None,
) -> RunResult:
    """Fine-tune privately as `recipe` says and write report.json, ledger.jsonl and trained.safetensors.

    Args:
        recipe: see `load_recipe`.
        mechanism: noise in units of C; None calibrates the Gaussian to the recipe's ε and δ.
        output_dir: a folder without a run in it, or with `resume` the folder of an interrupted one.
        resume: continue from the last checkpoint with the same randomness. Steps that were taken after it are taken
            again *and charged again*, so ε may end a little above the target; the report gives the true value.
        progress: show bars on the error stream.
        prepared: what `prepare(recipe)` gave, to share it between runs.

    Raises:
        ValueError: the noise's proven ε exceeds the recipe's, `output_dir` holds another run, nothing to resume, or
            the recipe, noise or data are not those of the interrupted run.
    """
    folder = Path(output_dir)
    checkpoint = Checkpoint(folder / "private")
    _check_folder(folder, checkpoint, resume)
    if resume:
        mechanism = _interrupted_noise(recipe, mechanism, checkpoint)
    elif mechanism is not None and prepared is None:  # say no before the frozen part is computed
        check_noise(recipe, mechanism, trainable_dimension(recipe))
    prepared = prepared or prepare(recipe, progress=progress)
    model = prepared.fresh_model()
    mechanism = _noise_for(recipe, mechanism, _dimension(model))
    folder.mkdir(parents=True, exist_ok=True)
    optimizer = _optimizer(model, recipe.optimizer)
    training = make_private(
        model,
        optimizer,
        mechanism=mechanism,
        clipping_norm=recipe.privacy.clipping_norm,
        dataset_size=prepared.train_count,
        sampling_rate=recipe.privacy.sampling_rate,
        divisor=recipe.privacy.divisor,
        adjacency=recipe.privacy.adjacency,
        ledger=folder / "ledger.jsonl",
        seed=recipe.runtime.noise_seed,
    )
    run = _Run(recipe, prepared, training, checkpoint, _binding(recipe, mechanism, prepared), progress)
    if resume:
        run.restore()
    result = run.train(mechanism)
    _write_json(folder / "report.json", result.report())
    trained = {prepared.full_names[n]: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    safetensors.torch.save_file(trained, folder / "trained.safetensors")
    training.detach()
    checkpoint.delete()
    return result


def run_without_privacy(recipe: Recipe, *, progress: bool = True, prepared: Prepared | None = None) -> RunResult:
    """The recipe's training with neither clipping nor noise: what privacy is compared with. It promises nothing."""
    prepared = prepared or prepare(recipe, progress=progress)
    model = prepared.fresh_model()
    training = NonPrivateTraining(
        model,
        _optimizer(model, recipe.optimizer),
        dataset_size=prepared.train_count,
        sampling_rate=recipe.privacy.sampling_rate,
        seed=recipe.runtime.noise_seed,
    )
    return _Run(recipe, prepared, training, None, {}, progress).train(None)


def check_noise(recipe: Recipe, mechanism: Mechanism, dimension: int) -> EpsilonInterval:
    """ε of the whole run with this noise. Raises ValueError if its proven end exceeds the recipe's target."""
    return budget.check_noise(recipe.privacy, mechanism, dimension)


def _noise_for(recipe: Recipe, mechanism: Mechanism | None, dimension: int) -> Mechanism:
    settings = recipe.privacy
    if mechanism is None:
        mechanism = calibrate(
            Gaussian(1.0),
            epsilon=settings.epsilon,
            delta=settings.delta,
            steps=settings.steps,
            sampling_rate=settings.sampling_rate,
            dimension=dimension,
            adjacency=settings.adjacency,
        )
    check_noise(recipe, mechanism, dimension)
    return mechanism


def _interrupted_noise(recipe: Recipe, mechanism: Mechanism | None, checkpoint: Checkpoint) -> Mechanism:
    """The noise of the run to be continued. Raises ValueError if recipe or noise are not the same as then."""
    binding = json.loads(str(checkpoint.load().get("binding")))
    check_same(binding["recipe"], _through_json(recipe.binding()), "recipe.")
    if mechanism is not None:
        check_same(binding["mechanism"], _through_json(mechanism.spec()), "mechanism.")
    return independent(from_spec(binding["mechanism"]))


def _through_json(document: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(document))


def _dimension(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _check_folder(folder: Path, checkpoint: Checkpoint, resume: bool) -> None:
    if resume:
        if not checkpoint.exists():
            raise ValueError(f"there is no run to resume in {folder}: no checkpoint at {checkpoint.path}")
    elif (folder / "ledger.jsonl").exists():
        raise ValueError(f"{folder} holds a run already; resume it or choose another output folder")


def _binding(recipe: Recipe, mechanism: Mechanism, prepared: Prepared) -> dict[str, Any]:
    """What a continuation must have in common with the run that it continues."""
    return {
        "recipe": recipe.binding(),
        "mechanism": mechanism.spec(),
        "data": prepared.data_digest,
        "precision": str(prepared.dtype),
    }


def _optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """The head in a group of its own, for its own learning rate."""
    head = [parameter for name, parameter in model.named_parameters() if name.startswith("head.")]
    in_head = {id(parameter) for parameter in head}
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in in_head]
    groups = [{"params": head, "lr": settings.head_learning_rate or settings.learning_rate}]
    if rest:
        groups.append({"params": rest, "lr": settings.learning_rate})
    return _OPTIMIZERS[settings.name](groups, lr=settings.learning_rate, weight_decay=settings.weight_decay)


class _Run:
    """One training run in progress: the loop, its log lines, its checkpoints."""

    def __init__(
        self,
        recipe: Recipe,
        prepared: Prepared,
        training: PrivateTraining | NonPrivateTraining,
        checkpoint: Checkpoint | None,
        binding: dict[str, Any],
        progress: bool,
    ) -> None:
        self.recipe, self.prepared, self.training = recipe, prepared, training
        self.checkpoint, self.binding, self.progress = checkpoint, binding, progress
        self.model = training.model
        steps = recipe.privacy.steps
        factor = (lambda step: 1 - step / steps) if recipe.optimizer.schedule == "linear" else (lambda step: 1.0)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(training.optimizer, factor)
        self.test_indices = torch.arange(prepared.train_count, len(prepared.features))
        self.done = 0
        self.history: list[tuple[int, float, float | None]] = []
        self.begin, self.seconds_before = time.perf_counter(), 0.0
        self._seed_dropout()

    def _seed_dropout(self) -> None:
        """Dropout masks are secret too: with known masks a record added to a batch would change everybody's."""
        if self._seeded():
            torch.manual_seed(self.recipe.runtime.initial_seed)
        else:
            torch.set_rng_state(secret_generator("cpu").get_state())

    def train(self, mechanism: Mechanism | None) -> RunResult:
        """Go through the steps that are left and sum up."""
        self.begin = time.perf_counter()  # the clock of this process
        self.model.train()
        if self.done == 0:
            self._note()
        with progress_bar("private steps" if mechanism else "steps without privacy", shown=self.progress) as update:
            for step in self._steps():
                update(step, self.recipe.privacy.steps, f"accuracy {self.history[-1][1]:.3f}, {self._epsilon_text()}")
        return self._result(mechanism)

    def _steps(self) -> Iterator[int]:
        steps, every = self.recipe.privacy.steps, self.recipe.runtime.evaluate_every
        for step in range(self.done + 1, steps + 1):
            self._one_step()
            self.done = step
            if step % every == 0 or step == steps:
                self._note()
            yield step

    def _one_step(self) -> None:
        features, labels = self.prepared.features, self.prepared.labels
        batch = self.training.next_batch()
        for indices in batch.microbatches(self.recipe.runtime.microbatch_size, lengths=features.lengths):
            with self.training.record(len(indices)) as recording:
                recording.backward(self._losses(features.batch(indices), labels[indices]))
        self.training.step()
        self.schedule.step()

    def _losses(self, inputs: dict[str, Tensor], labels: Tensor) -> Tensor:
        dtype = self.prepared.dtype
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            logits = self.model(**inputs)
        return nn.functional.cross_entropy(logits.float(), labels, reduction="none")

    def _note(self) -> None:
        """Evaluate, log with ε, checkpoint."""
        prepared = self.prepared
        found = accuracy(self.model, prepared.features, prepared.labels, self.test_indices, dtype=prepared.dtype)
        interval = self._epsilon()
        self.history.append((self.done, found, None if interval is None else _finite(interval.upper)))
        _LOG.info("step %d/%d: accuracy %.4f, %s", self.done, self.recipe.privacy.steps, found, self._epsilon_text())
        self._save()

    def _epsilon(self) -> EpsilonInterval | None:
        if not isinstance(self.training, PrivateTraining):
            return None
        return self.training.epsilon(delta=self.recipe.privacy.delta)

    def _epsilon_text(self) -> str:
        """The ε of the last evaluation, for a line of text."""
        upper = self.history[-1][2]
        if not isinstance(self.training, PrivateTraining):
            return "no privacy"
        text = f"ε <= {rounded_up(math.inf if upper is None else upper)} at δ = {self.recipe.privacy.delta!r}"
        return f"{text} (SEEDED: not private)" if self.training.seeded else text

    # ---- checkpoints --------------------------------------------------------------------------------------------

    def _save(self) -> None:
        if self.checkpoint is None or not isinstance(self.training, PrivateTraining):
            return
        trained = {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}
        self.checkpoint.save(
            {
                "binding": json.dumps(self.binding, sort_keys=True),
                "step": self.done,
                "trained": trained,
                "optimizer": self.training.optimizer.state_dict(),
                "schedule": self.schedule.state_dict(),
                "generators": self.training.state_dict(),
                "dropout": torch.get_rng_state() if self._seeded() else None,
                "history": self.history,
                "seconds": self._seconds(),
            }
        )

    def restore(self) -> None:
        """Take up the last checkpoint. Raises ValueError naming what is not the same as in the interrupted run."""
        assert self.checkpoint is not None
        assert isinstance(self.training, PrivateTraining)
        state = self.checkpoint.load()
        try:
            check_same(json.loads(state["binding"]), _through_json(self.binding))
            parameters = dict(self.model.named_parameters())
            with torch.no_grad():
                for name, value in state["trained"].items():
                    parameters[name].copy_(value)
            self.training.optimizer.load_state_dict(state["optimizer"])
            self.schedule.load_state_dict(state["schedule"])
            self.training.load_state_dict(state["generators"])
            if self._seeded():
                torch.set_rng_state(state["dropout"])
            self.history = [(int(s), float(a), e) for s, a, e in state["history"]]
            self.done, self.seconds_before = int(state["step"]), float(state["seconds"])
        except KeyError as error:
            raise ValueError(f"the checkpoint {self.checkpoint.path} is damaged: {error} is missing") from error
        again = self.training.ledger.steps - self.done
        kinds = {dataclasses.replace(release, steps=1) for release in self.training.ledger.releases}
        if again < 0 or (self.done and kinds != {self.training.release}):
            raise ValueError(
                f"the ledger {self.training.ledger.path} is not that of this run: it has {self.training.ledger.steps} "
                f"releases, the checkpoint was taken after {self.done}; without its ledger a run cannot be continued"
            )
        _LOG.warning(
            "resumed at step %d; %d steps taken after it are taken and charged again, ε <= %s so far",
            self.done,
            again,
            rounded_up(self.training.epsilon(delta=self.recipe.privacy.delta).upper),
        )

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.begin

    # ---- the result ---------------------------------------------------------------------------------------------

    def _result(self, mechanism: Mechanism | None) -> RunResult:
        interval, private = self._epsilon(), mechanism is not None and not self._seeded()
        return RunResult(
            mechanism=mechanism,
            epsilon=interval,
            delta=None if mechanism is None else self.recipe.privacy.delta,
            private=private,
            accuracy=self.history[-1][1],
            majority_accuracy=self.prepared.majority_accuracy,
            history=tuple(self.history),
            seconds=self._seconds(),
            details=self._details(),
        )

    def _seeded(self) -> bool:
        return isinstance(self.training, PrivateTraining) and self.training.seeded

    def _details(self) -> dict[str, Any]:
        settings, training = self.recipe.privacy, self.training
        privacy: dict[str, Any] = {}
        if isinstance(training, PrivateTraining):
            privacy = {
                "adjacency": settings.adjacency,
                "clipping_norm": settings.clipping_norm,
                "divisor": settings.divisor,
                "releases": training.ledger.steps,
                "target_epsilon": settings.epsilon,
            }
        return {
            "seeded": self._seeded(),
            "dataset_size": self.prepared.train_count,
            "test_size": len(self.test_indices),
            "sampling_rate": settings.sampling_rate,
            "steps": settings.steps,
            "dimension": _dimension(self.model),
            **privacy,
            "trained": f"{self.recipe.model.train}"
            + (f", last {self.recipe.model.layers} layers" if self.recipe.model.layers else ""),
            "precision": str(self.prepared.dtype).removeprefix("torch."),
            "preparation_seconds": round(self.prepared.seconds, 2),
            "versions": {
                "optnoise": __version__,
                "torch": str(torch.__version__),
                "transformers": importlib.metadata.version("transformers"),
            },
            "note": "the guarantee covers the training texts; accuracy is measured on test texts, without noise",
        }


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
