"""Every family keeps every promise of `tests/contracts.py`."""

import pytest
from contracts import CHECKS
from optnoise.mechanisms import FAMILIES, GammaLaplace, Gaussian, Laplace, ScaleMixture, Tabulated

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
    Tabulated((), (0.5,)),
    Tabulated((1.0, 2.0, 5.0), (0.0, 1.0, 3.0, 0.5)),
    Tabulated((1.0, 2.0, 5.0), (2.0, 1.0, 0.5, 0.25)),
    Tabulated((0.3, 2.0, 5.0), (0.1, 1.0, 2.0, 30.0)),
]


def test_every_family_is_tested():
    assert {type(mechanism) for mechanism in MECHANISMS} == set(FAMILIES.values())


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check, mechanism):
    check(mechanism)
