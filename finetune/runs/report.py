"""The report of a run: report.json, and report.md as a section of a model card."""

from __future__ import annotations

import importlib.metadata
import json
import math
from pathlib import Path
from typing import Any

import torch

from ... import __version__
from ...accounting import rounded_down, rounded_up
from ...mechanisms._json import write_json
from .noise import Opinion, opinions
from .outcome import RunResult
from .plots import plot_metrics
from .recipe import Recipe

_PACKAGES = ("transformers", "accelerate", "peft", "datasets", "sacrebleu")
_NOTES = (
    "The guarantee covers the training rows. Evaluation is on other rows, without noise, and is not covered.",
    "Choosing among several runs, and tuning, cost privacy that is not in this ε.",
    "The number of training rows is stated exactly, as is customary; with add-or-remove adjacency it is not covered.",
)
_ARITHMETIC = "Real-number arithmetic is assumed; floating-point attacks on the noise are not covered."
_SECURE = (
    "Secure mode: noise and samples come from ChaCha20 with a key of the operating system, and each noisy sum is "
    "rounded to a grid that does not depend on the data. The samplers themselves compute in floating point."
)
_NOT_PRIVATE = "NOT PRIVATE: the noise of this run has a seed. Whoever has the seed can undo the noise."
_NO_PRIVACY = "NO PRIVACY: trained with neither clipping nor noise, as a yardstick."


def write_report(result: RunResult, protected_unit: str, folder: Path) -> None:
    """Write report.json, report.md and, where there is a history, metrics.png into `folder`."""
    document = report(result, protected_unit)
    plots = plot_metrics(result, folder / "metrics.png")
    text = markdown(document, result.recipe, plots)
    (folder / "report.md").write_text(text, encoding="utf-8")
    if result.recipe.runtime.save_model:
        (folder / "model" / "README.md").write_text(_without_pictures(text), encoding="utf-8")
    write_json(folder / "report.json", document)  # last and whole: where it is, the run is finished


def _without_pictures(text: str) -> str:
    """The model card that travels with the weights alone."""
    return "\n".join(line for line in text.split("\n") if not line.startswith("!["))


def report(result: RunResult, protected_unit: str) -> dict[str, Any]:
    """A JSON-ready document; infinite numbers are null."""
    recipe = result.recipe
    return {
        "private": result.private,
        "secure": result.mechanism is not None and recipe.runtime.secure,
        **_privacy(result, protected_unit),
        "method": recipe.training.method,
        "task": recipe.task.name,
        "model": recipe.model.source,
        "kind": recipe.model.kind,
        "trained": _trained(recipe),
        "trained_parameters": result.trained_parameters,
        "training_rows": result.train_rows,
        "metrics": _finite(result.metrics),
        "history": _finite(list(result.training.history)),
        "seconds": round(result.seconds, 1),
        "seeds": _public_seeds(result),
        "versions": _versions(),
        "notes": _notes(result),
        "recipe": recipe.model_dump(mode="json", exclude_none=True),
    }


def _privacy(result: RunResult, protected_unit: str) -> dict[str, Any]:
    """What the guarantee is, and all that it was computed from."""
    if result.mechanism is None or result.epsilon is None:
        return {"epsilon": None, "delta": None, "mechanism": None}
    settings, steps = result.recipe.settings(), result.training.releases
    return {
        "epsilon": _finite(result.epsilon._asdict()),
        "delta": settings.delta,
        "target_epsilon": settings.epsilon,
        "adjacency": settings.adjacency,
        "protected_unit": protected_unit,
        "mechanism": result.mechanism.spec(),
        "dimension": result.dimension,
        "clipping_norm": settings.clipping_norm,
        "sampling": "poisson",
        "sampling_rate": settings.sampling_rate,
        "divisor": settings.divisor,
        "planned_steps": settings.steps,
        "releases": steps,
        "stopped_at_budget": result.training.stopped_at_budget,
        "accountants": [_opinion(o) for o in opinions(settings, result.mechanism, result.dimension, steps)],
    }


def _opinion(opinion: Opinion) -> dict[str, Any]:
    if opinion.interval is None:
        return {"accountant": opinion.accountant, "refused": opinion.refusal}
    return {
        "accountant": opinion.accountant,
        **_finite(opinion.interval._asdict()),
        "proven": opinion.accountant != "cf",
    }


def _trained(recipe: Recipe) -> str:
    layers = recipe.model.layers
    return recipe.model.trained + (f", last {layers} layers" if layers else "")


def _public_seeds(result: RunResult) -> dict[str, int]:
    """Seeds on which no guarantee hangs. The noise's is shown where there is one: that run is not private."""
    recipe = result.recipe
    seeds = {"new_weights": recipe.model.head_seed, "held_out_rows": recipe.task.split_seed}
    if recipe.runtime.noise_seed is not None:
        seeds |= {"noise": recipe.runtime.noise_seed, "dropout": recipe.runtime.seed}
    return seeds


def _versions() -> dict[str, str]:
    found = {"optnoise": __version__, "torch": str(torch.__version__)}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _notes(result: RunResult) -> list[str]:
    if result.mechanism is None:
        return [_NO_PRIVACY]
    arithmetic = _SECURE if result.recipe.runtime.secure else _ARITHMETIC
    return [*([] if result.private else [_NOT_PRIVATE]), *_course(result), *_NOTES, arithmetic]


def _course(result: RunResult) -> list[str]:
    """What did not go as planned."""
    training, settings = result.training, result.recipe.settings()
    updates = training.history[-1]["step"] if training.history else training.releases
    found = []
    if training.releases > updates:
        found.append(
            f"The run was interrupted: of {training.releases:,} releases {training.releases - updates:,} were of steps "
            f"that were taken again, and are charged too; the model has {updates:,} updates."
        )
    if training.stopped_at_budget:
        found.append(f"Stopped after step {updates:,}: another release would have exceeded ε = {settings.epsilon:g}.")
    return found


def _finite(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- the model card section ------------------------------------------------------------------------------------------


def markdown(document: dict[str, Any], recipe: Recipe, plots: list[Path]) -> str:
    """The report for people, with the guarantee first."""
    lines = ["## Privacy", "", *_guarantee(document), "", "## Results", "", *_results(document), ""]
    lines += [f"![{plot.stem}]({plot.name})" for plot in plots]
    lines += ["", "## Training", "", *_training(document, recipe), "", "## Notes", ""]
    lines += [f"- {note}" for note in document["notes"]]
    return "\n".join(lines) + "\n"


def _guarantee(document: dict[str, Any]) -> list[str]:
    if document["epsilon"] is None:
        return [_NO_PRIVACY]
    upper, delta = document["epsilon"]["upper"], document["delta"]
    shown = "∞" if upper is None else rounded_up(upper)
    sentence = (
        f"(ε, δ)-differentially private with **ε ≤ {shown}** at δ = {delta:g}, for adding or removing one training row "
        f"({document['protected_unit']})."
    )
    rows = [
        ("mechanism", f"`{json.dumps(document['mechanism'])}`, in units of the clipping norm"),
        ("clipping norm C", f"{document['clipping_norm']:g}"),
        ("released numbers per step", f"{document['dimension']:,}"),
        ("sampling", f"Poisson, rate q = {document['sampling_rate']:.6g}"),
        ("releases T", f"{document['releases']:,} of {document['planned_steps']:,} planned"),
        ("divisor", f"{document['divisor']:g}, fixed before the data were seen"),
    ]
    table = ["| quantity | value |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)]
    opinions = ["| accountant | ε interval |", "| --- | --- |", *map(_opinion_row, document["accountants"])]
    warning = [] if document["private"] else [f"**{_NOT_PRIVATE}**", ""]
    return [*warning, sentence, "", *table, "", *opinions]


def _opinion_row(opinion: dict[str, Any]) -> str:
    if "refused" in opinion:
        return f"| {opinion['accountant']} | refuses: {opinion['refused'].replace('|', '/')} |"
    lower, upper = opinion["lower"], opinion["upper"]
    ends = f"[{rounded_down(lower or 0.0)}, {'∞' if upper is None else rounded_up(upper)}]"
    return f"| {opinion['accountant']} | {ends}{'' if opinion['proven'] else ' (error estimated, not proven)'} |"


def _results(document: dict[str, Any]) -> list[str]:
    names = list(dict.fromkeys(name for found in document["metrics"].values() for name in found))
    lines = [f"| split | {' | '.join(names)} |", "| --- " * (len(names) + 1) + "|"]
    for split, found in document["metrics"].items():
        values = [f"{found[name]:.4g}" if found.get(name) is not None else "" for name in names]
        lines.append(f"| {split} | {' | '.join(values)} |")
    return lines


def _training(document: dict[str, Any], recipe: Recipe) -> list[str]:
    training = recipe.training
    return [
        f"- model: `{document['model']}` ({document['kind']}), trained: {document['trained']}, "
        f"{document['trained_parameters']:,} parameters",
        f"- task: {document['task']}, {document['training_rows']:,} training rows",
        f"- method: {document['method']}, learning rate {training.learning_rate:g}, {training.schedule} schedule, "
        f"expected batch {training.batch_size:g}",
        f"- recipe: {recipe.description}" + (f" Hyper-parameters: {recipe.origin}" if recipe.origin else ""),
        f"- seeds that may be public: {', '.join(f'{k} {v}' for k, v in document['seeds'].items())}",
        f"- versions: {', '.join(f'{k} {v}' for k, v in document['versions'].items())}",
        f"- took {document['seconds']:.0f} s",
    ]
