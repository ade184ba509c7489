"""The pictures exist, their axes are labelled, and what they show are the numbers."""

import subprocess
import sys

import numpy as np
import pytest
from optnoise.accounting import Release, compose_delta, plots
from optnoise.accounting.tradeoff import attack_advantage, posterior, tradeoff_curve
from optnoise.mechanisms import Gaussian, Laplace

RELEASES = [Release(Gaussian(1.5), 4)]
ERRORS = np.linspace(0.01, 0.99, 9)


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draw with a function that saves; give the figure that it saved."""

    def draw(function, *args, **kwargs):
        saved, real = [], plots._save
        monkeypatch.setattr(plots, "_save", lambda figure, path: (saved.append(figure), real(figure, path))[1])
        path = tmp_path / "picture.png"
        assert function(*args, path, **kwargs) == path
        assert path.read_bytes().startswith(b"\x89PNG")
        (axes,) = saved[0].axes
        assert "(" in axes.get_xlabel()
        assert "(" in axes.get_ylabel()
        assert axes.get_title()
        return axes

    return draw


def test_privacy_profile(drawn):
    grid = [0.0, 0.5, 1.0, 4.0]
    axes = drawn(plots.plot_privacy_profile, RELEASES, epsilon=grid)
    assert axes.get_yscale() == "log"
    x, y = axes.lines[0].get_data()
    assert list(x) == grid
    assert list(y) == [compose_delta(RELEASES, epsilon=e).upper for e in grid]


def test_privacy_profile_where_delta_is_zero(drawn):
    """Pure privacy past its ε: the axis ends below the last positive δ; none at all needs no logarithm."""
    pure = [Release(Laplace(1.0), dimension=1)]
    axes = drawn(plots.plot_privacy_profile, pure, epsilon=[0.0, 0.5, 2.0])
    assert list(axes.lines[0].get_ydata())[2] == 0
    assert axes.get_ylim()[0] > 0
    assert drawn(plots.plot_privacy_profile, pure, epsilon=[2.0, 3.0]).get_yscale() == "linear"


def test_tradeoff(drawn):
    curve = tradeoff_curve(RELEASES, type_i_error=ERRORS[::-1])
    axes = drawn(plots.plot_tradeoff, curve)
    x, y = axes.lines[0].get_data()
    np.testing.assert_array_equal(x, ERRORS)
    np.testing.assert_array_equal(y, curve.lower[::-1])
    corners = axes.collections[0].get_paths()[0].vertices
    assert {tuple(p) for p in zip(curve.type_i_error, curve.upper, strict=True)} <= {tuple(p) for p in corners}


def test_attack_advantage(drawn):
    steps = [0, 1, 10, 100]
    axes = drawn(plots.plot_attack_advantage, Release(Gaussian(5.0)), steps=steps)
    x, y = axes.lines[0].get_data()
    assert list(x) == steps
    assert list(y) == [attack_advantage([Release(Gaussian(5.0), count)]).upper for count in steps]
    assert y[0] == 0
    with pytest.raises(ValueError, match="steps >= 0, got steps=-1"):
        drawn(plots.plot_attack_advantage, Release(Gaussian(5.0)), steps=[-1])


def test_posterior(drawn):
    priors = np.array([0.9, 0.1, 0.5])
    band = posterior(RELEASES, prior=priors[:, None], type_i_error=[0.01, 0.1])
    axes = drawn(plots.plot_posterior, band)
    for column, line in enumerate(axes.lines[:2]):
        x, y = line.get_data()
        np.testing.assert_array_equal(x, np.sort(priors))
        np.testing.assert_array_equal(y, band.upper[np.argsort(priors), column])
    assert "type I error 0.01" in axes.lines[0].get_label()


def test_importing_draws_on_no_matplotlib():
    script = "import sys, optnoise.accounting.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
