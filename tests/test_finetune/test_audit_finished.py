"""`optnoise audit` on the folder of a finished run: right code is consistent, planted faults are contradicted."""

from __future__ import annotations

import functools
import json
import math
import shutil

import pytest
import torch
from commands import run_command
from optnoise.finetune import noise
from optnoise.finetune.audit import members
from optnoise.finetune.audit.finished import open_run
from optnoise.finetune.audit.members import losses_of
from optnoise.finetune.audit.rerun import altered
from optnoise.finetune.clipped_sum import ClippedSum
from optnoise.finetune.runs import build, run_recipe
from optnoise.finetune.sampling import LogicalBatch, PoissonSampler
from optnoise.finetune.tasks import E2E, MNLI, ClassificationExample, GenerationExample
from optnoise.mechanisms import Gaussian
from safetensors.torch import load_file
from tiny_runs import labelled, paired, recipe_of, save_model

pytestmark = pytest.mark.filterwarnings(
    "ignore:Reading `use_return_dict`:FutureWarning", "ignore:`use_return_dict`:FutureWarning"
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of the head on the mean of a tiny encoder, trained on a part of its rows."""
    root = tmp_path_factory.mktemp("audited")
    model, data = save_model(root / "model", "bert", "mean_pooled"), labelled(root)
    task, training = {"train_share": 0.6}, {"dataset_size": 36, "batch_size": 12}
    recipe = recipe_of(model, data, "mean_pooled", model={"trained": "head"}, task=task, training=training)
    run_recipe(recipe, mechanism=Gaussian(1.0), output_dir=root / "run", progress=False)
    return root / "run"


@pytest.fixture
def audit(capsys):
    return functools.partial(run_command, capsys, "audit")


def contents(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_right_run_is_consistent_and_left_as_it_is(finished, audit):
    before = contents(finished)
    code, out, _ = audit(finished, "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["ledger"]["releases"]) == (0, "consistent", 4)
    assert found["ledger"]["recomputed"]["upper"] == pytest.approx(found["ledger"]["reported"], rel=1e-9)
    assert contents(finished) == before
    assert "consistent" in audit(finished)[1]


def test_a_report_below_its_ledger_is_contradicted(finished, audit, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    report = json.loads((folder / "report.json").read_text())
    report["epsilon"]["upper"] *= 0.99
    (folder / "report.json").write_text(json.dumps(report))
    code, out, _ = audit(folder)
    assert code == 1
    assert "CONTRADICTION" in out


def test_folders_without_report_ledger_or_privacy_are_refused(finished, audit, tmp_path):
    code, _, error = audit(tmp_path)
    assert (code, "there is no" in error) == (2, True)
    folder = shutil.copytree(finished, tmp_path / "run")
    whole = json.loads((folder / "report.json").read_text())
    for document, words in (({**whole, "epsilon": None}, "without privacy"), ({"epsilon": {}}, "is damaged")):
        (folder / "report.json").write_text(json.dumps(document))
        code, _, error = audit(folder)
        assert (code, words in error) == (2, True)
    (folder / "report.json").write_text(json.dumps(whole))
    (folder / "ledger.jsonl").unlink()
    code, _, error = audit(folder)
    assert (code, "no ledger" in error) == (2, True)


def test_membership_is_an_estimate_on_rows_held_out_by_a_hash(finished, audit):
    code, out, _ = audit(finished, "--json")
    found = json.loads(out)["membership"]
    assert code == 0
    assert 0 <= found["estimate"] < 20
    assert 0 <= found["true_positive_rate"]["lower"] <= found["true_positive_rate"]["upper"] <= 1
    assert "estimate (records share one model)" in audit(finished)[1]


def test_the_saved_weights_are_the_ones_attacked(finished):
    """The mean loss of rows under the restored head differs from log 2, where the head at zero is for every row."""
    pooled = build(open_run(finished).recipe)
    pooled.prepare(progress=False)
    assert losses_of(pooled) == pytest.approx(math.log(2))
    pooled.restore(finished / "model")
    weights = load_file(finished / "model" / "trained.safetensors")
    assert all(any(torch.equal(w, p) for p in pooled.model.parameters()) for w in weights.values())
    assert losses_of(pooled) != pytest.approx(math.log(2))


def test_runs_without_rows_held_out_by_a_hash_refuse_membership_alone(finished, audit, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    report = json.loads((folder / "report.json").read_text())
    report["recipe"]["task"]["train_share"] = 1.0
    (folder / "report.json").write_text(json.dumps(report))
    code, out, _ = audit(folder)
    assert (code, "refused: no rows of this run were held out" in out) == (0, True)


def test_other_data_are_an_error_and_no_refusal(finished, audit, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    report = json.loads((folder / "report.json").read_text())
    report["training_rows"] += 1
    (folder / "report.json").write_text(json.dumps(report))
    code, out, error = audit(folder)
    assert (code, "training rows, the data have" in error, "refused" in out) == (2, True, False)


def test_rows_held_out_by_dev_share_are_attacked(audit, tmp_path):
    model, data = save_model(tmp_path / "model", "bert", "mean_pooled"), labelled(tmp_path)
    (tmp_path / "dev.tsv").unlink()
    training = {"dataset_size": 40, "batch_size": 12}
    recipe = recipe_of(
        model, data, "mean_pooled", model={"trained": "head"}, task={"dev_share": 0.3}, training=training
    )
    rows = len(build(recipe).examples("dev"))
    run_recipe(recipe, mechanism=Gaussian(1.0), output_dir=tmp_path / "run", progress=False)
    code, out, _ = audit(tmp_path / "run", "--json")
    assert 0 < rows < 30
    assert (code, 0 <= json.loads(out)["membership"]["estimate"] < 20) == (0, True)


TOKENS = [("bert", "encoder_head", "full"), ("roberta", "masked_word", "bitfit"), ("llama", "causal_lm", "lora")]


@pytest.mark.parametrize("held_out", ["train_share", "dev_share"])
@pytest.mark.parametrize(("family", "kind", "trained"), TOKENS)
def test_models_on_tokens_are_attacked_and_rerun(audit, tmp_path, family, kind, trained, held_out):
    data = (paired if kind == "causal_lm" else labelled)(tmp_path)
    if held_out == "dev_share":
        (tmp_path / ("src1_valid.txt" if kind == "causal_lm" else "dev.tsv")).unlink()
    recipe = recipe_of(
        save_model(tmp_path / "model", family, kind),
        data,
        kind,
        model={"trained": trained},
        task={held_out: 0.6 if held_out == "train_share" else 0.4},
        training={"dataset_size": 36, "batch_size": 12},
    )
    run_recipe(recipe, mechanism=Gaussian(1.0), output_dir=tmp_path / "run", progress=False)
    before = contents(tmp_path / "run")
    options = ("--canaries", 10, "--steps", 3, "--seed", 1, "--confidence", 0.99999, "--json")
    code, out, error = audit(tmp_path / "run", *options)
    assert code == 0, error
    found = json.loads(out)
    assert 0 <= found["membership"]["estimate"] < 20
    assert all(one["verdict"] == "consistent" for one in found["reruns"].values())
    assert contents(tmp_path / "run") == before


def test_a_source_of_several_texts_counts_once_by_its_first(tmp_path, monkeypatch):
    recipe = recipe_of(
        save_model(tmp_path / "model", "llama", "causal_lm"),
        paired(tmp_path),
        "causal_lm",
        task={"train_share": 0.6},
        training={"dataset_size": 36, "batch_size": 12},
    )
    run_recipe(recipe, mechanism=Gaussian(1.0), output_dir=tmp_path / "run", progress=False)
    monkeypatch.setattr(members, "membership_inference", lambda inside, outside, **_: (inside, outside))
    inside, outside = members.attack_members(open_run(tmp_path / "run"), confidence=0.95)
    trained = build(recipe)
    trained.prepare(progress=False)
    trained.restore(tmp_path / "run" / "model")
    assert inside == pytest.approx(losses_of(trained)[::2], rel=1e-5)  # every source has two texts
    assert len(inside) + len(outside) == 30


def test_canaries_are_rows_that_no_model_would_guess():
    rows = [ClassificationExample(("a",), label) for label in (0, 1, 2, 2)]
    found = altered(rows, MNLI, torch.Generator().manual_seed(0))
    assert all(one.texts == row.texts and one.label != row.label for one, row in zip(found, rows, strict=True))
    assert {one.label for one in found} <= {0, 1, 2}
    pairs = [GenerationExample(name, name.upper(), (name.upper(),)) for name in "abc"]
    found = altered(pairs, E2E, torch.Generator())
    assert [(one.source, one.target, one.references) for one in found] == [
        ("a", "B", ("B",)),
        ("b", "C", ("C",)),
        ("c", "A", ("A",)),
    ]


def test_an_audit_can_be_interrupted(finished, audit, monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    before = contents(finished)
    monkeypatch.setattr(ClippedSum, "add_part", interrupt)
    code, out, error = audit(finished, "--canaries", 20, "--steps", 3, "--quiet")
    assert (code, out, error) == (130, "", "optnoise: interrupted\n")
    assert contents(finished) == before


def test_a_bar_is_shown_unless_quiet(finished, audit):
    options = (finished, "--canaries", 20, "--steps", 3)
    shown = audit(*options)[2]
    assert all(words in shown for words in ("losses", "audit with 20 canaries", "3/3"))
    assert audit(*options, "--quiet")[2] == ""


def test_a_rerun_with_right_code_is_consistent(finished, audit):
    before = contents(finished)
    code, out, _ = audit(finished, "--canaries", 20, "--steps", 3, "--seed", 1, "--confidence", 0.99999, "--json")
    found = json.loads(out)
    assert code == 0
    assert list(found["reruns"]) == ["gradient canaries", "input canaries"]
    assert all(result["shown"] <= result["proven"]["upper"] for result in found["reruns"].values())
    assert contents(finished) == before
    assert audit(finished, "--canaries", 10**6, "--steps", 3)[0] == 2


def test_batches_of_fixed_size_are_contradicted(finished, audit, monkeypatch):
    def fixed(self):
        size = round(self.dataset_size * self.sampling_rate)
        return LogicalBatch(torch.randperm(self.dataset_size)[:size].sort().values)

    # A confidence at which right code is accused once in 10^5 runs: batches have no seed.
    arguments = (finished, "--canaries", 20, "--steps", 60, "--seed", 1, "--confidence", 0.99999)
    assert audit(*arguments)[0] == 0
    monkeypatch.setattr(PoissonSampler, "draw", fixed)
    code, out, _ = audit(*arguments)
    assert (code, "CONTRADICTION" in out) == (1, True)


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """As `finished`, the last layer of a wider encoder trained too: 28,274 parameters, whole batches."""
    root = tmp_path_factory.mktemp("deep")
    model = save_model(root / "model", "bert", "mean_pooled", hidden_size=48, intermediate_size=192)
    data = labelled(root)
    recipe = recipe_of(
        model, data, "mean_pooled", model={"trained": "last_layers", "layers": 1}, training={"batch_size": 60}
    )
    run_recipe(recipe, mechanism=Gaussian(2.0), output_dir=root / "run", progress=False)
    return root / "run"


CERTAIN = ("--canaries", 20, "--steps", 2, "--seed", 1, "--confidence", 0.9999, "--json")


def test_a_deeper_run_with_right_code_is_consistent(deep, audit):
    code, out, _ = audit(deep, *CERTAIN)
    found = json.loads(out)["reruns"]
    assert code == 0
    assert 0 < found["gradient canaries"]["as_games"] < found["gradient canaries"]["proven"]["upper"]
    assert found["input canaries"]["contributions"] == "consistent"


def test_half_the_noise_is_contradicted(deep, audit, monkeypatch):
    drawn = noise.draw_noise
    monkeypatch.setattr(noise, "draw_noise", lambda *arguments, **options: drawn(*arguments, **options) / 2)
    code, out, _ = audit(deep, *CERTAIN)
    found = json.loads(out)["reruns"]["gradient canaries"]
    assert (code, found["verdict"]) == (1, "CONTRADICTION")
    assert found["as_games"] > found["proven"]["upper"]


@pytest.mark.parametrize("layer", ["head.weight", "intermediate.dense.weight"])
def test_clipping_that_skips_a_layer_is_contradicted(deep, audit, monkeypatch, layer):
    whole = ClippedSum.add_part

    def add_part(self, name, parts, factors):
        whole(self, name, parts, torch.ones_like(factors) if name.endswith(layer) else factors)

    monkeypatch.setattr(ClippedSum, "add_part", add_part)
    code, out, _ = audit(deep, *CERTAIN)
    found = json.loads(out)["reruns"]["input canaries"]
    assert (code, found["verdict"], found["contributions"]) == (1, "CONTRADICTION", "CONTRADICTION")
