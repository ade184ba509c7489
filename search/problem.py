"""What a search is asked for: a privacy budget, how the noise is used, and the cost to make small."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, final

import numpy as np

from ..mechanisms import Mechanism, _validate
from .constraint import ADJACENCIES, Constraint, constraint_fields

Cost = str | Callable[[Mechanism], float]

_COST_RULE = (
    "mean_abs, variance, usefulness:GAMMA with GAMMA > 0, quantile:P with 0 < P < 1, or a function of the mechanism"
)


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
    - "quantile:P": the x with P(|X| <= x) = P per coordinate, in units of C;
    - any function of a mechanism, which must not fall when the noise is scaled up.

    `also` holds further budgets that the same noise must meet, each with its own use: the noise is scaled to meet all
    of them, and every result says which one binds (0: the fields of the problem itself; i: `also[i-1]`).
    """

    epsilon: float
    delta: float
    steps: int = 1
    sampling_rate: float = 1.0
    dimension: float = 1
    cost: Cost = "mean_abs"
    adjacency: str = "add_or_remove_one"
    also: tuple[Constraint, ...] = ()

    def __post_init__(self) -> None:
        own = self._own()
        object.__setattr__(self, "steps", own.steps)
        object.__setattr__(self, "dimension", own.dimension)
        if not callable(self.cost):
            _parse_cost(self.cost)
        if not isinstance(self.also, tuple | list) or not all(isinstance(other, Constraint) for other in self.also):
            raise ValueError(f"expected also to be a list of Constraint, got also={self.also!r}")
        object.__setattr__(self, "also", tuple(self.also))

    def _own(self) -> Constraint:
        return Constraint(self.epsilon, self.delta, self.steps, self.sampling_rate, self.dimension, self.adjacency)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """All budgets that the noise must meet, the problem's own first."""
        return (self._own(), *self.also)

    @property
    def shift(self) -> float:
        """The largest L2 distance of two adjacent releases, in units of C."""
        return ADJACENCIES[self.adjacency]

    @property
    def cost_kind(self) -> str:
        """ "mean_abs", "variance", "usefulness", "quantile" or "callable"."""
        return "callable" if callable(self.cost) else _parse_cost(self.cost)[0]

    @property
    def usefulness_radius(self) -> float:
        """The γ of "usefulness:γ", in units of C."""
        if self.cost_kind != "usefulness":
            raise ValueError(f"expected a cost of the form usefulness:GAMMA, got cost={self.cost!r}")
        return _parse_cost(self.cost)[1]

    @property
    def quantile_level(self) -> float:
        """The P of "quantile:P", a probability."""
        if self.cost_kind != "quantile":
            raise ValueError(f"expected a cost of the form quantile:P, got cost={self.cost!r}")
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
        if callable(self.cost):
            return self.cost_name
        kind, number = _parse_cost(self.cost)
        return {
            "mean_abs": "E|X| [C]",
            "variance": "variance [C²]",
            "usefulness": f"P(|X| > {number:g} C)",
            "quantile": f"{number:g}-quantile of |X| [C]",
        }[kind]

    def cost_of(self, mechanism: Mechanism) -> float:
        """The cost of one noise; `inf` where the moment does not exist. NaN is refused."""
        if callable(self.cost):
            return _validate.real("cost", float(self.cost(mechanism)))
        kind, number = _parse_cost(self.cost)
        if kind == "mean_abs":
            return mechanism.mean_abs
        if kind == "variance":
            return mechanism.variance
        if kind == "quantile":
            return float(mechanism.tail_quantile(math.log1p(-number) - math.log(2)))
        return float(2 * np.exp(mechanism.log_tail(number)))

    def budget(self) -> dict[str, Any]:
        """The keyword arguments of `accounting.epsilon` for the problem's own budget, but for the target itself."""
        return self._own().budget()

    def document(self) -> dict[str, Any]:
        """JSON-ready fields. An infinite dimension is null with "every_dimension": true."""
        return self._own().document() | {
            "cost": self.cost_name,
            "also": [constraint.document() for constraint in self.also],
        }

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Problem:
        """The problem that `document` wrote; unknown or missing fields raise ValueError naming the field."""
        fields = constraint_fields(document, {field.name for field in dataclasses.fields(cls)}, "search problem")
        if str(fields["cost"]).startswith("callable:"):
            fields["cost"] = UnavailableCost(fields["cost"].removeprefix("callable:"))
        if not isinstance(fields["also"], list):
            raise ValueError(f"expected also to be a list of constraints, got also={fields['also']!r}")
        fields["also"] = tuple(Constraint.from_document(other) for other in fields["also"])
        return cls(**fields)


def _parse_cost(cost: Any) -> tuple[str, float]:
    """(kind, γ or P); NaN for the costs without one."""
    if cost in ("mean_abs", "variance"):
        return cost, math.nan
    kind, colon, number = str(cost).partition(":")
    check = {"usefulness": _validate.positive, "quantile": _validate.open_unit}.get(kind)
    if isinstance(cost, str) and check and colon:
        try:
            return kind, check(kind, float(number))
        except ValueError:
            pass
    raise ValueError(f"expected cost to be {_COST_RULE}; got cost={cost!r}")
