"""Frozen weights in pieces in two processes: the training of one process, half of the bytes, and nobody waits."""

from __future__ import annotations

import re

import numpy as np
import pytest
import sharded_jobs as jobs
import torch
from optnoise.accounting import Ledger
from optnoise.finetune import PerLayer, shard_frozen
from optnoise.finetune.probe import bit_splits
from optnoise.finetune.replicas import check_not_wrapped
from optnoise.finetune.sampling import LogicalBatch
from optnoise.mechanisms import Gaussian, Laplace

SILENT = Gaussian(1e-12)
SEED_OF_FIVE = 9  # its first Poisson batch has 5 examples


@pytest.mark.parametrize(
    "changes",
    [
        {"mechanism": SILENT},
        {},
        {"mechanism": Laplace(1.0), "clipping_norm": PerLayer(0.3), "size": 3},
        {"mechanism": SILENT, "checkpointing": False},
        {"mechanism": SILENT, "checkpointing": True},
        {"mechanism": SILENT, "by_hand": True},
        {"sampling_rate": 0.06, "divisor": 1.0, "steps": 16},
    ],
    ids=["silent", "gaussian", "per layer", "checkpointed", "reentrant", "by hand", "empty shares"],
)
def test_two_processes_with_half_the_frozen_weights_train_as_one(pair, changes):
    alone = jobs.trained(0, sharded=False, process_group=None, **{**changes, "by_hand": False})
    first, second = pair.run(jobs.trained, sharded=True, **changes)
    assert np.array_equal(first["adapters"], second["adapters"])
    np.testing.assert_allclose(first["adapters"], alone["adapters"], rtol=0, atol=1e-11)
    assert np.abs(alone["adapters"] - alone["before"]).max() > 0.01
    for found in (first, second):
        assert found["plain"]
        assert np.array_equal(found["whole"], alone["whole"])
        assert (found["epsilon"], found["recorded"]) == (alone["epsilon"], alone["recorded"])
    idle = 0
    for whole, one, other in zip(alone["log"], first["log"], second["log"], strict=True):
        assert sorted(one[0] + other[0]) == whole[0]
        assert len(one[1]) == len(other[1])  # as many microbatches
        assert all(one[1])  # the first has the largest share
        idle += other[1].count(False)
    if "sampling_rate" in changes:
        assert any(not share for share, _ in alone["log"])
        assert any(not share and counted for share, counted in second["log"])
        assert idle > 0


def test_probes_for_mixed_examples_differ_and_nobody_waits(pair):
    """The first microbatch of 3 in one process and of 2 in the other: 4 backward passes more there, 2 here."""
    changes = {"mechanism": SILENT, "size": 4, "seed": SEED_OF_FIVE}
    alone = jobs.trained(0, sharded=False, process_group=None, **changes)
    first, second = pair.run(jobs.trained, sharded=True, **changes)
    shares = [len(found["log"][0][0]) for found in (first, second)]
    assert [len(list(bit_splits(share))) for share in shares] == [4, 2]
    assert np.array_equal(first["adapters"], second["adapters"])
    np.testing.assert_allclose(first["adapters"], alone["adapters"], rtol=0, atol=1e-11)


def test_float32_agrees_to_its_precision(pair):
    changes = {"dtype": torch.float32, "mechanism": SILENT}
    alone = jobs.trained(0, sharded=False, process_group=None, **changes)
    first, second = pair.run(jobs.trained, sharded=True, **changes)
    assert np.array_equal(first["adapters"], second["adapters"])
    np.testing.assert_allclose(first["adapters"], alone["adapters"], rtol=0, atol=1e-6)


def test_each_process_holds_half_of_the_frozen_weights(pair):
    """Before and after training, storage counted; 5% for axes that do not divide evenly and their padding."""
    whole = jobs.bytes_here(jobs.llama())
    for found in pair.run(jobs.trained, sharded=True):
        for held in found["frozen bytes"]:
            assert 0.5 <= held / whole < 0.55
    for found in pair.run(jobs.trained, sharded=False):
        assert found["frozen bytes"] == (whole, whole)


def test_all_have_the_frozen_weights_of_the_first(pair):
    own, same = pair.run(jobs.trained, sharded=True, own_weights=True), pair.run(jobs.trained, sharded=True)
    for found in own:
        assert np.array_equal(found["whole"], same[0]["whole"])
        assert np.array_equal(found["adapters"], same[0]["adapters"])


def test_bfloat16_passes_over_float32_pieces(pair):
    """The mixed precision of fully_shard: the adapters stay float32, and move nearly as they do in float32."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    changes = {"dtype": torch.float32, "mechanism": SILENT}
    first, second = pair.run(jobs.trained, sharded=True, mp_policy=policy, **changes)
    exact, _ = pair.run(jobs.trained, sharded=True, **changes)
    assert np.array_equal(first["adapters"], second["adapters"])
    moved, wanted = first["adapters"] - first["before"], exact["adapters"] - exact["before"]
    assert 0 < np.linalg.norm(moved - wanted) < 0.5 * np.linalg.norm(wanted)


def test_a_seeded_run_goes_on_after_a_checkpoint_of_the_first(pair, tmp_path):
    results = pair.run(jobs.resumed, folder=tmp_path, stop=2, steps=4)
    whole = jobs.trained(0, sharded=False, process_group=None)
    for found in results:
        np.testing.assert_allclose(found["adapters"], whole["adapters"], rtol=0, atol=1e-11)
        assert found["recorded"] == 4
    assert Ledger(tmp_path / "ledger.jsonl").steps == 4


def test_an_evaluation_may_come_between(pair):
    first, second = pair.run(jobs.evaluated_between, steps=6)
    assert first["losses"] == second["losses"]
    assert len(set(first["losses"])) >= 5
    assert np.array_equal(first["adapters"], second["adapters"])
    assert any(one == other == 0 for one, other in zip(first["sizes"], second["sizes"], strict=True))


@pytest.mark.parametrize(
    ("how", "here", "there"),
    [
        ("too many", "ValueError: expected batch_size <=", "ProcessError: record() failed in another process"),
        ("mean", "ValueError: expected one loss per example", "ProcessError: backward(losses) failed in another"),
        ("mixed", "ValueError: the loss of one example depends", "ProcessError: looking for mixed examples failed in"),
        ("mixed in all", "ValueError: the loss of one example depends", "ValueError: the loss of one example depends"),
        ("forward in all", "RuntimeError: forward", "RuntimeError: forward"),
        ("backward in all", "RuntimeError: backward", "RuntimeError: backward"),
    ],
)
def test_an_error_in_one_process_is_one_in_both_and_both_can_go_on(pair, how, here, there):
    first, second = pair.run(jobs.errors_then_training, how=how)
    assert first["error"].startswith(there)
    assert second["error"].startswith(here)
    assert np.array_equal(first["adapters"], second["adapters"])
    training = jobs.private(jobs.llama(), seed=7, process_group=None)
    jobs.train(training, 3)
    np.testing.assert_allclose(first["adapters"], jobs.flat(jobs.adapters(training.model)), rtol=0, atol=1e-11)


def test_other_numbers_of_microbatches_are_refused_and_nobody_waits(pair):
    for found in pair.outcomes(jobs.unequal_numbers):
        assert type(found).__name__ == "ProcessError"
        assert "batch.microbatches(size)" in str(found)


def test_what_nobody_needs_is_refused(pair):
    for found in pair.outcomes(jobs.recorded_for_nothing):
        assert isinstance(found, ValueError)
        assert "all examples of this logical batch were recorded" in str(found)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("trained", "the trainable .* lie in pieces .*shard_frozen.*ignored_params"),
        ("trained later", "the trainable .* lies in pieces .*shard_frozen"),
        ("tensor parallel", "otherwise than by fully_shard"),
        ("fallback", "has no clipping rule and holds sharded parameters"),
        ("alone", r"lie in pieces in the processes \[0, 1\], the model is trained by \[[01]\]"),
        ("zeroth order", "training without gradients takes whole copies only"),
        ("twice", "sharded already"),
        ("all trained", "got only trainable ones"),
        ("none trained", "got no trainable ones"),
        ("meta", "meta device"),
        ("foreign block", "blocks to be modules inside the model"),
        ("two-dimensional mesh", "one dimension"),
        ("unlike models", "the same parameters"),
    ],
)
def test_refused_with_a_way_out(pair, how, words):
    for found in pair.outcomes(jobs.refused, how=how):
        assert isinstance(found, ValueError), found
        assert re.search(words, str(found)), found


@pytest.mark.parametrize("mesh", [True, False])
def test_blocks_of_ones_own(pair, mesh):
    first, second = pair.run(jobs.blocks_of, mesh=mesh)
    layer = "base_model.model.model.layers.1"
    assert first["sharded"] == second["sharded"] == ["", layer, f"{layer}.mlp"]
    alone = jobs.trained(0, sharded=False, process_group=None, steps=2)
    np.testing.assert_allclose(first["adapters"], alone["adapters"], rtol=0, atol=1e-11)


def test_the_pair_still_works_after_all_those_errors(pair):
    first, second = pair.run(jobs.trained, sharded=True, steps=2)
    assert np.array_equal(first["adapters"], second["adapters"])


def test_one_process_shards_nothing():
    model = jobs.llama()
    before = dict(model.named_parameters())
    assert shard_frozen(model) is model
    assert all(parameter is before[name] for name, parameter in model.named_parameters())


@pytest.mark.parametrize(
    ("largest", "own", "size", "idle"),
    [(0, 0, 2, 0), (5, 4, 2, 1), (5, 5, 2, 0), (1, 0, 4, 1), (7, 0, 2, 4), (6, 5, 2, 0)],
)
def test_idle_microbatches_hold_record_0(largest, own, size, idle):
    batch = LogicalBatch(torch.arange(3, 3 + own), largest)
    assert batch.idle(size) == idle
    pieces = [piece.tolist() for piece in batch.microbatches(size)]
    assert pieces[len(pieces) - idle :] == [[0]] * idle
    assert [i for piece in pieces[: len(pieces) - idle] for i in piece] == list(range(3, 3 + own))


def test_the_older_fsdp_is_refused():
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel.__new__(FullyShardedDataParallel)  # its own __init__ needs a GPU
    torch.nn.Module.__init__(model)
    model._modules["_fsdp_wrapped_module"] = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"FullyShardedDataParallel, which shards what is trained too; .*shard_frozen"):
        check_not_wrapped(model)
