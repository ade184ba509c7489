"""Checkpoints and files of a run that are damaged or hostile: refused by name, no code run, nothing half restored."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import zipfile

import pytest
import torch
from damage import ODD_TEXTS, ODD_VALUES, as_json, damaged, edited, refused, without_permission
from hypothesis import given, settings
from hypothesis import strategies as st
from optnoise.accounting import Ledger, Release
from optnoise.finetune import PrivacySettings, Randomness, make_private, make_zeroth_order
from optnoise.finetune.checkpoint import Checkpoint
from optnoise.finetune.runs import recipe_from
from optnoise.finetune.runs.folder import RunFolder
from optnoise.mechanisms import Gaussian
from tiny_runs import document
from torch import nn

FIELDS = {"step": int, "trained": dict, "training": dict}


class Trap:
    """Unpickling it would leave a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def state_of(seed=3):
    return {"step": 3, "trained": {"w": torch.randn(40)}, "training": Randomness.from_seed(seed).state_dict()}


# ---- checkpoints ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    found = Checkpoint(tmp_path_factory.mktemp("checkpoint") / "private")
    found.save(state_of())
    return found, found.path.read_bytes()


def equal(before, after):
    if isinstance(before, torch.Tensor):
        return isinstance(after, torch.Tensor) and torch.equal(before, after)
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(equal(before[k], after[k]) for k in before)
    return before == after and type(before) is type(after)


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_checkpoint_is_refused_or_is_the_same(checkpoint, data):
    found, content = checkpoint
    found.path.write_bytes(content)
    whole = found.load(FIELDS)
    found.path.write_bytes(data.draw(damaged(content)))
    if refused(lambda: found.load(FIELDS), "checkpoint.pt") is None:
        assert equal(whole, found.load(FIELDS))


@given(ODD_VALUES, st.sampled_from(list(FIELDS)))
def test_entries_of_a_checkpoint_have_their_types(tmp_path_factory, value, name):
    found = Checkpoint(tmp_path_factory.getbasetemp() / "entries")
    found.save({**state_of(), name: value})
    fits = type(value) is FIELDS[name] and not (type(value) is int and value < 0)
    assert (refused(lambda: found.load(FIELDS), "checkpoint.pt", name) is None) == fits
    found.save({k: v for k, v in state_of().items() if k != name})
    assert refused(lambda: found.load(FIELDS), "checkpoint.pt", name)


@pytest.mark.parametrize("kind", ["pickle", "zip", "legacy"])
def test_no_code_of_a_checkpoint_is_run(tmp_path, kind):
    found, trap = Checkpoint(tmp_path / "private"), tmp_path / "trapped"
    found.save(state_of())
    hostile = {"step": 3, "trained": Trap(trap)}
    if kind == "pickle":
        found.path.write_bytes(pickle.dumps(hostile))
    else:
        buffer = io.BytesIO()
        torch.save(hostile, buffer, _use_new_zipfile_serialization=kind == "zip")
        found.path.write_bytes(buffer.getvalue())
    assert refused(found.load, "checkpoint.pt")
    assert not trap.exists()
    pickle.loads(pickle.dumps(Trap(trap)))  # the trap would have worked
    assert trap.exists()


def test_odd_texts_and_archives_are_no_checkpoint(tmp_path):
    found = Checkpoint(tmp_path / "private")
    found.save(state_of())
    for text in ODD_TEXTS:
        found.path.write_bytes(text)
        assert refused(found.load, "checkpoint.pt")
    with zipfile.ZipFile(found.path, "w") as archive:
        archive.writestr("../../data.pkl", b"\x80\x02}.")
    assert refused(found.load, "checkpoint.pt")
    found.save([1, 2])  # type: ignore[arg-type]
    assert refused(found.load, "expected a mapping")
    found.save(state_of())
    assert refused(lambda: Checkpoint(without_permission(found.path).parent).load(), "checkpoint.pt")


def test_what_is_no_file_is_no_checkpoint(tmp_path):
    found = Checkpoint(tmp_path / "private")
    found.folder.mkdir()
    found.path.mkdir()
    assert "no run to resume" in refused(found.load, "checkpoint.pt")
    found.path.rmdir()
    os.mkfifo(found.path)
    assert refused(found.load, "checkpoint.pt")
    found.path.unlink()
    found.path.symlink_to(found.path)
    assert refused(found.load, "checkpoint.pt")


# ---- states ----------------------------------------------------------------------------------------------------


def zeroth_order(seed=3):
    model = nn.Linear(3, 1).eval()
    training = make_zeroth_order(
        model,
        mechanism=Gaussian(1.0),
        clipping_norm=1.0,
        dataset_size=20,
        sampling_rate=0.5,
        divisor=10,
        smoothing=1e-3,
        learning_rate=0.1,
        directions=2,
        joint=False,
        seed=seed,
    )
    features = torch.randn(20, 3)
    for _ in training.logical_batches(3):  # an odd number: one release waits
        training.step(lambda indices: model(features[indices]).square().sum(1))
    return training


@pytest.fixture(scope="module")
def zeroth():
    return zeroth_order()


ODD_STATES = st.one_of(
    ODD_VALUES,
    st.sampled_from([torch.zeros(3), torch.zeros(5056, dtype=torch.uint8)[:100], torch.tensor(1), {"numbers": [1]}]),
)


@settings(max_examples=200)
@given(st.data())
def test_states_of_a_zeroth_order_run(zeroth, data):
    """Refused with nothing restored, or restored whole."""
    before = zeroth.state_dict()
    state = zeroth.state_dict()
    *path, key = data.draw(
        st.sampled_from(
            [
                ("used",),
                ("updates",),
                ("direction_seed",),
                ("waiting",),
                ("waiting", 0),
                ("waiting", 0, "numbers"),
                ("waiting", 0, "derivatives"),
                ("randomness",),
                ("randomness", "seeded"),
                ("randomness", "noise"),
                ("randomness", "sampling"),
            ]
        )
    )
    target = state
    for part in path:
        target = target[part]
    if isinstance(target, dict) and data.draw(st.booleans()):
        del target[key]
    else:
        target[key] = data.draw(ODD_STATES)
    text = refused(lambda: zeroth.load_state_dict(state))
    if text is not None:
        after = zeroth.state_dict()
        assert all(equal(before[name], after[name]) for name in ("direction_seed", "used", "updates"))
        assert len(after["waiting"]) == len(before["waiting"])
    zeroth.load_state_dict(before)


@given(ODD_STATES, st.sampled_from(["seeded", "noise", "sampling", None]))
def test_states_of_a_first_order_run(value, name):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = make_private(
        model,
        optimizer,
        mechanism=Gaussian(1.0),
        clipping_norm=1.0,
        dataset_size=9,
        sampling_rate=0.5,
        divisor=1,
        seed=3,
    )
    state = training.state_dict()
    taken = refused(lambda: training.load_state_dict(value if name is None else {**state, name: value})) is None
    assert taken == (name == "seeded" and value is True)


# ---- the Trainer's checkpoints ----------------------------------------------------------------------------------


PRIVACY = PrivacySettings(epsilon=9.0, delta=1e-5, steps=6, sampling_rate=0.25, clipping_norm=0.5, divisor=10.0)


@pytest.fixture(scope="module")
def trainer_checkpoint(tmp_path_factory):
    """The private part of a checkpoint after three steps of which one was taken twice, and its ledger."""
    from optnoise.finetune.layer_rules import LAYER_RULES
    from optnoise.finetune.trainer_run import Plan, PrivateRun

    folder = tmp_path_factory.mktemp("trainer")
    plan = Plan(mechanism=Gaussian(1.0), privacy=PRIVACY, noise_seed=3, rules=LAYER_RULES)

    def make(resume=None, ledger=folder / "ledger.jsonl"):
        return PrivateRun(plan, ledger, dataset_size=40, dimension=3, resume=resume)

    run = make()
    model = nn.Linear(2, 1)
    run.begin(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(4):
        run.ledger.record(run.active().release, clipping_norm=0.5, divisor=10.0)
    (folder / "checkpoint-3").mkdir()
    run.save(folder / "checkpoint-3", 3)
    run.end()
    return make, folder


@settings(max_examples=120)
@given(st.data())
def test_a_trainer_checkpoint_that_is_altered(trainer_checkpoint, data):
    """Entries and bindings of other types: refused with the name of the folder or of the entry."""
    make, folder = trainer_checkpoint
    altered = Checkpoint(folder / "altered" / "private")
    state = Checkpoint(folder / "checkpoint-3" / "private").load()
    name = data.draw(st.sampled_from(["binding", "binding", "step", "charged", "generators"]))
    if name == "binding" and data.draw(st.booleans()):
        state[name] = as_json(data.draw(edited(json.loads(state[name])))).decode()
    else:
        state[name] = data.draw(st.one_of(ODD_VALUES, st.sampled_from([t.decode("latin-1") for t in ODD_TEXTS])))
    altered.save(state)
    text = refused(lambda: make(resume=folder / "altered"))
    if text is not None:
        assert "altered" in text or "cannot resume: " in text or "the ledger" in text


def test_a_ledger_with_fewer_releases_than_at_the_checkpoint_is_refused(trainer_checkpoint):
    """Four were charged for three steps: a ledger that lost its last line has enough for those, but is refused."""
    make, folder = trainer_checkpoint
    assert make(resume=folder / "checkpoint-3").ledger.steps == 4
    shorter = folder / "shorter.jsonl"
    shorter.write_bytes(b"".join((folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)[:4]))
    assert Ledger(shorter).steps == 3
    assert "has 3 releases, the checkpoint was taken after 4" in refused(
        lambda: make(resume=folder / "checkpoint-3", ledger=shorter), "shorter.jsonl"
    )


# ---- the folder of a recipe's run -------------------------------------------------------------------------------

RECIPE = recipe_from(document("model", "data", "encoder_head"))


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    folder.begin(RECIPE, Gaussian(1.0), "abc")
    Ledger(folder.ledger).record(Release(Gaussian(1.0)), clipping_norm=1.0, divisor=1.0)
    return folder, (folder.path / "run.json").read_bytes()


@settings(max_examples=200)
@given(st.data())
def test_a_run_is_not_continued_by_a_damaged_document(run_folder, data):
    """What is taken is the very same recipe and the same noise, where a noise is given."""
    folder, content = run_folder
    path = folder.path / "run.json"
    path.write_bytes(data.draw(st.one_of(damaged(content), edited(json.loads(content)).map(as_json))))
    text = refused(lambda: folder.noise_of_interrupted(RECIPE, Gaussian(1.0)))
    if text is None:
        assert folder.noise_of_interrupted(RECIPE, Gaussian(1.0)) == Gaussian(1.0)
    else:
        assert "run.json" in text or "cannot resume: " in text or "without privacy" in text


@pytest.mark.parametrize("name", ["run.json", "private/data.json"])
def test_odd_documents_of_a_run(run_folder, tmp_path, name):
    folder, _ = run_folder
    copied = RunFolder(tmp_path / "copied")
    shutil.copytree(folder.path, copied.path)
    (copied.path / "run.json").write_bytes(run_folder[1])

    def go():
        copied.noise_of_interrupted(RECIPE, None)
        copied.check_data("abc")

    go()
    path = copied.path / name
    for text in ODD_TEXTS:
        path.write_bytes(text)
        found = refused(go)
        assert name.rpartition("/")[2] in found or "cannot resume: " in found
    path.unlink()
    path.mkdir()
    assert refused(go, path.name)
    path.rmdir()
    os.mkfifo(path)
    assert refused(go, path.name)
    path.unlink()
    path.write_text("{}")
    assert refused(lambda: (without_permission(path), go()), path.name)
