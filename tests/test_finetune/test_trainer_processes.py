"""`PrivateTrainer` under torchrun with two processes: the run of one process, one ledger, one log, one set of files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pages
import pytest
import sharded_jobs
import sharded_trainer_job
import torch
import trainer_job
from optnoise.accounting import Ledger
from safetensors.torch import load_file

pytestmark = pytest.mark.slow
TESTS = Path(__file__).parents[1]


def torchrun(*arguments, cwd):
    """Its standard output."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    finished = subprocess.run(
        [*command, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes left behind."""
    folder = tmp_path_factory.mktemp("two")
    torchrun(TESTS / "trainer_job.py", folder, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def reports(folder):
    return [json.loads((folder / f"report-{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return trainer_job.whole(tmp_path_factory.mktemp("one"))


@pytest.mark.parametrize("run", ["first", "resumed"])
def test_two_processes_train_as_one(reports, alone, run):
    first, second = (report[run] for report in reports)
    assert first["weights"] == second["weights"]
    np.testing.assert_allclose(first["weights"], alone[run]["weights"], rtol=0, atol=1e-6)
    assert first["recorded"] == second["recorded"] == alone[run]["recorded"] == {"first": 4, "resumed": 6}[run]
    assert "Distributed" not in first["wrapped"]
    assert np.abs(np.array(first["weights"]) - reports[0]["secret"]["weights"]).max() > 1e-3


def test_the_log_is_that_of_one_process(reports, alone):
    lines, wanted = reports[0]["first"]["log"], alone["first"]["log"]
    assert len(lines) == len(wanted)
    for found, line in zip(lines, wanted, strict=True):
        for name in ("loss", "epsilon", "eval_loss", "eval_count", "eval_mean", "step", "epoch"):
            assert (name in found) == (name in line)
            if name in line:  # the Trainer's evaluation loss is a mean over batches, here of other sizes
                tolerance = 0.02 if name == "eval_loss" else 1e-5
                assert found[name] == pytest.approx(line[name], abs=tolerance)


def test_evaluation_sees_every_row_once(reports, alone):
    for report in reports:
        assert report["evaluation"]["eval_count"] == 11
        assert report["evaluation"]["eval_mean"] == pytest.approx(alone["evaluation"]["eval_mean"], abs=1e-5)


def test_one_ledger_and_one_private_state(folder):
    assert Ledger(folder / "run" / "ledger.jsonl").steps == 6
    checkpoint = folder / "run" / "checkpoint-4"
    assert (checkpoint / "private" / "checkpoint.pt").stat().st_mode & 0o777 == 0o600
    assert {file.stat().st_mode & 0o777 for file in checkpoint.glob("rng_state*")} == {0o600}
    assert (folder / "model" / "model.safetensors").is_file()


def test_a_private_run_leaves_no_state_of_generators(folder):
    assert list((folder / "secret" / "run").glob("checkpoint-*"))
    assert not list((folder / "secret" / "run").glob("checkpoint-*/rng_state*"))


def test_data_in_another_order_are_refused(reports):
    for report in reports:
        assert "expected the same train_dataset, in the same order" in report["unlike"]


@pytest.mark.parametrize(
    ("place", "steps", "left"),
    [(0, 20, "model.pt"), (1, 10, "adapters/adapter_model.safetensors")],
    ids=["whole copies", "sharded"],
)
def test_the_scripts_of_the_documentation_run(place, steps, left, tmp_path):
    scripts = pages.snippets("docs/scaling.md")
    assert len(scripts) == 2
    (tmp_path / "script.py").write_text(scripts[place])
    printed = torchrun("script.py", cwd=tmp_path)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert ledger.steps == steps
    assert f"epsilon <= {ledger.epsilon(delta=1e-5).upper:.2f}" in printed
    assert (tmp_path / left).is_file()


def test_sharded_frozen_weights_train_as_whole_ones(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    alone = sharded_trainer_job.whole(tmp_path / "one")
    torchrun(TESTS / "sharded_trainer_job.py", tmp_path / "two", cwd=tmp_path)
    first, second = (json.loads((tmp_path / "two" / f"report-{rank}.json").read_text()) for rank in range(2))
    for run, recorded in (("first", 6), ("resumed", 9)):
        assert first[run]["adapters"] == second[run]["adapters"]
        np.testing.assert_allclose(first[run]["adapters"], alone[run]["adapters"], rtol=0, atol=1e-11)
        assert np.abs(np.array(alone[run]["adapters"]) - alone["before"]).max() > 0.01
        for found in (first, second):
            assert found[run]["recorded"] == alone[run]["recorded"] == recorded
            assert found[run]["losses"] == pytest.approx(alone[run]["losses"], abs=1e-6)
            assert found[run]["bytes"] < 0.55 * alone[run]["bytes"]
    one, two = (load_file(tmp_path / name / "model" / "adapter_model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    assert len(one) == len(sharded_jobs.adapters(sharded_jobs.llama()))
    assert all(torch.allclose(one[name], two[name], rtol=0, atol=1e-11) for name in one)
