"""Private training in two processes: what one would have released, once, and nobody waits for a process that failed."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import process_jobs as jobs
import pytest
import torch
from optnoise.accounting import Ledger
from optnoise.finetune import Automatic, PerLayer, load_recipe, make_private, run_recipe
from optnoise.finetune.processes import ALONE, ProcessError, find_processes
from optnoise.finetune.replicas import fingerprint
from optnoise.mechanisms import Gaussian, Laplace, SphericalGamma
from process_pair import Pair
from scipy import stats
from torch import nn

SILENT = Gaussian(1e-12)
RECIPE = Path(__file__).parents[2] / "finetune/recipes/demo.toml"


# ---- the same release -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"mechanism": SILENT},
        {},
        {"mechanism": Laplace(1.0), "sizes": (2, 7)},
        {"clipping_norm": PerLayer(0.3), "sampling_rate": 0.5},
        {"clipping_norm": Automatic(0.3)},
        {"mechanism": SphericalGamma.l2_mechanism(80, 0.2)},
        {"sampling_rate": 0.03, "divisor": 1.2},  # empty batches, and empty shares of others
    ],
    ids=["silent", "gaussian", "laplace", "per layer", "automatic", "spherical", "empty"],
)
def test_two_processes_train_as_one(pair, changes):
    alone = jobs.trained(0, process_group=None, **changes)
    first, second = pair.run(jobs.trained, **changes)
    assert np.array_equal(first["weights"], second["weights"])
    np.testing.assert_allclose(first["weights"], alone["weights"], rtol=0, atol=1e-11)
    assert np.abs(alone["weights"] - jobs.weights(jobs.network())).max() > 0.01
    assert first["epsilon"] == second["epsilon"] == alone["epsilon"]
    assert first["recorded"] == second["recorded"] == 6
    for whole, one, other in zip(alone["shares"], first["shares"], second["shares"], strict=True):
        assert sorted(one + other) == whole
        assert 0 <= len(one) - len(other) <= 1
    if changes.get("sampling_rate") == 0.03:
        assert any(not share for share in first["shares"])
        assert any(one and not other for one, other in zip(first["shares"], second["shares"], strict=True))


def test_float32_agrees_to_its_precision_and_to_the_bit_between_processes(pair):
    alone = jobs.trained(0, process_group=None, dtype=torch.float32, optimizer=torch.optim.SGD)
    first, second = pair.run(jobs.trained, dtype=torch.float32, optimizer=torch.optim.SGD)
    assert np.array_equal(first["weights"], second["weights"])
    np.testing.assert_allclose(first["weights"], alone["weights"], rtol=0, atol=1e-6)


def test_all_start_from_the_weights_of_the_first(pair):
    same, other = pair.run(jobs.trained, own_weights=True), pair.run(jobs.trained)
    assert all(np.array_equal(result["weights"], other[0]["weights"]) for result in same)


def test_the_sample_is_one_poisson_sample_that_no_seed_gives(pair):
    """150 steps: every record is drawn at its rate, in pairs independently, by one process at a time."""
    changes = {"steps": 150, "sizes": (100, 100), "seed": None, "sampling_rate": 0.25}
    first, second = pair.run(jobs.trained, **changes)
    drawn = np.zeros((150, jobs.RECORDS))
    for step, (one, other) in enumerate(zip(first["shares"], second["shares"], strict=True)):
        assert not set(one) & set(other)
        drawn[step, one + other] = 1
    assert abs(drawn.mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / drawn.size)
    assert abs(drawn.sum(1).var() / (jobs.RECORDS * 0.25 * 0.75) - 1) < 5 * np.sqrt(2 / 150)
    again, _ = pair.run(jobs.trained, steps=1, seed=None)
    more, _ = pair.run(jobs.trained, steps=1, seed=None)
    assert not np.array_equal(again["weights"], more["weights"])


# ---- the noise is there once ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", [Gaussian(1.5), Laplace(0.8)], ids=["gaussian", "laplace"])
def test_b63_noise_is_drawn_once_for_every_coordinate(pair, mechanism):
    """4% of the variance: 2 independent draws would double it, halves of one would make a quarter or a half of it."""
    first, second = pair.run(jobs.noise_alone, steps=20, outputs=500, mechanism=mechanism)
    assert np.array_equal(first, second)
    alone = jobs.noise_alone(0, steps=20, outputs=500, mechanism=mechanism, process_group=None)
    for released in (first, alone):
        assert abs(released.var() / mechanism.variance - 1) < 0.04
        assert stats.kstest(released.ravel(), mechanism.cdf).pvalue > 1e-4
        assert np.abs(np.corrcoef(released) - np.eye(20)).max() < 5 / np.sqrt(2000)
    doubled = first + alone
    assert doubled.var() / mechanism.variance > 1.8  # what the test would see if both had drawn


def test_spherical_noise_has_one_radius_for_all_processes(pair):
    """A radius that varies much, Gamma(4): two draws would even it out."""
    mechanism = SphericalGamma.l2_mechanism(4, 1.0)
    first, second = pair.run(jobs.noise_alone, steps=150, outputs=1, mechanism=mechanism)
    assert np.array_equal(first, second)
    radii = np.linalg.norm(first, axis=1)

    def law(radius):
        return -np.expm1(mechanism.log_norm_tail(radius))

    assert stats.kstest(radii, law).pvalue > 1e-4
    assert stats.kstest(np.linalg.norm(first + np.roll(first, 1, axis=0), axis=1), law).pvalue < 1e-4
    directions = first / radii[:, None]
    assert abs((directions[:, 0] ** 2).mean() * 4 - 1) < 5 * np.sqrt(2 / 150)


# ---- ledger, checkpoints ----------------------------------------------------------------------------------------


def test_only_the_first_process_writes_the_ledger(pair, tmp_path):
    path = tmp_path / "ledger.jsonl"
    pair.run(jobs.trained, steps=4, ledger=path)
    assert Ledger(path).steps == 4
    results = pair.run(jobs.trained, steps=3, ledger=path)  # goes on, in the memory of the second as well
    assert Ledger(path).steps == 7
    assert [result["recorded"] for result in results] == [7, 7]
    assert results[0]["epsilon"] == results[1]["epsilon"] > 0


def test_an_open_ledger_is_refused_where_two_would_write_it(pair, tmp_path):
    first, second = pair.outcomes(jobs.made, ledger=(Ledger(tmp_path / "a"), Ledger(tmp_path / "a")))
    assert isinstance(second, ValueError)
    assert "pass the path" in str(second)
    assert isinstance(first, ProcessError)
    pair.run(jobs.made, ledger=(Ledger(tmp_path / "a"), None))


def test_a_seeded_run_goes_on_after_a_checkpoint_of_the_first(pair, tmp_path):
    results = pair.run(jobs.resumed, folder=tmp_path, stop=3, steps=6)
    whole = jobs.trained(0, steps=6, optimizer=torch.optim.SGD, process_group=None)
    assert np.array_equal(results[0]["weights"], results[1]["weights"])
    np.testing.assert_allclose(results[0]["weights"], whole["weights"], rtol=0, atol=1e-11)
    assert [result["recorded"] for result in results] == [6, 6]


# ---- what goes wrong in one process -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "here", "there"),
    [
        (
            "skipped",
            (RuntimeError, "went through record"),
            (ProcessError, "process 1: RuntimeError: the logical batch"),
        ),
        ("out of step", (RuntimeError, "not stepped"), (ProcessError, "out of step: process 0 at step")),
        ("moved", (ValueError, "the same weights"), (ValueError, "the same weights")),
        ("early", (RuntimeError, "needs a logical batch"), (ProcessError, "out of step")),
        ("late", (ProcessError, "out of step"), (RuntimeError, "not stepped")),
    ],
)
def test_an_error_in_one_process_is_one_in_both(pair, tmp_path, how, here, there):
    first, second = pair.outcomes(jobs.fails_in_second, how=how, path=tmp_path)
    for found, (kind, words) in ((second, here), (first, there)):
        assert type(found) is kind, found
        assert words in str(found)


def test_a_ledger_that_cannot_be_written_stops_both(pair, tmp_path):
    first, second = pair.outcomes(jobs.fails_in_second, how="ledger", path=tmp_path)
    assert isinstance(first, ValueError)
    assert "cannot open the ledger" in str(first)
    assert isinstance(second, ProcessError)
    assert "opening the ledger" in str(second)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"divisor": (12.0, 6.0)}, "divisor"),
        ({"dataset_size": (40, 20)}, "dataset_size"),
        ({"seed": (1, None)}, "seed"),
        ({"clipping_norm": (1.0, 0.5)}, "clipping_norm"),
        ({"mechanism": (Gaussian(1.0), Gaussian(2.0))}, "mechanism"),
        ({"frozen_in_second": True}, "dimension"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_arguments_that_differ_are_refused(pair, changes, name):
    for found in pair.outcomes(jobs.made, **changes):
        assert isinstance(found, ValueError)
        assert f"expected the same {name}" in str(found) or (name in str(found) and "the same" in str(found))


def test_a_model_wrapped_in_ddp_is_refused(pair):
    for found in pair.outcomes(jobs.wrapped):
        assert isinstance(found, ValueError)
        assert "averages gradients" in str(found)
        assert "model.module" in str(found)


def test_a_model_trained_in_pieces_is_refused(pair):
    for found in pair.outcomes(jobs.sharded):
        assert isinstance(found, ValueError)
        assert "the trainable 0.weight, 0.bias, 2.weight … lie in pieces" in str(found)


def test_the_pair_still_works_after_all_those_errors(pair):
    first, second = pair.run(jobs.trained, steps=2)
    assert np.array_equal(first["weights"], second["weights"])


def test_nobody_waits_for_a_process_that_ended(tmp_path):
    pair = Pair(tmp_path)
    try:
        found, ended = pair.outcomes(jobs.ends_in_second)
    finally:
        pair.close()
    assert ended is None
    seconds, kind, words = found
    assert kind == "ProcessError"
    assert "process 0 of 2 got no answer" in words
    assert seconds < 15


# ---- without gradients ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mechanism": SILENT, "dtype": torch.float32},
        {"directions": 3, "mechanism": Laplace(2.0), "joint": False, "dtype": torch.bfloat16},
        {"directions": 3, "mechanism": SphericalGamma.gaussian(3, 1.0), "direction": "sphere", "weight_decay": 0.1},
        {"sampling_rate": 0.02, "divisor": 1.0},
    ],
    ids=["gaussian", "silent", "scalars", "spherical", "empty"],
)
def test_without_gradients_two_processes_are_one_to_the_bit(pair, changes):
    alone = jobs.trained_without_gradients(0, process_group=None, **changes)
    first, second = pair.run(jobs.trained_without_gradients, **changes)
    for found in (first, second):
        assert np.array_equal(found["weights"], alone["weights"])
        assert found["released"] == alone["released"]
        assert found["recorded"] == 6
        released = 1 if changes.get("joint") is False else changes.get("directions", 1)
        assert found["sent"] == [("torch.int64", released)] * 6  # what is added up: k integers a step, no gradient
    for whole, one, other in zip(alone["shares"], first["shares"], second["shares"], strict=True):
        assert sorted(one + other) == whole
    assert alone["sent"] == []


def test_without_a_seed_the_directions_are_the_same_and_the_noise_is_not(pair):
    changes = {"seed": None, "own_weights": True, "dtype": torch.float32}
    first, second = pair.run(jobs.trained_without_gradients, **changes)
    assert np.array_equal(first["weights"], second["weights"])
    assert first["direction_seed"] == second["direction_seed"]
    again, _ = pair.run(jobs.trained_without_gradients, **changes)
    assert first["released"] != again["released"]


def test_without_gradients_the_noise_is_drawn_once(pair):
    """400 releases of a batch that is nearly always empty; 5 standard errors of the variance, 2 of it would be seen."""
    changes = {"seed": None, "sampling_rate": 1e-4, "divisor": 1.0, "steps": 100, "directions": 4, "learning_rate": 0.0}
    first, second = pair.run(jobs.trained_without_gradients, mechanism=Gaussian(2.0), **changes)
    assert first["released"] == second["released"]
    released = np.array(first["released"]) / 0.5
    assert abs(released.var() / 4 - 1) < 5 * np.sqrt(2 / 400)
    assert stats.kstest(released, stats.norm(scale=2).cdf).pvalue > 1e-4


def test_without_gradients_a_run_goes_on_after_a_checkpoint(pair, tmp_path):
    """After 3 of 6 scalar releases, 2 an update: one waits in the checkpoint."""
    found = pair.run(jobs.resumed_without_gradients, stop=3, steps=6, path=tmp_path / "ledger.jsonl")
    whole = jobs.trained_without_gradients(0, directions=2, joint=False, process_group=None)
    assert all(np.array_equal(result["weights"], whole["weights"]) for result in found)
    assert Ledger(tmp_path / "ledger.jsonl").steps == 6


def test_without_gradients_a_step_that_failed_in_one_process_can_be_tried_again(pair):
    first, second = pair.run(jobs.fails_without_gradients, how="losses")
    assert first["errors"][0][0] == "ProcessError"
    assert "process 1: ValueError: expected one loss per example" in first["errors"][0][1]
    assert second["errors"][0][0] == "ValueError"
    assert np.array_equal(first["weights"], second["weights"])
    assert first["recorded"] == 3  # nothing was charged for the failure


def test_without_gradients_rates_that_differ_are_refused(pair):
    for found in pair.outcomes(jobs.fails_without_gradients, how="rate"):
        assert isinstance(found, ValueError)
        assert "the same learning rate" in str(found)


# ---- one process ------------------------------------------------------------------------------------------------


def test_launched_but_not_initialised_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="init_process_group"):
        jobs.private(jobs.network())
    jobs.private(jobs.network(), process_group=None)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert find_processes("auto") is ALONE


def test_recipes_run_in_one_process(monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="a recipe runs in one process, got 2"):
        run_recipe(load_recipe(RECIPE), output_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", ["gloo", 2, object()])
def test_something_else_than_a_group_is_refused(value):
    with pytest.raises(ValueError, match="expected process_group"):
        find_processes(value)


def test_data_parallel_is_refused():
    model = nn.DataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    settings = {"mechanism": SILENT, "clipping_norm": 1.0, "dataset_size": 9, "sampling_rate": 0.1, "divisor": 1.0}
    with pytest.raises(ValueError, match="splits the batch past the clipping"):
        make_private(model, optimizer, **settings)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_fingerprint_sees_each_bit(dtype):
    parameters = [nn.Parameter(torch.ones(3, 2, dtype=dtype)), nn.Parameter(torch.ones((), dtype=dtype))]
    prints = {fingerprint(parameters)}
    for parameter, step in itertools.product(parameters, (1, 2)):
        bits = parameter.detach().view(-1)[:1].view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])
        bits += step
        prints.add(fingerprint(parameters))
    assert len(prints) == 5
