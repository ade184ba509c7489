"""Run a recipe: build, calibrate or check the noise, train, evaluate, report."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from ...accounting import EpsilonInterval, Ledger, rounded_up
from ...mechanisms import Mechanism
from ..models.loading import quiet
from ..processes import refuse_several_processes
from ..secure import check_secure
from ..tasks import ClassificationTask
from .build import build, data_digest
from .folder import RunFolder
from .noise import noise_for, released_dimension
from .outcome import RunResult, Training
from .recipe import Recipe
from .report import write_report
from .workload import Workload
from .zeroth import train_by_forward_passes

_LOG = logging.getLogger(__name__)


def run_recipe(
    recipe: Recipe,
    *,
    mechanism: Mechanism | None = None,
    output_dir: str | Path,
    resume: bool = False,
    progress: bool = True,
    workload: Workload | None = None,
) -> RunResult:
    """Fine-tune privately as `recipe` says; leaves ledger.jsonl, report.json, report.md, plots and the model.

    Args:
        recipe: see `load_recipe`.
        mechanism: noise in units of C; None calibrates the Gaussian to the recipe's ε and δ.
        output_dir: a folder without a run in it, or with `resume` the folder of an interrupted one.
        resume: continue from the last checkpoint, or from the beginning if there is none yet. Steps that were taken
            after it are taken again *and charged again*: where that would exceed the target, the run stops early.
        progress: show bars on the error stream.
        workload: what `build(recipe)` gave; its model is trained in place.

    Raises:
        ValueError: the noise's proven ε exceeds the recipe's, `output_dir` holds another run, nothing to resume,
            recipe, noise or data that are not those of the interrupted run, several processes, or anything that `build`
            refuses.
        ImportError: `runtime.secure` without its package.
    """
    refuse_several_processes("a recipe")
    folder = RunFolder(output_dir)
    check_secure(recipe.runtime.secure, recipe.runtime.noise_seed, name="noise_seed")
    if resume:
        mechanism = folder.noise_of_interrupted(recipe, mechanism)
    else:
        folder.check_free()
    begin = time.perf_counter()
    workload = workload or build(recipe)
    dimension = released_dimension(recipe, workload.dimension)
    mechanism, planned = noise_for(recipe, mechanism, dimension)
    _prepare(workload, progress)
    if resume:
        folder.check_data(data_digest(workload))
    else:
        folder.begin(recipe, mechanism, data_digest(workload))
    training = _train(workload, mechanism, planned, folder, resume=resume, progress=progress)
    interval = Ledger(folder.ledger).epsilon(delta=recipe.privacy.delta)
    _LOG.info("ε <= %s at δ = %r", rounded_up(interval.upper), recipe.privacy.delta)
    return _finish(workload, mechanism, interval, training, folder, begin)


def run_without_privacy(
    recipe: Recipe, *, output_dir: str | Path, progress: bool = True, workload: Workload | None = None
) -> RunResult:
    """The recipe's training with neither clipping nor noise: what privacy is compared with. It promises nothing.

    Raises ValueError as `run_recipe`, and for a zeroth-order recipe.
    """
    if recipe.training.method == "zeroth_order":
        raise ValueError("a zeroth-order recipe has no yardstick without privacy; compare with first_order")
    from .first_order import train_without_privacy

    refuse_several_processes("a recipe")
    folder = RunFolder(output_dir)
    folder.check_free()
    begin = time.perf_counter()
    workload = workload or build(recipe)
    _prepare(workload, progress)
    folder.begin(recipe, None, data_digest(workload))
    training = train_without_privacy(workload, folder, progress=progress)
    return _finish(workload, None, None, training, folder, begin)


def _evaluate(workload: Workload, split: str) -> dict[str, float]:
    """All metrics; for classes also what always answering the split's most common one would reach."""
    found = workload.evaluate(workload.model, split, final=True)
    if isinstance(workload.task, ClassificationTask):
        labels = [example.label for example in workload.examples(split)]
        found["majority_accuracy"] = max(map(labels.count, set(labels))) / len(labels)
    return found


def _prepare(workload: Workload, progress: bool) -> None:
    if workload.rows is None:
        workload.prepare(progress=progress)


def _train(
    workload: Workload,
    mechanism: Mechanism,
    planned: EpsilonInterval,
    folder: RunFolder,
    *,
    resume: bool,
    progress: bool,
) -> Training:
    if workload.recipe.training.method == "zeroth_order":
        return train_by_forward_passes(workload, mechanism, planned, folder, resume=resume, progress=progress)
    from .first_order import train_privately  # needs accelerate

    return train_privately(workload, mechanism, folder, resume=resume, progress=progress)


def _finish(
    workload: Workload,
    mechanism: Mechanism | None,
    interval: EpsilonInterval | None,
    training: Training,
    folder: RunFolder,
    begin: float,
) -> RunResult:
    recipe = workload.recipe
    if recipe.runtime.save_model:
        with quiet():
            workload.save(folder.model)
    metrics = {split: _evaluate(workload, split) for split in workload.evaluation_splits()}
    result = RunResult(
        recipe=recipe,
        mechanism=mechanism,
        epsilon=interval,
        private=mechanism is not None and recipe.runtime.noise_seed is None,
        metrics=metrics,
        training=training,
        dimension=released_dimension(recipe, workload.dimension),
        trained_parameters=workload.dimension,
        train_rows=len(workload.splits.train),
        seconds=time.perf_counter() - begin,
    )
    write_report(result, workload.task.protected_unit, folder.path)
    folder.finish()
    return result
