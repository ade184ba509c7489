"""Families by name, their JSON documents, and the text form of the command line.

A new family of this package is one file and one line in `FAMILIES`; a user's own is registered by `register`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from . import _validate
from ._json import read_json, read_text, write_json
from .base import SPEC_FORMAT, Mechanism
from .gamma_laplace import GammaLaplace
from .gaussian import Gaussian
from .gaussian_mixture import GaussianMixture
from .generalised_gaussian import GeneralisedGaussian
from .laplace import Laplace
from .scale_mixture import ScaleMixture
from .spherical import SphericalGamma
from .staircase import Staircase
from .tabulated import Tabulated
from .truncated_laplace import TruncatedLaplace

FAMILIES: dict[str, type[Mechanism]] = {
    family.family: family
    for family in (
        Gaussian,
        Laplace,
        ScaleMixture,
        GammaLaplace,
        GeneralisedGaussian,
        Staircase,
        GaussianMixture,
        TruncatedLaplace,
        Tabulated,
    )
}
"""Noise drawn independently per coordinate, by name."""

Noise = Mechanism | SphericalGamma
"""Any noise: independent per coordinate, or spherical."""
_ALL: dict[str, type[Noise]] = {**FAMILIES, SphericalGamma.family: SphericalGamma}


Family = TypeVar("Family", bound=type[Mechanism])


def register(cls: Family) -> Family:
    """Class decorator: makes a noise of one's own known by its `family` name to documents, `parse` and `load`.

    The class must be a dataclass that extends `Mechanism`, its parameters numbers or tuples of numbers. Registering a
    class of the same module and name again replaces it (a module that is imported twice); any other use of a taken name
    raises ValueError.
    """
    if not (isinstance(cls, type) and issubclass(cls, Mechanism) and dataclasses.is_dataclass(cls)):
        raise ValueError(f"expected a dataclass that extends Mechanism, got {cls!r}")
    name = getattr(cls, "family", None)
    if not isinstance(name, str) or not name or set(name) & set(":,= "):
        raise ValueError(f"expected {cls.__name__}.family to be a name without ':', ',', '=' or spaces, got {name!r}")
    known = _ALL.get(name)
    if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"the family {name!r} is already registered, by {known.__module__}.{known.__qualname__}")
    FAMILIES[name] = _ALL[name] = cls
    return cls


def family(name: str) -> type[Mechanism]:
    """The class registered under `name`. Raises ValueError with the known names."""
    if name not in FAMILIES:
        raise ValueError(
            f"expected family to be one of {', '.join(FAMILIES)}, got family={name!r}; a family of your own is known "
            "once its file is run or imported"
        )
    return FAMILIES[name]


def from_spec(document: Mapping[str, Any]) -> Noise:
    """The noise that its `spec` wrote. Unknown fields and bad values raise ValueError naming the field."""
    if not isinstance(document, Mapping):
        raise ValueError(f"expected a noise document to be a JSON object, got {document!r}")
    unknown = set(document) - {"format", "family", "parameters"}
    if unknown:
        raise ValueError(f"unknown field {sorted(unknown)[0]!r} in a noise document; known: format, family, parameters")
    for field in ("format", "family", "parameters"):
        if field not in document:
            raise ValueError(f"a noise document lacks the field {field!r}")
    if document["format"] != SPEC_FORMAT:
        raise ValueError(f"expected format={SPEC_FORMAT}, got format={document['format']!r}")
    if not isinstance(document["family"], str) or not isinstance(document["parameters"], Mapping):
        raise ValueError("expected family to be a string and parameters to be a JSON object")
    return _build(document["family"], document["parameters"])


def independent(noise: Noise) -> Mechanism:
    """The same noise if it is drawn independently per coordinate; raises ValueError for spherical noise."""
    if not isinstance(noise, Mechanism):
        raise ValueError(f"expected mechanism to be noise drawn independently per coordinate, got mechanism={noise!r}")
    return noise


def parse(text: str) -> Noise:
    """Read a noise from inline text (`gaussian:noise_multiplier=1.0`) or from the JSON file at that path.

    The numbers of a list are separated by semicolons: `tabulated:knots=1;2,slopes=2;1;0.5`.

    A file holds one noise document, or a search result, whose first (best) noise is taken.
    """
    if not isinstance(text, str):
        raise ValueError(f"expected a noise as text, got {text!r}")
    name, colon, arguments = text.partition(":")
    if name in _ALL and colon:
        cls = _ALL[name]
        lists = {key for key in (*_field_names(cls), *cls.short_keys) if _is_list(cls, cls.short_keys.get(key, key))}
        return _build(name, _read_arguments(text, arguments, lists))
    if _is_file(text):
        return load(text)
    if name in _ALL:
        raise ValueError(f"expected parameters after the family, got {text!r}; write {_pattern(name)}")
    if not colon and name.endswith(".json"):
        raise ValueError(f"expected a noise file, got {text!r}: there is no such file in {str(Path.cwd())!r}")
    raise ValueError(f"expected a noise file or FAMILY:KEY=VALUE,… with FAMILY one of {', '.join(_ALL)}; got {text!r}")


def _pattern(name: str) -> str:
    """The text form of a family."""
    return f"{name}:" + ",".join(f"{key}=…" for key in _field_names(_ALL[name]))


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or no name at all
        return False


def inline(noise: Noise) -> str:
    """The noise as inline text, which `parse` reads back to an equal one."""
    parameters = noise.spec()["parameters"]
    return f"{noise.family}:" + ",".join(f"{key}={_text(value)}" for key, value in parameters.items())


def _text(value: Any) -> str:
    return ";".join(map(repr, value)) if isinstance(value, list | tuple) else repr(value)


def save(noise: Noise, path: str | Path) -> None:
    """Write the noise to a JSON file that `load`, `parse` and every command with a noise read; whole or not at all."""
    write_json(Path(path), noise.spec())


def load(path: str | Path) -> Noise:
    """The noise in a JSON file: a noise document, or a search result with its best noise first."""
    text = read_text(path, "the noise file")
    try:
        document = read_json(text)
    except ValueError as error:
        hint = (
            "; a noise of your own in Python becomes a family by running its file" if str(path).endswith(".py") else ""
        )
        raise ValueError(f"expected JSON in the noise file {str(path)!r}{hint}: {error}") from error
    try:
        return from_spec(_first_result(document))
    except ValueError as error:
        raise ValueError(f"noise file {str(path)!r}: {error}") from error


def _first_result(document: Any) -> Any:
    if not (isinstance(document, dict) and "results" in document):
        return document
    results = document["results"]
    if not (isinstance(results, list) and results and isinstance(results[0], dict) and "mechanism" in results[0]):
        raise ValueError("expected the field 'results' to be a non-empty list of objects with a 'mechanism'")
    return results[0]["mechanism"]


def _field_names(cls: type[Noise]) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]


def _is_list(cls: type[Noise], field: str) -> bool:
    """Whether the field is declared as a tuple of numbers (annotations are text here)."""
    return next("tuple" in str(f.type) for f in dataclasses.fields(cls) if f.name == field)  # type: ignore[arg-type]


def _value(name: str, field: str, value: Any, *, is_list: bool) -> Any:
    if not is_list:
        return _validate.finite(field, value)
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected {field} of {name} to be a list of numbers, got {field}={value!r}")
    return tuple(_validate.finite(f"{field}[{i}]", item) for i, item in enumerate(value))


def _read_arguments(text: str, arguments: str, lists: set[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in arguments.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            pattern = _pattern(text.partition(":")[0])
            raise ValueError(f"expected KEY=VALUE, got {item!r} in {text!r}; write {pattern}")
        if key in values:
            raise ValueError(f"the parameter {key!r} stands twice in {text!r}")
        if key in lists:
            values[key] = [_number(key, item.strip(), text) for item in value.split(";") if item.strip()]
        else:
            values[key] = _number(key, value, text)
    return values


def _number(key: str, value: str, text: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"expected {key} to be a number, got {key}={value!r} in {text!r}") from None


def _build(name: str, parameters: Mapping[str, Any]) -> Noise:
    cls = _ALL[name] if name in _ALL else family(name)
    fields = _field_names(cls)
    values: dict[str, Any] = {}
    for key, value in parameters.items():
        field = cls.short_keys.get(key, key)
        if field not in fields:
            short = ", ".join(f"{long} ({short})" for short, long in cls.short_keys.items())
            raise ValueError(f"unknown parameter {key!r} of {name}; known: {short or ', '.join(fields)}")
        if field in values:
            raise ValueError(f"the parameter {field!r} of {name} is given twice")
        values[field] = _value(name, field, value, is_list=_is_list(cls, field))
    missing = [
        field.name
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        if field.default is dataclasses.MISSING and field.name not in values
    ]
    if missing:
        raise ValueError(f"missing parameter {missing[0]!r} of {name}")
    return cls(**values)
