"""A privacy budget and how the noise is used under it: what an answer must meet."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, final

from ..mechanisms import _validate

ADJACENCIES = {"add_or_remove_one": 1.0, "replace_one": 2.0}
"""Adjacency, and the L2 shift that it allows in units of the clipping norm C."""


@final
@dataclasses.dataclass(frozen=True)
class Constraint:
    """(`epsilon`, `delta`)-DP of `steps` releases of a vector; the same noise is used in each.

    Attributes:
        epsilon: target ε > 0 (no unit), natural logarithm.
        delta: target δ, a probability in (0, 1).
        steps: number of releases composed, T >= 1.
        sampling_rate: q in (0, 1], the Poisson inclusion probability of every record per release.
        dimension: number of coordinates released at once, or `math.inf` for a bound that holds in every dimension.
            One record contributes at most 1 to them in L2 norm (units of the clipping norm C).
        adjacency: "add_or_remove_one" (shift 1) or "replace_one" (shift 2).

    Raises:
        ValueError: a field is out of range (named, with its value and the rule), or δ is so large that no noise is
            needed.
    """

    epsilon: float
    delta: float
    steps: int = 1
    sampling_rate: float = 1.0
    dimension: float = 1
    adjacency: str = "add_or_remove_one"

    def __post_init__(self) -> None:
        _validate.positive("epsilon", self.epsilon)
        _validate.open_unit("delta", self.delta)
        object.__setattr__(self, "steps", _validate.integer("steps", self.steps, minimum=1))
        if _validate.unit_interval("sampling_rate", self.sampling_rate) == 0:
            raise ValueError(f"expected 0 < sampling_rate <= 1, got sampling_rate={self.sampling_rate}")
        if _validate.real("dimension", self.dimension) != math.inf:
            object.__setattr__(self, "dimension", _validate.integer("dimension", self.dimension, minimum=1))
        _validate.one_of("adjacency", self.adjacency, tuple(ADJACENCIES))
        if self.adjacency == "replace_one" and self.sampling_rate < 1:
            raise ValueError(
                f"adjacency=replace_one with sampling_rate={self.sampling_rate} < 1 is not searched: its pair "
                "has no fast bound here; use add_or_remove_one, or sampling_rate=1"
            )
        seen = -math.expm1(self.steps * math.log1p(-self.sampling_rate)) if self.sampling_rate < 1 else 1.0
        if self.delta >= seen:
            raise ValueError(
                f"expected delta < {seen:.6g}, the probability that a record is ever sampled, got delta={self.delta}: "
                "no noise is needed above it"
            )

    @classmethod
    def parse(cls, text: str) -> Constraint:
        """A constraint written as `epsilon=1,delta=1e-5,steps=10`; the other fields keep their defaults."""
        fields: dict[str, Any] = {}
        known = {field.name for field in dataclasses.fields(cls)}
        for item in text.split(","):
            key, equals, value = (part.strip() for part in item.partition("="))
            if not equals or key not in known or key in fields:
                raise ValueError(
                    f"expected NAME=VALUE, once each, with NAME among {', '.join(sorted(known))}; got {item!r}"
                )
            fields[key] = value if key == "adjacency" else _number(key, value)
        if missing := {"epsilon", "delta"} - set(fields):
            raise ValueError(f"expected {sorted(missing)[0]} in the constraint {text!r}")
        return cls(**fields)

    @property
    def shift(self) -> float:
        """The largest L2 distance of two adjacent releases, in units of C."""
        return ADJACENCIES[self.adjacency]

    def budget(self) -> dict[str, Any]:
        """The keyword arguments of `accounting.epsilon`, but for the target itself."""
        return {
            "delta": self.delta,
            "steps": self.steps,
            "sampling_rate": self.sampling_rate,
            "dimension": self.dimension,
            "adjacency": self.adjacency,
        }

    def text(self) -> str:
        """The constraint in words."""
        dimension = "every dimension" if self.dimension == math.inf else f"dimension {self.dimension:g}"
        sampling = "" if self.sampling_rate == 1 else f", sampling rate {self.sampling_rate:g}"
        return (
            f"ε <= {self.epsilon:g} at δ = {self.delta:g}: "
            f"{self.steps} release{'s' * (self.steps > 1)}{sampling}, {dimension}, {self.adjacency}"
        )

    def document(self) -> dict[str, Any]:
        """JSON-ready fields. An infinite dimension is null with "every_dimension": true."""
        fields = {"epsilon": self.epsilon, **self.budget(), "every_dimension": False}
        if self.dimension == math.inf:
            fields |= {"dimension": None, "every_dimension": True}
        return fields

    @classmethod
    def from_document(cls, document: Any) -> Constraint:
        """The constraint that `document` wrote; unknown or missing fields raise ValueError naming the field."""
        return cls(**constraint_fields(document, {field.name for field in dataclasses.fields(cls)}, "constraint"))


def _number(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"expected {key} to be a number, got {key}={value!r}") from None


def constraint_fields(document: Any, names: set[str], what: str) -> dict[str, Any]:
    """The fields of a document that holds `names` and "every_dimension", with the dimension restored."""
    known = names | {"every_dimension"}
    if not isinstance(document, dict) or set(document) != known:
        odd = sorted(set(document) ^ known)[0] if isinstance(document, dict) else what
        raise ValueError(f"unknown or missing field {odd!r} in a {what}; fields: {', '.join(sorted(known))}")
    fields = dict(document)
    if fields.pop("every_dimension"):
        fields["dimension"] = math.inf
    return fields
