"""kill -9 at random moments: the run goes on to the very same weights, and its ledger never has too few releases."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from optnoise.accounting import Ledger
from optnoise.finetune.runs import run_recipe
from optnoise.mechanisms import Gaussian
from safetensors.torch import load_file
from tiny_runs import document, labelled, recipe_of, save_model

STEPS = 80
_PROGRAM = """
import json, sys, torch
from optnoise.finetune.runs import recipe_from, run_recipe
from optnoise.mechanisms import Gaussian
torch.set_num_threads(1)
recipe, folder, resume = sys.argv[1:]
noise = None if resume == "yes" else Gaussian(1.0)
run_recipe(recipe_from(json.loads(recipe)), mechanism=noise, output_dir=folder, resume=resume == "yes", progress=False)
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A tiny model and rows for it."""
    root = tmp_path_factory.mktemp("kills")
    (root / "data").mkdir()
    return save_model(root / "model", "bert", "mean_pooled"), labelled(root / "data")


def sections(method):
    return {
        "model": {"trained": "last_layers", "layers": 1, "dropout": 0.0 if method == "zeroth_order" else 0.1},
        "training": {"method": method, "steps": STEPS},
        "privacy": {"epsilon": 1000.0},
        "evaluation": {"every": 10},
        "runtime": {"save_every": 1},
    }


def begin(recipe, folder, *, resume):
    arguments = [sys.executable, "-c", _PROGRAM, json.dumps(recipe), str(folder), "yes" if resume else "no"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def releases_in(folder):
    """Whole lines of the ledger after its header: what is surely recorded."""
    path = folder / "ledger.jsonl"
    return max(0, path.read_bytes().count(b"\n") - 1) if path.exists() else 0


def kill_once(process, folder, draw, seen):
    """Let it take a few steps, then kill it at any moment. Returns what the ledger then has; -1 if it was done."""
    goal = seen + draw.randint(0, 5)
    while process.poll() is None and releases_in(folder) < goal:
        time.sleep(0.002)
    time.sleep(draw.uniform(0, 0.05))
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    return -1 if (folder / "report.json").exists() else releases_in(folder)


@pytest.mark.parametrize(
    ("method", "kills"),
    [
        ("first_order", 3),
        ("zeroth_order", 3),
        pytest.param("first_order", 20, marks=pytest.mark.slow),
        pytest.param("zeroth_order", 20, marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_goes_on_to_the_same_weights_and_forgets_no_release(parts, tmp_path, method, kills):
    draw, folder = random.Random(kills), tmp_path / "killed"
    whole = recipe_of(*parts, "mean_pooled", **sections(method))
    run_recipe(whole, mechanism=Gaussian(1.0), output_dir=tmp_path / "whole", progress=False)
    nested = document(*parts, "mean_pooled", **sections(method))
    seen, happened = 0, 0
    for _ in range(kills):
        found = kill_once(begin(nested, folder, resume=seen > 0), folder, draw, seen)
        if found < 0:
            break
        assert found >= seen
        seen, happened = found, happened + 1
    assert happened >= 3
    last = begin(nested, folder, resume=seen > 0)
    _, errors = last.communicate()
    assert last.returncode == 0, errors
    before, after = (load_file(tmp_path / name / "model" / "trained.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(before[name], after[name]) for name in before)
    ledger = Ledger(folder / "ledger.jsonl")
    assert STEPS <= ledger.steps <= STEPS + happened  # a checkpoint a step: each kill repeats one at most
    report = json.loads((folder / "report.json").read_text())
    assert report["releases"] == ledger.steps
    assert report["epsilon"]["upper"] == ledger.epsilon(delta=1e-3).upper
    assert not (folder / "private").exists()
    assert not (folder / "checkpoints").exists()
