"""Plans: what is minimised, what is refused, and the file."""

import json
import math

import pytest
from commands import run_command
from optnoise import mechanisms
from optnoise.accounting import calibrate, epsilon
from optnoise.search import plan, plot_plan, render_plan
from rich.console import Console

ASK = {"records": 10_000, "examples": 50_000, "epsilon": 2.0, "delta": 1e-5, "progress": False}


@pytest.fixture(scope="module")
def first_order():
    return plan(**ASK, batch_sizes=[100, 1000, 5000])


@pytest.fixture(scope="module")
def scalar():
    return plan(**ASK, dimension=1, batch_sizes=[20, 500], families=("gaussian", "laplace"))


def test_rows_are_what_calibration_says(first_order):
    for row in first_order.rows:
        q, steps = row.batch_size / 10_000, 50_000 // row.batch_size
        noise = calibrate("gaussian", epsilon=2.0, delta=1e-5, steps=steps, sampling_rate=q)
        assert (row.sampling_rate, row.steps) == (q, steps)
        assert row.batch_size * row.steps <= 50_000
        assert row.noise == pytest.approx(noise.noise_multiplier)
        assert row.noise_per_update == pytest.approx(row.noise / row.batch_size)
        assert row.effective_noise == pytest.approx(row.noise / (row.batch_size * math.sqrt(steps)))
        assert epsilon(row.entry.mechanism, delta=1e-5, steps=steps, sampling_rate=q, dimension=math.inf).upper <= 2.0


def test_the_best_row_has_the_least_effective_noise(first_order):
    assert first_order.best.effective_noise == min(row.effective_noise for row in first_order.rows)
    assert first_order.best.batch_size == 5000  # noise alone always asks for large batches


def test_scalar_releases_take_other_noise(scalar):
    assert scalar.rows[0].entry.family == "laplace"  # 2500 rare releases
    assert (
        scalar.rows[0].noise
        < calibrate("gaussian", epsilon=2.0, delta=1e-5, steps=2500, sampling_rate=0.002).noise_multiplier
    )


@pytest.mark.slow
def test_the_grid_is_refined_and_keeps_to_its_limits():
    found = plan(**ASK, least_steps=40, largest_batch=900)
    sizes = [row.batch_size for row in found.rows]
    assert sizes == sorted(set(sizes))
    assert max(sizes) == 900
    assert all(row.steps >= 40 for row in found.rows)
    assert found.best.batch_size == 900
    assert len(sizes) > 13


def test_the_file_is_a_noise_file_and_names_recipe_keys(first_order, tmp_path):
    path = tmp_path / "plan.json"
    first_order.save(path)
    assert mechanisms.load(path) == first_order.mechanism
    document = json.loads(path.read_text())
    from optnoise.finetune import load_recipe

    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'description = "x"\n[privacy]\nclipping_norm = 1.0\n[task]\nname = "sst2"\npath = "x"\n'
        '[model]\nsource = "m"\nkind = "encoder_head"\ntrained = "head"\nmax_length = 9\n'
        "[training]\nlearning_rate = 0.1\nepochs = 3\ndataset_size = 7\n"
    )
    settings = load_recipe(recipe, document["overrides"]).settings()
    best = first_order.best
    assert (settings.steps, settings.sampling_rate, settings.divisor) == (best.steps, best.sampling_rate, 5000.0)
    assert (settings.epsilon, settings.delta) == (first_order.epsilon, first_order.delta)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture_and_the_table(first_order, tmp_path, suffix):
    figure = plot_plan(first_order, tmp_path / f"plan.{suffix}")
    assert "[C]" in figure.axes[0].get_ylabel()
    assert (tmp_path / f"plan.{suffix}").stat().st_size > 5000
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render_plan(first_order))
    console.file.close()
    text = console.export_text()
    for row in first_order.rows:
        assert f"{row.effective_noise:.4g}" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"records": 0}, "records >= 1, got records=0"),
        ({"examples": 10, "least_steps": 20}, "examples >= least_steps, got examples=10 and least_steps=20"),
        ({"batch_sizes": [20_000]}, "batch sizes <= 10000"),
        ({"batch_sizes": [500], "least_steps": 200}, "batch sizes <= 250"),
        ({"epsilon": -1}, "epsilon > 0"),
        ({"families": ("uniform",)}, "family to be one of"),
    ],
)
def test_bad_arguments_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        plan(**(ASK | change))


def test_a_batch_so_rare_that_delta_covers_it_is_noted():
    # ten single draws among 1000 records: any one of them is seen with probability 1 − 0.999^10 = 0.009955
    found = plan(records=1000, examples=10, epsilon=1.0, delta=0.00996, batch_sizes=[1, 10], progress=False)
    assert [row.batch_size for row in found.rows] == [10]
    assert found.refused[0].startswith("batch size 1: expected delta < 0.0099551")


def test_the_command(capsys, tmp_path):
    options = ("--records", 1000, "--epochs", 2, "--epsilon", 3, "--delta", 1e-4, "--batch-size", 100, "--json")
    code, out, _ = run_command(capsys, "plan", *options, "-o", tmp_path / "plan.json", "--plot", tmp_path / "plan.svg")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "plan.json").read_text())
    assert json.loads(out)["recipe"]["training"]["steps"] == 20
    assert (tmp_path / "plan.svg").is_file()
    code, out, err = run_command(capsys, "plan", "--records", 1000, "--epsilon", 3, "--delta", 1e-4)
    assert (code, out, err) == (2, "", "optnoise: expected either --epochs or --examples\n")


def test_search_takes_further_budgets_and_a_folder(capsys, tmp_path):
    options = ("--epsilon", 3, "--delta", 1e-5, "--family", "laplace", "--cost", "quantile:0.95", "--json")
    code, out, _ = run_command(
        capsys, "search", *options, "--also", "epsilon=1,delta=1e-6", "--resume", tmp_path / "parts"
    )
    assert code == 0
    assert json.loads(out)["results"][0]["binding"] == 1
    assert list((tmp_path / "parts").glob("laplace-*.json"))
