"""What a search is asked for: a privacy budget, how the noise is used, and the cost to make small."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, final

import numpy as np

from ..mechanisms import Mechanism, _validate

Cost = str | Callable[[Mechanism], float]

ADJACENCIES = {"add_or_remove_one": 1.0, "replace_one": 2.0}
"""Adjacency, and the L2 shift that it allows in units of the clipping norm C."""
_COST_RULE = "mean_abs, variance, usefulness:GAMMA with GAMMA > 0, or a function of the mechanism"


@final
@dataclasses.dataclass(frozen=True)
class UnavailableCost:
    """Stands in for a caller's cost function in a result read from a file; the function itself is not stored."""

    name: str

    def __call__(self, mechanism: Mechanism) -> float:
        raise ValueError(f"expected the cost function {self.name!r} in code: a result file keeps only its name")


@final
@dataclasses.dataclass(frozen=True)
class Problem:
    """Make `cost` small subject to (`epsilon`, `delta`)-DP of `steps` releases.

    Each release adds the noise to a vector of `dimension` coordinates (an integer, or `math.inf` for a bound that
    holds in every dimension) to which one record contributes at most 1 in L2 norm (units of the clipping norm C),
    and sees each record with probability `sampling_rate` (Poisson). `cost`, smaller is better:

    - "mean_abs": E|X| per coordinate, in units of C;
    - "variance": E X² per coordinate, in units of C²;
    - "usefulness:GAMMA": P(|X| > GAMMA) per coordinate, GAMMA in units of C (so P(|X| <= GAMMA) is maximised);
    - any function of a mechanism.
    """

    epsilon: float
    delta: float
    steps: int = 1
    sampling_rate: float = 1.0
    dimension: float = 1
    cost: Cost = "mean_abs"
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
        if not callable(self.cost):
            _parse_cost(self.cost)
        seen = -math.expm1(self.steps * math.log1p(-self.sampling_rate)) if self.sampling_rate < 1 else 1.0
        if self.delta >= seen:
            raise ValueError(
                f"expected delta < {seen:.6g}, the probability that a record is ever sampled, got delta={self.delta}: "
                "no noise is needed above it"
            )

    @property
    def shift(self) -> float:
        """The largest L2 distance of two adjacent releases, in units of C."""
        return ADJACENCIES[self.adjacency]

    @property
    def cost_kind(self) -> str:
        """ "mean_abs", "variance", "usefulness" or "callable"."""
        return "callable" if callable(self.cost) else _parse_cost(self.cost)[0]

    @property
    def usefulness_radius(self) -> float:
        """The γ of "usefulness:γ", in units of C."""
        if self.cost_kind != "usefulness":
            raise ValueError(f"expected a cost of the form usefulness:GAMMA, got cost={self.cost!r}")
        return _parse_cost(self.cost)[1]

    @property
    def cost_name(self) -> str:
        """The cost as text; a function shows as "callable:NAME"."""
        if not callable(self.cost):
            return self.cost
        name = self.cost.name if isinstance(self.cost, UnavailableCost) else getattr(self.cost, "__name__", "function")
        return f"callable:{name}"

    @property
    def cost_label(self) -> str:
        """The cost in words, with its unit."""
        return {
            "mean_abs": "E|X| [C]",
            "variance": "variance [C²]",
            "usefulness": f"P(|X| > {self.usefulness_radius:g} C)" if self.cost_kind == "usefulness" else "",
            "callable": self.cost_name,
        }[self.cost_kind]

    def cost_of(self, mechanism: Mechanism) -> float:
        """The cost of one noise; `inf` where the moment does not exist. NaN is refused."""
        if callable(self.cost):
            return _validate.real("cost", float(self.cost(mechanism)))
        kind, radius = _parse_cost(self.cost)
        if kind == "mean_abs":
            return mechanism.mean_abs
        if kind == "variance":
            return mechanism.variance
        return float(2 * np.exp(mechanism.log_tail(radius)))

    def budget(self) -> dict[str, Any]:
        """The keyword arguments of `accounting.epsilon`, but for the target itself."""
        return {
            "delta": self.delta,
            "steps": self.steps,
            "sampling_rate": self.sampling_rate,
            "dimension": self.dimension,
            "adjacency": self.adjacency,
        }

    def document(self) -> dict[str, Any]:
        """JSON-ready fields. An infinite dimension is null with "every_dimension": true."""
        fields = {"epsilon": self.epsilon, **self.budget(), "cost": self.cost_name, "every_dimension": False}
        if self.dimension == math.inf:
            fields |= {"dimension": None, "every_dimension": True}
        return fields

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Problem:
        """The problem that `document` wrote; unknown or missing fields raise ValueError naming the field."""
        known = {field.name for field in dataclasses.fields(cls)} | {"every_dimension"}
        if not isinstance(document, dict) or set(document) != known:
            odd = sorted(set(document) ^ known)[0] if isinstance(document, dict) else "problem"
            raise ValueError(
                f"unknown or missing field {odd!r} in a search problem; fields: {', '.join(sorted(known))}"
            )
        fields = dict(document)
        if fields.pop("every_dimension"):
            fields["dimension"] = math.inf
        if str(fields["cost"]).startswith("callable:"):
            fields["cost"] = UnavailableCost(fields["cost"].removeprefix("callable:"))
        return cls(**fields)


def _parse_cost(cost: Any) -> tuple[str, float]:
    """(kind, γ); γ is NaN for the costs without one."""
    if cost in ("mean_abs", "variance"):
        return cost, math.nan
    kind, colon, radius = str(cost).partition(":")
    if isinstance(cost, str) and kind == "usefulness" and colon:
        try:
            return kind, _validate.positive("usefulness radius", float(radius))
        except ValueError:
            pass
    raise ValueError(f"expected cost to be {_COST_RULE}; got cost={cost!r}")
