"""The map: known ratios, the cache, reasons for what is missing, pictures."""

import dataclasses
import json
import math

import pytest
from optnoise.accounting import calibrate
from optnoise.mechanisms import Gaussian, Laplace
from optnoise.search import Constraint, Problem, regime_map
from optnoise.search import regimes as engine
from optnoise.search.regime_plots import plot_regimes, write_html
from typer.testing import CliRunner

BUDGET = Problem(3.0, 1e-5, 1, 1.0, 1, "variance")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("map")
    found = regime_map(
        BUDGET,
        steps=[1, 30],
        dimensions=[1, 4],
        families=["laplace", "l2_mechanism"],
        folder=folder,
        progress=False,
    )
    return found, folder


def test_ratios_are_those_of_calibration(small):
    found, _ = small
    for row, d in zip(found.cells, (1, 4), strict=True):
        for cell, steps in zip(row, (1, 30), strict=True):
            settings = {"epsilon": 3.0, "delta": 1e-5, "steps": steps, "dimension": d}
            gaussian = calibrate(Gaussian(1.0), **settings).variance
            assert cell.gaussian_cost == pytest.approx(gaussian, rel=1e-6)
            laplace = calibrate(Laplace(1.0), **settings).variance
            assert cell.ratios["laplace"] == pytest.approx(laplace / gaussian, rel=1e-4)
    assert found.cells[0][0].best == ("laplace", found.cells[0][0].ratios["laplace"])
    assert found.cells[0][1].best == ("gaussian", 1.0)
    assert found.cells[1][0].best[0] == "l2_mechanism"


def test_what_is_missing_has_a_reason(small):
    found, _ = small
    assert found.cells[0][0].ratios["l2_mechanism"] is None
    assert "2 <= dimension" in found.cells[0][0].reasons["l2_mechanism"]
    assert math.isnan(found.ratios("l2_mechanism")[0][0])


def test_cells_are_read_again_and_broken_files_replaced(small, monkeypatch):
    found, folder = small
    files = sorted(folder.glob("cell-*.json"))
    assert len(files) == 4
    files[0].write_text("{")
    calls = []
    compute = engine.compute_cell
    monkeypatch.setattr(engine, "compute_cell", lambda *a: calls.append(a) or compute(*a))
    again = regime_map(
        BUDGET,
        steps=[1, 30],
        dimensions=[1, 4],
        families=["laplace", "l2_mechanism"],
        folder=folder,
        progress=False,
    )
    assert len(calls) == 1
    assert again.document() == found.document()
    assert json.loads(files[0].read_text())["format"] == 1


def test_pictures(small, tmp_path):
    found, _ = small
    figure = plot_regimes(found, tmp_path / "map.png")
    assert len([axes for axes in figure.axes if axes.get_visible()]) == 3
    assert (tmp_path / "map.png").stat().st_size > 5000
    write_html(found, tmp_path / "map.html")
    page = (tmp_path / "map.html").read_text()
    assert "T = 30, d = 4" in page
    assert "l2_mechanism" in page


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"family.*nosuch"):
        regime_map(BUDGET, steps=[1], dimensions=[1], families=["nosuch"])
    with pytest.raises(ValueError, match="one budget"):
        regime_map(dataclasses.replace(BUDGET, also=(Constraint(1.0, 1e-5),)), steps=[1], dimensions=[1])
    with pytest.raises(ValueError, match="at least one"):
        regime_map(BUDGET, steps=[], dimensions=[1])
    with pytest.raises(ValueError, match="steps"):
        regime_map(BUDGET, steps=[0], dimensions=[1])


def test_command(tmp_path):
    from optnoise.cli import app

    options = ["--steps", "1", "--dimension", "1", "--family", "laplace", "--quiet", "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(app, ["map", "--epsilon", "3", "--delta", "1e-5", *options])
    assert result.exit_code == 0, result.output
    assert {"map.json", "map.png", "map.svg", "map.html", "best.png", "best.svg"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }
    assert "laplace" in result.output
