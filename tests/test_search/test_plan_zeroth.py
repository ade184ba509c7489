"""Plans of zeroth-order runs: against brute force, what is refused, the file and the command."""

import dataclasses
import json
import shlex

import numpy as np
import pytest
import tiny_runs
from commands import run_command
from optnoise import mechanisms
from optnoise.accounting import calibrate
from optnoise.search import plan_zeroth_order, plot_zeroth_plan, render_zeroth_plan
from optnoise.search.clipped_slopes import slope_error
from rich.console import Console

ASK = {
    "records": 10_000,
    "examples": 40_000,
    "epsilon": 2.0,
    "delta": 1e-5,
    "directions": [1, 4],
    "families": ("gaussian",),
    "batch_sizes": [50, 400, 3000],
    "progress": False,
}


@pytest.fixture(scope="module")
def found():
    return plan_zeroth_order(**ASK, trainable=770, rms_slope=4.0)


def test_the_plan_is_the_best_of_all_combinations(found):
    errors = {}
    for k in (1, 4):
        for b in ASK["batch_sizes"]:
            steps = 40_000 // k // b
            noise = calibrate("gaussian", epsilon=2.0, delta=1e-5, steps=steps, sampling_rate=b / 1e4, dimension=k)
            errors[k, b] = min(
                slope_error(
                    c, noise=noise.noise_multiplier, batch_size=b, sampling_rate=b / 1e4, signal=0.1, directions=k
                ).total
                / (k * steps)
                for c in np.geomspace(0.02, 10, 300)
            )
    assert len(found.rows) == len(errors)
    for one in found.rows:
        assert one.mean_error == pytest.approx(errors[one.directions, one.row.batch_size], rel=1e-3)
    assert (found.best.directions, found.best.row.batch_size) == min(errors, key=lambda key: errors[key])


def test_a_clip_that_is_given_is_kept_and_the_best_one_errs_less(found):
    given = plan_zeroth_order(**ASK, clip=3.0)
    for ours, best in zip(given.rows, found.rows, strict=True):
        assert ours.clip == 3.0
        assert ours.mean_error > best.mean_error


def test_the_grid_is_refined_around_its_best():
    ask = ASK | {"batch_sizes": None, "directions": [1], "records": 500, "examples": 2000, "delta": 1e-3}
    sizes = [one.row.batch_size for one in plan_zeroth_order(**ask).rows]
    assert sizes == sorted(set(sizes))
    assert max(sizes) == 500
    assert len(sizes) > 13


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture_has_the_rows_and_the_parts_that_add_up_to_them(found, tmp_path, suffix):
    figure = plot_zeroth_plan(found, tmp_path / f"plan.{suffix}")
    assert (tmp_path / f"plan.{suffix}").stat().st_size > 5000
    axes = figure.axes[0]
    lines = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    for k in (1, 4):
        assert list(lines[f"k = {k}"]) == [770 * one.mean_error for one in found.rows if one.directions == k]
    for k in (1, 4):
        alone = dataclasses.replace(found, rows=tuple(one for one in found.rows if one.directions == k))
        lines = {line.get_label(): line.get_ydata() for line in plot_zeroth_plan(alone).axes[0].get_lines()}
        parts = sum(np.array(lines[f"k = {k}: its {name}"]) for name in ("direction", "sample", "noise"))
        assert parts == pytest.approx(lines[f"k = {k}"])
    assert axes.get_ylabel().endswith("[|g|²]")
    bare = dataclasses.replace(found, trainable=None)
    assert plot_zeroth_plan(bare).axes[0].get_ylabel().endswith("[d·|g|²]")


def test_the_file_is_a_noise_file_with_shares(found, tmp_path):
    found.save(tmp_path / "plan.json")
    assert mechanisms.load(tmp_path / "plan.json") == found.mechanism
    best = json.loads((tmp_path / "plan.json").read_text())["results"][0]
    assert best["direction_share"] + best["sample_share"] + best["noise_share"] == pytest.approx(1)
    assert best["relative_error"] == pytest.approx(770 * best["mean_error"])
    assert f"privacy.clipping_norm={4.0 * best['clip']!r}" in found.overrides()
    console = Console(width=160)
    with console.capture() as text:
        console.print(render_zeroth_plan(found))
    assert f"{best['relative_error']:.4g}" in text.get()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"directions": []}, "directions to hold a number"),
        ({"directions": [0]}, "directions >= 1"),
        ({"signal": 2.0}, "signal <= 1"),
        ({"clip": 0.0}, "clip > 0"),
        ({"rms_slope": -1.0}, "rms_slope > 0"),
        ({"trainable": 0}, "trainable >= 1"),
        ({"batch_sizes": [20_000]}, "batch sizes <= 10000"),
    ],
)
def test_bad_arguments_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        plan_zeroth_order(**(ASK | change))


def test_finetune_takes_the_printed_line(capsys, tmp_path):
    """The shipped recipe, with a tiny model and table in place of its own."""
    options = ("--records", 60, "--epochs", 4, "--epsilon", 8, "--delta", 1e-3, "--batch-size", 20, "--quiet")
    zeroth = ("--method", "zeroth-order", "--directions", 2, "--rms-slope", 3)
    files = ("-o", tmp_path / "plan.json", "--plot", tmp_path / "plan.png")
    code, out, err = run_command(capsys, "plan", *options, *zeroth, *files)
    assert (code, err) == (0, "")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    line = next(line for line in out.splitlines() if line.startswith("optnoise finetune RECIPE"))
    assert "privacy.clipping_norm=" in line
    source, data = tmp_path / "model", tmp_path / "data"
    source.mkdir()
    data.mkdir()
    tiny_runs.save_model(source, "bert", "mean_pooled")
    words = [word.replace("RECIPE", "cpu-minilm-sst2-zeroth") for word in shlex.split(line)[1:]]
    tiny = [f"model.source={source}", f"task.path={tiny_runs.labelled(data)}", "model.max_length=32"]
    code, out, err = run_command(
        capsys, *words, *(word for text in tiny for word in ("--set", text)), "--check", "--json"
    )
    assert code == 0, err


def test_options_of_another_method_are_refused(capsys):
    options = ("plan", "--records", 60, "--epochs", 4, "--epsilon", 8, "--delta", 1e-3)
    assert run_command(capsys, *options, "--trainable", 5)[::2] == (
        2,
        "optnoise: --trainable goes with --method zeroth-order\n",
    )
    assert "expected method to be" in run_command(capsys, *options, "--method", "second-order")[2]
