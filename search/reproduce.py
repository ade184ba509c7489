"""The published LMO-DP parameter sets (arXiv 2405.18776) and what each guarantees: one row for each.

A row holds what the published procedure prints, the same bound kept inside its domain, the exact scalar value (u
hidden), the proven intervals for 4, 100 and all dimensions, and what Gaussian and Laplace noise cost that give the same
guarantee. Unit sensitivity, one release, add-or-remove-one: lengths are in units of the clipping norm.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

from ..accounting import calibrate, epsilon, rounded_down, rounded_up
from ..accounting.published import published_epsilon, reproduce_published_epsilon
from ..mechanisms import Mechanism, ScaleMixture, _validate
from ..mechanisms._json import read_json

_KEYS = {
    "a1": "gamma_weight",
    "G_k": "gamma_shape",
    "G_theta": "gamma_scale",
    "a3": "exponential_weight",
    "E_lambda": "exponential_rate",
    "a4": "uniform_weight",
    "U_a": "uniform_low",
    "U_b": "uniform_high",
}
_TERMS = {"a1": ("G_k", "G_theta"), "a3": ("E_lambda",), "a4": ("U_a", "U_b")}


@final
@dataclasses.dataclass(frozen=True)
class ParameterSet:
    """A published noise and the name under which it is known."""

    label: str
    mixture: ScaleMixture


@final
@dataclasses.dataclass(frozen=True)
class Costs:
    """Variance and E|x| per coordinate of noise calibrated to a given guarantee."""

    variance: float
    mean_abs: float


@final
@dataclasses.dataclass(frozen=True)
class Row:
    """One parameter set at δ. Every ε is of one release; `published` is a guarantee of nothing by itself.

    published, published_order, published_order_in_domain: what the published procedure prints (NaN if nothing), at
        which integer order, and whether the bound is finite there.
    in_domain: the published bound at the best real order inside its domain; proven for one scalar.
    exact_scalar: proven ε of one scalar release, u hidden.
    dimension_4, dimension_100, dimension_inf: (lower, upper) around ε when one record's L2-bounded contribution may
        spread over so many coordinates; `inf` for every dimension at once.
    variance, mean_abs: of the noise itself, per coordinate.
    gaussian_scalar, laplace_scalar: costs of noise with ε <= exact_scalar for one scalar release.
    gaussian_inf, laplace_inf: costs of noise with ε <= dimension_inf's upper end in every dimension.
    """

    label: str
    published: float
    published_order: float
    published_order_in_domain: bool
    in_domain: float
    exact_scalar: float
    dimension_4: tuple[float, float]
    dimension_100: tuple[float, float]
    dimension_inf: tuple[float, float]
    variance: float
    mean_abs: float
    gaussian_scalar: Costs
    laplace_scalar: Costs
    gaussian_inf: Costs
    laplace_inf: Costs

    def document(self) -> dict[str, Any]:
        """The row as JSON data: intervals as [lower, upper], costs as one key each, a number that is not finite as
        null."""
        flat: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Costs):
                family, where = field.name.split("_")
                flat[f"{family}_variance_{where}"] = _number(value.variance)
                flat[f"{family}_mean_abs_{where}"] = _number(value.mean_abs)
            elif isinstance(value, tuple):
                flat[field.name] = [_number(end) for end in value]
            else:
                flat[field.name] = _number(value) if isinstance(value, float) else value
        return flat


def published_sets() -> tuple[ParameterSet, ...]:
    """The two worked examples: the parameter files labelled ε = 0.3 and ε = 0.15."""
    first = {"a1": 0.1, "a3": 0.1, "a4": 0.1, "G_theta": 0.5, "G_k": 1, "E_lambda": 5, "U_a": 1, "U_b": 2}
    second = {"a1": 0.1, "a3": 0.1, "a4": 0.1, "G_theta": 7.5, "G_k": 1, "E_lambda": 0.5, "U_a": 0, "U_b": 1}
    return tuple(ParameterSet(label, mixture_of(values)) for label, values in (("0.3", first), ("0.15", second)))


def mixture_of(values: Any) -> ScaleMixture:
    """The noise with the authors' parameters: a1, a3, a4, G_theta, G_k, E_lambda (a rate, as their bound reads it),
    U_a, U_b. A term with weight 0 is absent; its parameters may be left out.

    Raises:
        ValueError: not an object, a key is missing or unknown, or a value is not in range; it names the key.
    """
    if not isinstance(values, dict):
        raise ValueError(f"expected an object with the keys {', '.join(_KEYS)}, got {values!r}")
    if unknown := sorted(set(values) - set(_KEYS)):
        raise ValueError(f"unknown key {unknown[0]!r}; expected {', '.join(_KEYS)}, and label")
    arguments: dict[str, float] = {}
    for weight, names in _TERMS.items():
        _require(values, weight)
        if _validate.non_negative(weight, values[weight]) == 0:
            continue
        for name in names:
            _require(values, name)
            check = _validate.non_negative if name == "U_a" else _validate.positive
            arguments[_KEYS[name]] = check(name, values[name])
        arguments[_KEYS[weight]] = float(values[weight])
    if not arguments:
        raise ValueError("expected at least one of a1, a3, a4 above 0, got a1=a3=a4=0")
    if "uniform_low" in arguments and arguments["uniform_low"] > arguments["uniform_high"]:
        raise ValueError(f"expected U_a <= U_b, got U_a={values['U_a']}, U_b={values['U_b']}")
    return ScaleMixture(**arguments)


def read_parameters(path: str | Path) -> ParameterSet:
    """One parameter set from a JSON file in the authors' key names; `label` is optional (else the file's name).

    Raises:
        ValueError: the file is not such a document; it names the file and the key.
        OSError: the file cannot be read.
    """
    path = Path(path)
    text = path.read_bytes()
    try:
        document = read_json(text)
        label = document.pop("label", path.stem) if isinstance(document, dict) else path.stem
        if not isinstance(label, str):
            raise ValueError(f"expected label to be a text, got label={label!r}")
        return ParameterSet(label, mixture_of(document))
    except ValueError as error:
        raise ValueError(f"parameters={str(path)!r}: {error}") from None


def published_rows(sets: Sequence[ParameterSet], *, delta: float) -> list[Row]:
    """One row for each set, in order; a few seconds each.

    Raises:
        ValueError: δ is not in (0, 1).
    """
    _validate.open_unit("delta", delta)
    return [_row(entry, delta) for entry in sets]


def render_rows(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, one column for each set; guarantees are rounded up, lower ends down."""
    lines = [["", *(f"labelled {row.label}" for row in rows)], ["---"] * (len(rows) + 1)]
    for title, cell in _LINES:
        lines.append([title, *(cell(row) for row in rows)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _interval(ends: tuple[float, float]) -> str:
    return f"[{rounded_down(ends[0])}, {rounded_up(ends[1])}]"


def _cost(costs: Costs) -> str:
    return f"{costs.variance:.5g}, {costs.mean_abs:.5g}"


def _where(row: Row) -> str:
    return f"{row.published_order:g}, {'inside' if row.published_order_in_domain else 'outside'}"


_LINES: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("ε the published procedure prints", lambda row: f"{row.published:.5g}"),
    ("at order, the bound's domain", _where),
    ("ε of the same bound in its domain (scalar)", lambda row: rounded_up(row.in_domain)),
    ("ε exact, one scalar", lambda row: rounded_up(row.exact_scalar)),
    ("ε in 4 dimensions", lambda row: _interval(row.dimension_4)),
    ("ε in 100 dimensions", lambda row: _interval(row.dimension_100)),
    ("ε in every dimension", lambda row: _interval(row.dimension_inf)),
    ("its variance, E\\|x\\|", lambda row: _cost(Costs(row.variance, row.mean_abs))),
    ("Gaussian's, same scalar ε", lambda row: _cost(row.gaussian_scalar)),
    ("Laplace's, same scalar ε", lambda row: _cost(row.laplace_scalar)),
    ("Gaussian's, same ε in every dimension", lambda row: _cost(row.gaussian_inf)),
    ("Laplace's, same ε in every dimension", lambda row: _cost(row.laplace_inf)),
)


def _row(entry: ParameterSet, delta: float) -> Row:
    mixture = entry.mixture
    printed = reproduce_published_epsilon(mixture, delta=delta)
    scalar = epsilon(mixture, delta=delta, dimension=1).upper
    four, hundred, every = (epsilon(mixture, delta=delta, dimension=d) for d in (4, 100, math.inf))
    return Row(
        label=entry.label,
        published=printed.epsilon,
        published_order=printed.order,
        published_order_in_domain=printed.in_domain,
        in_domain=published_epsilon(mixture, delta=delta),
        exact_scalar=scalar,
        dimension_4=(four.lower, four.upper),
        dimension_100=(hundred.lower, hundred.upper),
        dimension_inf=(every.lower, every.upper),
        variance=mixture.variance,
        mean_abs=mixture.mean_abs,
        gaussian_scalar=_costs("gaussian", scalar, delta, 1),
        laplace_scalar=_costs("laplace", scalar, delta, 1),
        gaussian_inf=_costs("gaussian", every.upper, delta, math.inf),
        laplace_inf=_costs("laplace", every.upper, delta, math.inf),
    )


def _costs(family: str, target: float, delta: float, dimension: float) -> Costs:
    if not math.isfinite(target):
        return Costs(math.nan, math.nan)  # nothing is proven, so there is nothing to match
    noise: Mechanism = calibrate(family, epsilon=target, delta=delta, dimension=dimension)
    return Costs(noise.variance, noise.mean_abs)


def _require(values: dict[str, Any], key: str) -> None:
    if key not in values:
        raise ValueError(f"the key {key!r} is missing; expected {', '.join(_KEYS)}")


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
