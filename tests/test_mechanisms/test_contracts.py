"""Every family keeps every promise that `check_mechanism` tests, and noise that breaks one is caught."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from optnoise.mechanisms import (
    FAMILIES,
    GammaLaplace,
    Gaussian,
    GaussianMixture,
    GeneralisedGaussian,
    Laplace,
    MechanismCheckError,
    ScaleMixture,
    Staircase,
    Tabulated,
    TruncatedLaplace,
    check_mechanism,
)

MECHANISMS = [
    Gaussian(1.3),
    Gaussian(0.02),
    Laplace(2.0),
    GammaLaplace(4.0, 0.3),
    GammaLaplace(2.5, 1.7),
    GammaLaplace(0.7, 1.0),
    ScaleMixture(0.1, 1.0, 0.5, 0.1, 5.0, 0.1, 1.0, 2.0),
    ScaleMixture(0.1, 1.0, 7.5, 0.1, 0.5, 0.1, 0.0, 1.0),
    ScaleMixture(exponential_weight=1.0, exponential_rate=2.0, uniform_weight=0.5, uniform_low=0.5, uniform_high=0.5),
    ScaleMixture(gamma_weight=1.0, gamma_shape=3.5, gamma_scale=0.2),
    GeneralisedGaussian(1.0, 0.3),
    GeneralisedGaussian(1.0, 0.6),
    GeneralisedGaussian(3.0, 1.5),
    GeneralisedGaussian(0.7, 7.0),
    Staircase(1.0, 1.0, 0.3),
    Staircase.least_mean_abs(0.1, 0.3),
    Staircase(2.0, 8.0, 1.0),
    GaussianMixture(1.3, (0.0, 1.0), (0.3, 0.7)),
    GaussianMixture(1.0, (0.0, 3.0), (0.99, 0.01)),
    GaussianMixture(0.8, (0.0, 1.0, 2.0, 3.0, 4.0), (0.6, 0.2, 0.1, 0.06, 0.04)),
    TruncatedLaplace(1.0, 13.0),
    TruncatedLaplace(2.0, 3.0),
    Tabulated((), (0.5,)),
    Tabulated((1.0, 2.0, 5.0), (0.0, 1.0, 3.0, 0.5)),
    Tabulated((1.0, 2.0, 5.0), (2.0, 1.0, 0.5, 0.25)),
    Tabulated((0.3, 2.0, 5.0), (0.1, 1.0, 2.0, 30.0)),
]


def test_every_family_is_tested():
    assert {type(mechanism) for mechanism in MECHANISMS} == set(FAMILIES.values())


FIRST = list({type(mechanism): mechanism for mechanism in reversed(MECHANISMS)}.values())


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_law(mechanism):
    assert check_mechanism(mechanism, level="law").passed


@pytest.mark.parametrize("mechanism", FIRST, ids=repr)
def test_contract(mechanism):
    """One of each family in full; the others in the slow tier."""
    report = check_mechanism(mechanism)
    assert report.passed
    assert len(report.results) >= 20


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_contract_thoroughly(mechanism):
    check_mechanism(mechanism, level="thorough")


@pytest.mark.gpu
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_contract_on_a_gpu(mechanism):
    report = check_mechanism(mechanism)
    assert "GPU" in next(r.detail for r in report.results if r.name == "sampler_follows_the_cdf")


# ---- noise that is wrong on purpose ----------------------------------------------------------------------------------

BASE = Laplace(2.0)
TABLE = Tabulated((1.0, 2.0, 5.0), (0.0, 1.0, 3.0, 0.5))


class _Heavier:
    """Right up to the 1e-3 tail, then three times as far out."""

    def __call__(self, noise, shape, *, generator):
        draws = BASE._draw(shape, generator=generator)
        return torch.where(draws.abs() > BASE.scale * math.log(1e3), 3 * draws, draws)


def _biased_sign(noise, shape, *, generator):
    draws = BASE._draw(shape, generator=generator)
    return torch.where(torch.rand(shape, generator=generator, dtype=torch.float64) < 0.03, draws.abs(), draws)


def _dependent(noise, shape, *, generator):
    draws = BASE._draw(shape, generator=generator)
    return torch.where(torch.arange(len(draws.reshape(-1))).reshape(shape) % 10 == 0, draws.roll(1), draws)


def _global_generator(noise, shape, *, generator):
    return BASE._draw(shape, generator=torch.default_generator)


def _asymmetric(noise, x):
    x = np.asarray(x, dtype=np.float64)
    return BASE.log_density(x) + np.where(x > 0, 0.01, -0.01)


FAULTS = {
    "wrong cdf": (BASE, {"cdf": lambda m, x: BASE.scaled(1.01).cdf(x)}, "cdf_is_the_integral_of_the_density"),
    "wrong tail": (BASE, {"log_tail": lambda m, x: BASE.log_tail(np.asarray(x) * 1.001)}, "tail_is_the_integral"),
    "density without its constant": (
        BASE,
        {"log_density": lambda m, x: BASE.log_density(x) + 1e-3},
        "density_integrates_to_one",
    ),
    "asymmetric density": (BASE, {"log_density": _asymmetric}, "density_is_symmetric_and_falls"),
    "rising density": (
        BASE,
        {"log_density": lambda m, x: np.asarray(BASE.log_density(x) + 2.0 * np.exp(-((np.abs(x) - 3) ** 2)))},
        "density_is_symmetric_and_falls",
    ),
    "wrong quantile": (
        BASE,
        {"tail_quantile": lambda m, p: BASE.tail_quantile(p) * (1 + 1e-6)},
        "quantile_inverts_the_cdf",
    ),
    "wrong drop of the tail": (
        BASE,
        {"log_tail_drop": lambda m, x, width: BASE.log_tail_drop(x, width) * 1.001},
        "drops_are_differences",
    ),
    "wrong drop of the density": (
        BASE,
        {"log_density_drop": lambda m, x, width: BASE.log_density_drop(x, width) * (1 + 1e-6)},
        "drops_are_differences",
    ),
    "wrong variance": (BASE, {"variance": property(lambda m: BASE.variance * 1.0001)}, "moments_equal_quadrature"),
    "wrong mean": (BASE, {"mean_abs": property(lambda m: BASE.mean_abs * 0.9999)}, "moments_equal_quadrature"),
    "variance said to be infinite": (BASE, {"variance": property(lambda m: math.inf)}, "moments_equal_quadrature"),
    "wrong Fisher information": (
        BASE,
        {"fisher_information": property(lambda m: BASE.fisher_information * 1.01)},
        "fisher_information_equals_quadrature",
    ),
    "information said to be infinite": (
        BASE,
        {"fisher_information": property(lambda m: math.inf)},
        "fisher_information_equals_quadrature",
    ),
    "wrong score": (BASE, {"score": lambda m, x: BASE.score(x) * 1.01}, "score_is_the_slope"),
    "wrong largest score": (BASE, {"max_score": property(lambda m: 0.4)}, "score_is_the_slope"),
    "wrong shape": (GammaLaplace(4.0, 0.3), {"density_shape": Gaussian.density_shape}, "declared_shape"),
    "too small a largest loss": (BASE, {"largest_loss": lambda m, shift: 0.99 * shift / 2}, "loss_bounds_hold"),
    "too narrow a loss range": (
        TABLE,
        {"loss_range": lambda m, near, width, shift: (m.log_density_drop(near, shift),) * 2},
        "loss_bounds_hold",
    ),
    "wrong scaling": (
        BASE,
        {"scaled": lambda m, factor: dataclasses.replace(m, scale=m.scale * factor**1.001)},
        "scaled",
    ),
    "wrong closed Rényi divergence": (
        BASE,
        {"renyi_divergence": lambda m, order, shift: BASE.renyi_divergence(order, shift) * 0.999},
        "closed_renyi_equals_quadrature",
    ),
    "document of another noise": (BASE, {"spec": lambda m: Laplace(3.0).spec()}, "document_round_trips"),
    "sampler of 3 % more scale": (
        BASE,
        {"_draw": lambda m, shape, *, generator: 1.03 * BASE._draw(shape, generator=generator)},
        "sampler_",
    ),
    "sampler with a heavier tail": (BASE, {"_draw": _Heavier().__call__}, "sampler_has_its_tails"),
    "sampler with a biased sign": (BASE, {"_draw": _biased_sign}, "sampler_follows_the_cdf"),
    "sampler that repeats draws": (BASE, {"_draw": _dependent}, "sampler_is_independent"),
    "sampler with a hidden generator": (BASE, {"_draw": _global_generator}, "sampler_interface"),
    "half the noise drawn": (
        BASE,
        {"_draw": lambda m, shape, *, generator: 0.5 * BASE._draw(shape, generator=generator)},
        "game_does_not_beat_the_bound",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_mechanism_is_caught(fault):
    noise, changes, check = FAULTS[fault]
    cls = type(noise)
    wrong = type(cls)(f"Wrong{cls.__name__}", (cls,), dict(changes))
    values = {field.name: getattr(noise, field.name) for field in dataclasses.fields(noise)}
    with pytest.raises(MechanismCheckError) as caught:
        check_mechanism(wrong(**values))
    failures = [failure.name for failure in caught.value.report.failures]
    assert any(name.startswith(check) for name in failures), failures


def test_the_report_says_what_was_expected_and_found():
    wrong = type("Wrong", (Laplace,), {"variance": property(lambda m: 7.0)})(2.0)
    report = check_mechanism(wrong, level="law", raise_on_failure=False)
    assert not report.passed
    assert "moments_equal_quadrature" in str(report)
    (failure,) = [f for f in report.failures if f.name == "moments_equal_quadrature"]
    assert failure.detail == "expected variance = 8, got 7 (entry 0)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("laplace",), "mechanism to be a Mechanism"), ((BASE, "deep"), "level to be one of law, standard, thorough")],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        check_mechanism(arguments[0], level=arguments[1] if len(arguments) > 1 else "law")
