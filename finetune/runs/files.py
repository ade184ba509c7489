"""Recipe files: the shipped ones by name, a person's own by path, overrides from the command line."""

from __future__ import annotations

import difflib
import json
import tomllib
import typing
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import pydantic

from ...mechanisms._json import read_text
from .recipe import Recipe, foreign_keys

_INSTEAD = {
    "training.steps": "training.epochs",
    "training.epochs": "training.steps",
    "training.dataset_size": "training.sampling_rate",
    "training.sampling_rate": "training.dataset_size",
    "task.path": "task.hub",
    "task.hub": "task.path",
}
"""Keys of which a recipe has one: an override of one takes the other out."""


def shipped_recipes() -> dict[str, Recipe]:
    """The recipes that come with the package, by name."""
    return {name: load_recipe(name) for name in shipped_names()}


def shipped_names() -> list[str]:
    """Names of the recipes that come with the package."""
    folder = resources.files("optnoise.finetune") / "recipes"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_recipe(recipe: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe: a file, or the name of a shipped one.

    Args:
        recipe: path of a TOML file, or a name among `shipped_names()`.
        overrides: `section.key=value` with the value as in TOML; what is not TOML counts as text. An override of
            `training.steps` takes `training.epochs` out, of `task.path` the `task.hub`, of `training.method` the keys
            of the other method.

    Raises:
        ValueError: no such file or name, not TOML, or a key that is unknown, missing or out of range, by its name.
    """
    text, source = _read(recipe)
    try:
        document = tomllib.loads(text)
    except ValueError as error:
        raise ValueError(f"recipe {source!r} is not TOML: {error}") from error
    except RecursionError:
        raise ValueError(f"recipe {source!r} is nested too deeply") from None
    for override in overrides:
        _apply(document, override)
    return recipe_from(document, source=source)


def recipe_from(document: Mapping[str, Any], *, source: str = "recipe") -> Recipe:
    """Check a recipe given as nested mappings. Raises ValueError naming every key at fault."""
    try:
        return Recipe.model_validate_json(json.dumps(document))
    except pydantic.ValidationError as error:
        faults = [_explain(fault) for fault in error.errors()]
        raise ValueError(f"{source}: {'; '.join(faults)}") from None
    except RecursionError:
        raise ValueError(f"{source}: nested too deeply") from None
    except (TypeError, ValueError) as error:  # dates are TOML, but no value of a recipe; numbers without end
        raise ValueError(f"{source}: {error}") from None


def _read(recipe: str | Path) -> tuple[str, str]:
    if _is_file(recipe):
        return read_text(recipe, "the recipe"), str(recipe)
    names = shipped_names()
    if isinstance(recipe, str) and recipe in names:
        file = resources.files("optnoise.finetune") / "recipes" / f"{recipe}.toml"
        return file.read_text(encoding="utf-8"), recipe
    raise ValueError(f"there is no recipe file {str(recipe)!r}, nor a shipped one of that name: {', '.join(names)}")


def _is_file(recipe: str | Path) -> bool:
    try:
        return Path(recipe).is_file()
    except (OSError, ValueError):  # too long for a name, or no name at all
        return False


def _explain(fault: Any) -> str:
    place = ".".join(str(part) for part in fault["loc"]) or "recipe"
    if fault["type"] == "extra_forbidden":
        return f"{place}: unknown key{_known_keys(fault['loc'])}"
    if fault["type"] == "missing":
        return f"{place}: this key is missing"
    if fault["type"] == "value_error":
        return f"{place}: {fault['msg'].removeprefix('Value error, ')}"
    return f"{place}: {fault['msg']}, got {json.dumps(fault['input'], default=str)}"


def _known_keys(place: Sequence[Any]) -> str:
    """The keys of the section that a foreign one stands in, the nearest first."""
    section: Any = Recipe
    for name in place[:-1]:
        section = section.model_fields[name].annotation if name in getattr(section, "model_fields", {}) else None
    if section is not None and not hasattr(section, "model_fields"):  # an optional section
        section = next((part for part in typing.get_args(section) if hasattr(part, "model_fields")), None)
    names = sorted(section.model_fields) if section is not None else []
    if not names:
        return ""
    close = difflib.get_close_matches(str(place[-1]), names, n=1)
    return f"; {f'did you mean {close[0]}? Known' if close else 'known'}: {', '.join(names)}"


def _apply(document: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *sections, name = (part.strip() for part in key.split("."))
    if not equals or not all([*sections, name]):
        raise ValueError(f"expected an override of the form section.key=value, got {override!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text.strip()
    target = _section(document, sections, override)
    target[name] = value
    if (sections, name) == (["training"], "method"):
        for foreign in foreign_keys(str(value)):
            target.pop(foreign, None)
    other = _INSTEAD.get(".".join([*sections, name]))
    if other is not None:
        target.pop(other.rpartition(".")[2], None)


def _section(document: dict[str, Any], path: Sequence[str], override: str) -> dict[str, Any]:
    target: Any = document
    for part in path:
        target = target.setdefault(part, {})
        if not isinstance(target, dict):
            raise ValueError(f"expected {part} to be a section of the recipe, in the override {override!r}")
    return target
