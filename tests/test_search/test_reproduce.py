"""The published parameter sets row by row, files in the authors' key names, and the text of docs/lmo_dp.md."""

import json
import shlex

import numpy as np
import pages
import pytest
from optnoise import search
from optnoise.accounting import epsilon
from optnoise.cli import main
from optnoise.mechanisms import Gaussian, Laplace
from optnoise.search import mixture_of, published_rows, published_sets, read_parameters, render_rows
from references import approx

PAGE = pages.text_of("docs/lmo_dp.md")
SESSIONS = [pair for session in pages.sessions("docs/lmo_dp.md") for pair in session]
FIRST = {"a1": 0.1, "a3": 0.1, "a4": 0.1, "G_theta": 0.5, "G_k": 1, "E_lambda": 5, "U_a": 1, "U_b": 2}
DELTA = 1e-10
KEYS = (
    *("label", "published", "published_order", "published_order_in_domain", "in_domain", "exact_scalar"),
    *("dimension_4", "dimension_100", "dimension_inf", "variance", "mean_abs"),
)


@pytest.fixture(scope="module")
def rows():
    return published_rows(published_sets(), delta=DELTA)


def test_first_worked_example(rows):
    row = rows[0]
    assert row.label == "0.3"
    assert row.published == approx(0.2932, 2e-4)
    assert (row.published_order, row.published_order_in_domain) == (128, False)
    assert row.in_domain == approx(1.3077, 5e-5)
    assert row.exact_scalar == approx(0.23470, 3e-5)
    assert row.dimension_inf[0] == approx(1.3081, 5e-5)
    assert row.dimension_100[0] <= 1.263 <= row.dimension_100[1]
    assert row.variance == approx(50.7494, 1e-6)
    assert row.mean_abs == approx(4.8741, 1e-5)


def test_every_dimension_lower_end_is_the_gaussian_of_variance_one_over_information(rows):
    mixture = mixture_of(FIRST)
    assert 1 / mixture.fisher_information == approx(20.5750, 1e-5)
    limit = epsilon(Gaussian(mixture.fisher_information**-0.5), delta=DELTA)
    assert rows[0].dimension_inf[0] == approx(limit.lower, 1e-6)


def test_second_worked_example_is_false_for_one_scalar(rows):
    row = rows[1]
    assert row.published == approx(0.1489, 5e-4)
    assert row.exact_scalar == approx(1.2309, 1e-4)
    assert not row.published_order_in_domain


def test_rows_rise_with_the_dimension(rows):
    for row in rows:
        upper = [row.exact_scalar, row.dimension_4[1], row.dimension_100[1], row.dimension_inf[1]]
        assert upper == sorted(upper)
        for low, high in (row.dimension_4, row.dimension_100, row.dimension_inf):
            assert row.exact_scalar * (1 - 1e-3) <= low <= high


def test_compared_noise_gives_the_same_guarantee(rows):
    """From the cost back to the noise, and from the noise to its ε; 1 % less noise breaks the target."""
    for row in rows:
        for costs, target in ((row.gaussian_scalar, row.exact_scalar), (row.gaussian_inf, row.dimension_inf[1])):
            noise = Gaussian(costs.variance**0.5)
            assert noise.mean_abs == approx(costs.mean_abs, 1e-12)
            assert epsilon(noise, delta=DELTA).upper <= target * (1 + 1e-12)
            assert epsilon(noise.scaled(0.99), delta=DELTA).lower > target
        laplace = Laplace(row.laplace_scalar.mean_abs)
        assert laplace.variance == approx(row.laplace_scalar.variance, 1e-12)
        assert epsilon(laplace, delta=DELTA, dimension=1).upper <= row.exact_scalar * (1 + 1e-12)
        assert epsilon(laplace.scaled(0.99), delta=DELTA, dimension=1).lower > row.exact_scalar


def test_documents_hold_the_promised_keys(rows):
    document = rows[0].document()
    costs = [
        f"{f}_{c}_{w}" for f in ("gaussian", "laplace") for c in ("variance", "mean_abs") for w in ("scalar", "inf")
    ]
    assert list(document)[: len(KEYS)] == list(KEYS)
    assert set(document) == {*KEYS, *costs}
    assert json.loads(json.dumps(document, allow_nan=False))["dimension_inf"] == list(rows[0].dimension_inf)


def test_files_in_the_authors_names(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(FIRST))
    assert read_parameters(file).label == "mine"
    assert read_parameters(file).mixture == published_sets()[0].mixture
    file.write_text(json.dumps({"a1": 0, "a3": 0, "a4": 1, "U_a": 0.5, "U_b": 1, "label": "uniform only"}))
    assert read_parameters(file).label == "uniform only"
    assert read_parameters(file).mixture.gamma_shape is None


def test_sampler_scale_is_not_the_rate_of_the_bound():
    """The same numbers with the exponential of mean E_lambda, as published code draws it, are another noise."""
    as_drawn = mixture_of({**FIRST, "E_lambda": 1 / FIRST["E_lambda"]})
    assert as_drawn.mean_inverse_scale - mixture_of(FIRST).mean_inverse_scale == approx(0.1 * (5 - 0.2), 1e-12)
    assert epsilon(as_drawn, delta=DELTA, dimension=1).lower > 3 * 0.2932


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({**FIRST, "a2": 1}, "a2"),
        ({k: v for k, v in FIRST.items() if k != "G_k"}, "G_k"),
        ({k: v for k, v in FIRST.items() if k != "a4"}, "a4"),
        ({**FIRST, "E_lambda": 0}, "E_lambda"),
        ({**FIRST, "G_theta": "x"}, "G_theta"),
        ({**FIRST, "a1": -1}, "a1"),
        ({**FIRST, "U_a": 3}, "U_a"),
        ({**FIRST, "label": 3}, "label"),
        ({"a1": 0, "a3": 0, "a4": 0}, "a1"),
        ([1], "object"),
    ],
)
def test_bad_files_are_refused_by_name(values, words, tmp_path, capsys):
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(values))
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", "lmo-dp", "--parameters", str(file), "--delta", "1e-10"])
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert words in error
    assert "bad.json" in error


@pytest.mark.parametrize("text", ["{", '{"a1": 1, "a1": 2}', '{"a1": NaN}'])
def test_damaged_files_are_refused_by_name(text, tmp_path):
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"bad\.json"):
        read_parameters(file)


@pytest.mark.parametrize("arguments", [["--delta", "2"], ["--delta", "1e-5", "--parameters", "missing.json"]])
def test_bad_arguments_exit_with_one_line(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", "lmo-dp", *arguments])
    assert stopped.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_table_of_the_page_is_what_the_command_prints(rows, monkeypatch, capsys):
    """Rows as computed, at the δ of the page; the command only asks for them and prints them."""
    command = "optnoise reproduce lmo-dp --delta 1e-10"
    monkeypatch.setattr(search, "published_rows", lambda sets, *, delta: rows if delta == DELTA else [])
    with pytest.raises(SystemExit):
        main(shlex.split(command)[1:])
    printed = capsys.readouterr().out.strip()
    assert printed == render_rows(rows)
    assert dict(SESSIONS)[command].strip() == printed


OTHERS = [session for session in SESSIONS if "reproduce lmo-dp" not in session[0]]


@pytest.mark.parametrize(("command", "expected"), OTHERS, ids=[command[:45] for command, _ in OTHERS])
def test_commands_of_the_page_print_what_it_says(command, expected, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(shlex.split(command)[1:])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.strip() == expected.strip()


def test_the_command_prints_json(tmp_path, capsys):
    file = tmp_path / "laplace_like.json"
    file.write_text(json.dumps({"a1": 0, "a3": 0, "a4": 1, "U_a": 0.9, "U_b": 1}))
    with pytest.raises(SystemExit):
        main(["reproduce", "lmo-dp", "--parameters", str(file), "--delta", "1e-5", "--json"])
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["label"] == "laplace_like"
    assert np.diff(row["dimension_4"])[0] >= 0
