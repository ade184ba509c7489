"""The command line: what others script against, and one-line errors with exit code 2."""

import functools
import json
import subprocess
import sys

import pytest
from commands import run_command
from optnoise.mechanisms import load, parse
from references import approx

LMO = "lmo:a1=0.1,a3=0.1,a4=0.1,theta=0.5,k=1,rate=5,low=1,high=2"


@pytest.fixture
def run(capsys):
    """Run the command in this process: (exit code, standard output, standard error)."""
    return functools.partial(run_command, capsys)


def test_account_gaussian_json(run):
    code, out, _ = run("account", "gaussian:noise_multiplier=1", "--delta", "1e-5", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["epsilon"]["upper"] == approx(4.3772, 1e-5)
    assert document["mechanism"]["family"] == "gaussian"


@pytest.mark.parametrize(
    ("dimension", "low", "high"), [("1", 0.2347, 0.23471), ("inf", 1.3081, 1.38), ("100", 1.263, 1.32)]
)
def test_account_published_example_by_dimension(run, dimension, low, high):
    code, out, _ = run("account", LMO, "--delta", "1e-10", "--dimension", dimension, "--json")
    epsilon = json.loads(out)["epsilon"]
    assert code == 0
    assert low <= epsilon["upper"] <= high
    assert epsilon["lower"] <= epsilon["estimate"] <= epsilon["upper"]


@pytest.mark.parametrize(
    "text", ["gaussian_mixture:sigma=1.3,means=0;1,weights=0.3;0.7", "tabulated:knots=1;2;5,slopes=0;1;3;0.5"]
)
def test_account_prints_noise_that_it_reads(run, text):
    """Lists of parameters, too: the first line can be given to the next command."""
    code, out, _ = run("account", text, "--delta", "1e-5", "--dimension", "1")
    assert code == 0
    first = out.splitlines()[0]
    assert parse(first) == parse(text)
    assert run("account", first, "--delta", "1e-5", "--dimension", "1")[1] == out


def test_text_is_rounded_outwards(run):
    _, out, _ = run("account", "gaussian:noise_multiplier=1", "--delta", "1e-5")
    assert "epsilon in [4.3771, 4.3772]" in out


def test_calibrate_writes_a_noise_that_account_reads(run, tmp_path):
    path = tmp_path / "noise.json"
    code, out, _ = run(
        "calibrate", "laplace", "--epsilon", 1, "--delta", "1e-6", "--dimension", 1, "-o", path, "--json"
    )
    assert code == 0
    assert json.loads(out)["mechanism"] == load(path).spec()
    code, out, _ = run("account", path, "--delta", "1e-6", "--dimension", 1, "--json")
    assert 0.999 <= json.loads(out)["epsilon"]["upper"] <= 1


def test_search_prints_results_best_first_and_saves_them(run, tmp_path):
    path = tmp_path / "found.json"
    budget = ["--epsilon", 1, "--delta", "1e-6", "--steps", 1, "--dimension", 1, "--cost", "mean_abs"]
    code, out, _ = run("search", *budget, "--family", "laplace", "--family", "gaussian", "-o", path, "--json")
    results = json.loads(out)["results"]
    assert code == 0
    assert [result["cost"] for result in results] == sorted(result["cost"] for result in results)
    assert set(results[0]) >= {"mechanism", "cost", "gaussian_cost", "epsilon"}
    assert results[0]["mechanism"]["family"] == "laplace"
    assert all(result["epsilon"]["upper"] <= 1 for result in results)
    assert load(path).spec() == results[0]["mechanism"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["account"], "Missing argument"),
        (["bogus"], "No such command"),
        (["account", "gaussian:sigma=1"], "delta"),
        (["account", "gaussian:sigma=1", "--delta", "2"], "0 < delta < 1, got delta=2.0"),
        (["account", "gaussian:sigma=1", "--delta", "0"], "got delta=0.0: take one far below 1/n"),
        (
            ["account", "gaussian:sigma=1", "--delta", "1e-5", "--sampling-rate", "5"],
            "got sampling_rate=5.0: a share, so 5 % is 0.05",
        ),
        (["account", "gaussian:sigma=1", "--delta", "x"], "delta"),
        (["account", "laplace:scale=1", "--delta", "1e-5"], "expected a dimension for laplace"),
        (["account", "laplace:scale=1", "--delta", "1e-5", "--dimension", "many"], "dimension='many'"),
        (["account", "laplace:scale=1", "--delta", "1e-5", "--dimension", "0"], "dimension >= 1"),
        (["account", "missing.json", "--delta", "1e-5"], "there is no such file"),
        (["account", "gaussian:1", "--delta", "1e-5"], "write gaussian:noise_multiplier=…"),
        (["account", "gaussian:sigma=1", "--delta", "1e-5", "--accountant", "clt"], "accountant"),
        (["calibrate", "gaussian", "--epsilon", "-1", "--delta", "1e-5"], "epsilon >= 0"),
        (["calibrate", "lmo", "--epsilon", "1", "--delta", "1e-5"], "got mechanism='lmo'"),
        (["search", "--epsilon", "1", "--delta", "1e-5", "--family", "cauchy"], "cauchy"),
        (["search", "--epsilon", "1", "--delta", "1e-5", "--cost", "beauty"], "beauty"),
        (["search", "--epsilon", "1", "--delta", "1e-5", "-o", "no/such/folder/x.json"], "no/such/folder"),
        (["finetune", "no-such-recipe.toml"], "no-such-recipe.toml"),
    ],
)
def test_errors_are_one_line_and_exit_code_two(run, arguments, message):
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("optnoise: ")
    assert message in err


def test_without_arguments_the_help_is_all_that_is_printed(run):
    code, out, err = run()
    assert code == 2
    assert "account" in out + err
    assert "optnoise: \n" not in err


def test_the_version_is_an_option_too(run):
    assert run("--version") == run("version")


def test_the_map_says_at_its_end_what_it_lacks(run, tmp_path, monkeypatch):
    """Without plotly there is no interactive page, and no work is lost."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    budget = ["--epsilon", 1, "--delta", "1e-5", "--steps", 1, "--dimension", 1, "--family", "laplace"]
    code, out, _ = run("map", *budget, "--quiet", "-o", tmp_path / "map")
    assert code == 0
    assert "optnoise[plots]" in out
    assert (tmp_path / "map" / "best.svg").is_file()
    assert not (tmp_path / "map" / "map.html").exists()


def test_unwritable_output_is_refused_before_the_search(run, tmp_path):
    code, _, err = run("calibrate", "gaussian", "--epsilon", 1, "--delta", "1e-5", "-o", tmp_path / "none" / "x.json")
    assert code == 2
    assert "create it first" in err
    assert list(tmp_path.iterdir()) == []


def test_an_infinite_end_is_null_and_marked():
    from optnoise.accounting import EpsilonInterval
    from optnoise.cli import interval_document

    assert interval_document(EpsilonInterval(1.0, float("inf"), float("inf"))) == {
        "lower": 1.0,
        "estimate": None,
        "upper": None,
        "finite": False,
    }


def test_module_and_script_are_the_same_command():
    command = [sys.executable, "-m", "optnoise", "account", "gaussian:sigma=1", "--delta", "1e-5"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "4.3772" in run.stdout
