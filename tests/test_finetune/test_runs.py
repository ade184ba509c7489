"""Whole runs of recipes: report, ledger, refusals, continuation; first and zeroth order; every kind of model."""

from __future__ import annotations

import json
import logging
import stat

import pytest
import torch
from optnoise.accounting import Ledger, calibrate, epsilon
from optnoise.demo import train_three
from optnoise.finetune import Randomness, sampling
from optnoise.finetune.checkpoint import Checkpoint
from optnoise.finetune.models import load_pretrained
from optnoise.finetune.runs import build, run_recipe, run_without_privacy, trainers
from optnoise.finetune.zeroth_order import ZerothOrderTraining
from optnoise.mechanisms import Gaussian, Laplace
from safetensors.torch import load_file
from tiny_runs import labelled, paired, recipe_of, save_model

pytestmark = pytest.mark.filterwarnings(
    "ignore:Reading `use_return_dict`:FutureWarning", "ignore:`use_return_dict`:FutureWarning"
)
NOISE = Gaussian(1.0)  # proven below the 20 of these recipes, without a calibration in every test
CELLS = [
    ("roberta", "encoder_head", "full"),
    ("bert", "encoder_head", "bitfit"),
    ("roberta", "encoder_head", "lora"),
    ("roberta", "masked_word", "full"),
    ("bert", "mean_pooled", "head"),
    ("roberta", "mean_pooled", "last_layers"),
    ("bert", "mean_pooled", "full"),
    ("gpt2", "causal_lm", "full"),
    ("llama", "causal_lm", "lora"),
    ("llama", "causal_head", "head"),
    ("gpt2", "causal_head", "last_layers"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "sst2").mkdir()
    (folder / "e2e").mkdir()
    return {"sst2": labelled(folder / "sst2"), "e2e": paired(folder / "e2e")}


@pytest.fixture(scope="module")
def recipe(files, tmp_path_factory):
    root, saved = tmp_path_factory.mktemp("models"), {}

    def make(family="roberta", kind="encoder_head", trained="full", **sections):
        if (family, kind) not in saved:
            saved[family, kind] = save_model(root / f"{family}-{kind}", family, kind)
        layers = {"layers": 1} if trained == "last_layers" else {}
        model = {"trained": trained, **layers, **sections.pop("model", {})}
        path = files["e2e" if kind == "causal_lm" else "sst2"]
        return recipe_of(saved[family, kind], path, kind, model=model, **sections)

    return make


def report_of(folder):
    return json.loads((folder / "report.json").read_text())


def weights_of(folder):
    return {name: value for file in sorted(folder.rglob("*.safetensors")) for name, value in load_file(file).items()}


def unchanged(before, after):
    return before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(("family", "kind", "trained"), CELLS)
def test_saved_weights_come_back_to_the_bit(recipe, tmp_path, family, kind, trained):
    chosen = recipe(family, kind, trained)
    saved, other = build(chosen), build(chosen)
    with torch.no_grad():
        for parameter in saved.model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape))
    saved.save(tmp_path / "model")
    other.restore(tmp_path / "model")
    assert unchanged(saved.model.state_dict(), other.model.state_dict())
    for name, words in (("empty", "no weights at"), ("model", "such as|other parameters")):
        if name == "model":
            other = build(recipe(family, kind, trained, model={"lora": {"rank": 3}} if trained == "lora" else {}))
            trained_ones = [p for p in other.model.parameters() if p.requires_grad]
            trained_ones[0].data = torch.zeros(2, 3, 5)
        with pytest.raises(ValueError, match=words):
            other.restore(tmp_path / name)


@pytest.mark.parametrize(("family", "kind", "trained"), CELLS)
def test_every_kind_of_model_runs_and_reports(recipe, tmp_path, family, kind, trained):
    result = run_recipe(recipe(family, kind, trained), mechanism=NOISE, output_dir=tmp_path / "run", progress=False)
    report = report_of(tmp_path / "run")
    assert (report["releases"], report["planned_steps"], report["private"]) == (4, 4, False)
    assert [line["step"] for line in report["history"]] == [0, 2, 4]
    assert report["history"][0]["epsilon"] is None
    assert 0 < report["history"][1]["epsilon"] < report["history"][2]["epsilon"] < 20
    assert report["epsilon"] == result.epsilon._asdict()
    expected = {"perplexity", "loss", "bleu", "rouge_l"} if kind == "causal_lm" else {"accuracy", "loss"}
    assert expected <= report["metrics"]["dev"].keys()
    assert weights_of(tmp_path / "run" / "model")
    text = (tmp_path / "run" / "report.md").read_text()
    assert "NOT PRIVATE" in text
    assert "| best |" in text
    assert "NOT PRIVATE" in (tmp_path / "run" / "model" / "README.md").read_text()
    assert not (tmp_path / "run" / "private").exists()
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_the_report_holds_what_the_guarantee_was_computed_from(recipe, tmp_path, caplog, files):
    chosen = recipe(evaluation={"test": True, "every": 2})
    with caplog.at_level(logging.INFO, logger="optnoise.finetune.runs"):
        result = run_recipe(chosen, output_dir=tmp_path / "run", progress=False)
    noise = calibrate(Gaussian(1.0), epsilon=20.0, delta=1e-3, steps=4, sampling_rate=1 / 3)
    assert result.mechanism == noise
    report = report_of(tmp_path / "run")
    assert report["mechanism"] == noise.spec()
    dimension = report["dimension"]
    assert dimension == report["trained_parameters"] == build(chosen).dimension
    question = {"delta": 1e-3, "steps": 4, "sampling_rate": 1 / 3, "dimension": dimension}
    assert result.epsilon == epsilon(noise, **question)
    assert 19.8 < result.epsilon.upper <= 20
    opinions = {opinion["accountant"]: opinion for opinion in report["accountants"]}
    assert opinions["best"]["upper"] == result.epsilon.upper
    assert opinions["rdp"]["upper"] >= result.epsilon.lower
    assert opinions["cf"]["proven"] is False
    assert "refused" in opinions["exact"]
    assert (report["divisor"], report["clipping_norm"], report["sampling"]) == (20.0, 1.0, "poisson")
    assert report["protected_unit"].startswith("one row of train.tsv")
    assert set(report["metrics"]) == {"dev", "test"}
    assert report["seeds"]["noise"] == 7  # it may be shown: the run is not private
    assert (tmp_path / "run" / "metrics.png").stat().st_size > 1000
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("step ")]
    assert len(lines) > 4
    assert all("ε <= " in line and "SEEDED" in line for line in lines if not line.startswith("step 0/"))
    everything = (tmp_path / "run" / "report.json").read_text() + (tmp_path / "run" / "run.json").read_text()
    assert "digest" not in everything
    with pytest.raises(ValueError, match="holds a run already"):
        run_recipe(chosen, output_dir=tmp_path / "run", progress=False)


@pytest.mark.parametrize("method", ["first_order", "zeroth_order"])
def test_an_unseeded_run_is_private_and_shows_no_secret_seed(recipe, tmp_path, method):
    chosen = recipe("bert", "mean_pooled", "head", runtime={"noise_seed": None, "seed": 5}, training={"method": method})
    runs = [run_recipe(chosen, mechanism=NOISE, output_dir=tmp_path / name, progress=False) for name in ("a", "b")]
    assert all(run.private for run in runs)
    assert not unchanged(weights_of(tmp_path / "a"), weights_of(tmp_path / "b"))
    report = report_of(tmp_path / "a")
    assert report["seeds"] == {"new_weights": 0, "held_out_rows": 0}
    assert "NOT PRIVATE" not in (tmp_path / "a" / "report.md").read_text()


@pytest.mark.parametrize("method", ["first_order", "zeroth_order"])
def test_a_secure_run_says_so_and_goes_on_as_one(recipe, tmp_path, monkeypatch, method):
    def make(secure=True):
        runtime = {"noise_seed": None, "secure": secure}
        return recipe("bert", "mean_pooled", "head", training={"method": method}, runtime=runtime)

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt_at(patch, 3)
        with pytest.raises(Interrupted):
            run_recipe(make(), mechanism=NOISE, output_dir=folder, progress=False)
    with pytest.raises(ValueError, match=r"cannot resume: recipe\.secure has changed \(True then, None now\)"):
        run_recipe(make(secure=False), output_dir=folder, resume=True, progress=False)
    result = run_recipe(make(), output_dir=folder, resume=True, progress=False)
    assert result.private
    assert result.training.releases == Ledger(folder / "ledger.jsonl").steps == 5  # 4, and the third once more
    report = report_of(folder)
    assert report["secure"] is True
    assert report["recipe"]["runtime"]["secure"] is True
    assert "Secure mode" in (folder / "report.md").read_text()
    run_recipe(make(secure=False), mechanism=NOISE, output_dir=tmp_path / "plain", progress=False)
    assert report_of(tmp_path / "plain")["secure"] is False
    assert "Real-number arithmetic is assumed" in (tmp_path / "plain" / "report.md").read_text()


def files_with(folder, secrets):
    return {
        file.relative_to(folder).parts[0]
        for file in folder.rglob("*")
        if file.is_file() and any(secret in file.read_bytes() for secret in secrets)
    }


@pytest.mark.parametrize("method", ["first_order", "zeroth_order"])
@pytest.mark.parametrize("kind", ["seeded", "private", "secure"])
def test_generator_states_are_in_the_private_folders_alone_and_gone_at_the_end(
    recipe, tmp_path, monkeypatch, method, kind
):
    """Pieces of every state that the secret generators had, looked for in every file."""
    runtime = {"noise_seed": 7 if kind == "seeded" else None, "secure": kind == "secure"}
    chosen = recipe("bert", "mean_pooled", "head", training={"method": method}, runtime=runtime)
    secrets, chosen_randomness, draw = set(), [], sampling.PoissonSampler.draw

    def see():
        for generator in chosen_randomness:
            if isinstance(generator, torch.Generator):
                state = generator.get_state().numpy().tobytes()
                secrets.update((state[1000:1064], state[3000:3064]))
            else:
                secrets.add(generator.bit_generator.state["state"]["keysetup"].tobytes())
        secrets.add(torch.get_rng_state().numpy().tobytes()[1000:1064])

    def make(**arguments):
        found = original(**arguments)
        chosen_randomness.extend((found.noise, found.sampling))
        return found

    def drawn(self):
        see()
        return draw(self)

    original = Randomness.chosen
    monkeypatch.setattr(Randomness, "chosen", make)
    monkeypatch.setattr(sampling.PoissonSampler, "draw", drawn)
    with monkeypatch.context() as patch:
        interrupt_at(patch, 3)
        with pytest.raises(Interrupted):
            run_recipe(chosen, mechanism=NOISE, output_dir=tmp_path / "run", progress=False)
    where = {"first_order": "checkpoints", "zeroth_order": "private"}[method]
    assert files_with(tmp_path, secrets) == ({"run"} if kind == "seeded" else set())
    assert files_with(tmp_path / "run", secrets) == ({where} if kind == "seeded" else set())
    run_recipe(chosen, output_dir=tmp_path / "run", resume=True, progress=False)
    see()
    assert len(secrets) >= 4
    assert files_with(tmp_path, secrets) == set()


def test_the_model_can_be_loaded_again(recipe, tmp_path):
    run_recipe(recipe(), mechanism=NOISE, output_dir=tmp_path / "run", progress=False)
    loaded = load_pretrained(tmp_path / "run" / "model", kind="encoder_head", num_labels=2)
    assert unchanged(weights_of(tmp_path / "run" / "model"), dict(loaded.model.state_dict().items()))


def test_without_privacy_it_learns_and_claims_nothing(recipe, tmp_path):
    chosen = recipe("bert", "mean_pooled", "full", training={"steps": 40, "learning_rate": 0.02})
    result = run_without_privacy(chosen, output_dir=tmp_path / "run", progress=False)
    assert result.metrics["dev"]["accuracy"] > 0.9 > result.metrics["dev"]["majority_accuracy"]
    assert (result.epsilon, result.mechanism, result.private) == (None, None, False)
    report = report_of(tmp_path / "run")
    assert (report["epsilon"], report["private"]) == (None, False)
    assert "clipping_norm" not in report
    assert "NO PRIVACY" in (tmp_path / "run" / "report.md").read_text()
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
    with pytest.raises(ValueError, match="is finished"):
        run_recipe(chosen, output_dir=tmp_path / "run", resume=True, progress=False)
    (tmp_path / "run" / "report.json").unlink()
    with pytest.raises(ValueError, match="without privacy"):
        run_recipe(chosen, output_dir=tmp_path / "run", resume=True, progress=False)


def test_private_training_learns_at_a_large_epsilon(recipe, tmp_path):
    chosen = recipe(
        "bert",
        "mean_pooled",
        "full",
        training={"steps": 60, "learning_rate": 0.02, "batch_size": 60},
        privacy={"epsilon": 2000.0, "clipping_norm": 5.0},
    )
    result = run_recipe(chosen, mechanism=Gaussian(0.3), output_dir=tmp_path / "run", progress=False)
    assert result.metrics["dev"]["accuracy"] > 0.9


@pytest.mark.parametrize("method", ["first_order", "zeroth_order"])
def test_a_noise_that_exceeds_the_target_is_refused_before_anything_is_written(recipe, tmp_path, method):
    chosen = recipe("bert", "mean_pooled", "head", training={"method": method})
    with pytest.raises(ValueError, match=r"proven epsilon <= 20 .*got"):
        run_recipe(chosen, mechanism=Gaussian(0.05), output_dir=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_scalar_noise_passes_for_zeroth_order_and_not_for_gradients(recipe, tmp_path):
    budget = {"privacy": {"epsilon": 2.0}}
    scalar = calibrate(Laplace(1.0), epsilon=2.0, delta=1e-3, steps=4, sampling_rate=1 / 3, dimension=1)
    with pytest.raises(ValueError, match="in dimension 26"):
        run_recipe(
            recipe("bert", "mean_pooled", "head", **budget), mechanism=scalar, output_dir=tmp_path / "a", progress=False
        )
    zeroth = recipe("bert", "mean_pooled", "head", training={"method": "zeroth_order"}, **budget)
    result = run_recipe(zeroth, mechanism=scalar, output_dir=tmp_path / "b", progress=False)
    assert (result.dimension, result.trained_parameters) == (1, 26)
    assert result.epsilon.upper <= 2
    assert report_of(tmp_path / "b")["method"] == "zeroth_order"


# ---- zeroth order ---------------------------------------------------------------------------------------------------


def test_zeroth_order_runs_on_any_kind_and_takes_several_directions(recipe, tmp_path):
    for number, (family, kind, trained) in enumerate(
        [("roberta", "masked_word", "full"), ("llama", "causal_lm", "lora")]
    ):
        chosen = recipe(
            family, kind, trained, training={"method": "zeroth_order", "directions": 2, "schedule": "linear"}
        )
        result = run_recipe(chosen, mechanism=Gaussian(2.0), output_dir=tmp_path / f"{number}", progress=False)
        assert result.dimension == 2
        assert [line["step"] for line in result.training.history] == [0, 2, 4]
    with pytest.raises(ValueError, match="no yardstick"):
        run_without_privacy(chosen, output_dir=tmp_path / "x", progress=False)


# ---- continuation ---------------------------------------------------------------------------------------------------


class Interrupted(Exception):
    pass


def interrupt_at(monkeypatch, step):
    """Let the run die in `step`, after its release was recorded and applied, before any checkpoint of it."""
    seen = []

    def after(original):
        def call(self, *arguments, **more):
            found = original(self, *arguments, **more)
            seen.append(1)
            if len(seen) == step:
                raise Interrupted
            return found

        return call

    monkeypatch.setattr(trainers.WorkloadTrainer, "training_step", after(trainers.WorkloadTrainer.training_step))
    monkeypatch.setattr(ZerothOrderTraining, "step", after(ZerothOrderTraining.step))


@pytest.mark.parametrize(
    ("family", "kind", "trained", "method"),
    [
        ("bert", "mean_pooled", "head", "first_order"),
        ("roberta", "encoder_head", "full", "first_order"),
        ("llama", "causal_lm", "lora", "first_order"),
        ("bert", "mean_pooled", "last_layers", "zeroth_order"),
    ],
)
def test_an_interrupted_run_ends_as_an_uninterrupted_one(recipe, tmp_path, monkeypatch, family, kind, trained, method):
    """Bit-equal weights in seeded mode; steps that are taken again are charged again, never forgotten."""
    chosen = recipe(
        family, kind, trained, training={"method": method, "steps": 5, "schedule": "linear"}, privacy={"epsilon": 40.0}
    )
    whole = run_recipe(chosen, mechanism=NOISE, output_dir=tmp_path / "whole", progress=False)
    torch.manual_seed(98)  # new weights come from the recipe's seed alone
    with monkeypatch.context() as patch:
        interrupt_at(patch, 4)
        with pytest.raises(Interrupted):
            run_recipe(chosen, mechanism=NOISE, output_dir=tmp_path / "cut", progress=False)
    folder = tmp_path / "cut"
    assert Ledger(folder / "ledger.jsonl").steps == 4
    assert stat.S_IMODE((folder / "private").stat().st_mode) == 0o700
    assert all(stat.S_IMODE(f.stat().st_mode) == 0o600 for f in folder.rglob("private/**/*") if f.is_file())
    torch.manual_seed(99)
    resumed = run_recipe(chosen, output_dir=folder, resume=True, progress=False)
    assert unchanged(weights_of(tmp_path / "whole" / "model"), weights_of(folder / "model"))
    assert Ledger(folder / "ledger.jsonl").steps == resumed.training.releases == 7  # 5, and steps 3 and 4 once more
    assert resumed.epsilon.upper > whole.epsilon.upper
    assert "of 7 releases 2 were of steps that were taken again" in (folder / "report.md").read_text()
    assert "interrupted" not in (tmp_path / "whole" / "report.md").read_text()
    same = [{k: v for k, v in line.items() if k != "epsilon"} for line in whole.training.history]
    again = [{k: v for k, v in line.items() if k != "epsilon"} for line in resumed.training.history]
    assert [line["step"] for line in again] == [line["step"] for line in same]
    assert again[-1] == same[-1]
    assert not (folder / "private").exists()


@pytest.mark.parametrize("method", ["first_order", "zeroth_order"])
def test_a_continuation_that_would_exceed_the_target_stops_early_and_says_so(recipe, tmp_path, monkeypatch, method):
    chosen = recipe("bert", "mean_pooled", "head", training={"method": method, "steps": 6})
    with monkeypatch.context() as patch:
        interrupt_at(patch, 4)
        with pytest.raises(Interrupted):
            run_recipe(chosen, output_dir=tmp_path / "cut", progress=False)  # calibrated: no step to spare
    resumed = run_recipe(chosen, output_dir=tmp_path / "cut", resume=True, progress=False)
    assert resumed.training.stopped_at_budget
    assert resumed.training.releases == 6
    assert resumed.epsilon.upper <= 20
    assert report_of(tmp_path / "cut")["stopped_at_budget"] is True
    text = (tmp_path / "cut" / "report.md").read_text()
    assert (
        f"Stopped after step {resumed.training.history[-1]['step']}: another release would have exceeded ε = 20" in text
    )
    assert resumed.training.history[-1]["step"] < 6


@pytest.mark.parametrize("method", ["first_order", "zeroth_order"])
def test_a_continuation_with_other_settings_is_refused(recipe, tmp_path, monkeypatch, files, method):
    def make(**sections):
        training = {"method": method, **sections.pop("training", {})}
        return recipe("bert", "mean_pooled", "head", training=training, **sections)

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt_at(patch, 3)
        with pytest.raises(Interrupted):
            run_recipe(make(), mechanism=NOISE, output_dir=folder, progress=False)
    for sections, name in (
        ({"privacy": {"clipping_norm": 2.0}}, r"recipe\.privacy\.clipping_norm"),
        ({"training": {"dataset_size": 59}}, r"recipe\.training\.dataset_size"),
        ({"training": {"learning_rate": 1.0}}, r"recipe\.training\.learning_rate"),
        ({"runtime": {"noise_seed": 8}}, r"recipe\.noise_seed"),
    ):
        with pytest.raises(ValueError, match=rf"cannot resume: {name}"):
            run_recipe(make(**sections), output_dir=folder, resume=True, progress=False)
    with pytest.raises(ValueError, match=r"cannot resume: mechanism\.parameters\.noise_multiplier"):
        run_recipe(make(), mechanism=Gaussian(9.0), output_dir=folder, resume=True, progress=False)
    with pytest.raises(ValueError, match="holds a run already"):
        run_recipe(make(), output_dir=folder, progress=False)
    assert Ledger(folder / "ledger.jsonl").steps == 3
    (folder / "ledger.jsonl").rename(tmp_path / "kept.jsonl")  # a lost ledger must not start at 0
    with pytest.raises(ValueError, match=r"without its ledger|not that of this run"):
        run_recipe(make(), output_dir=folder, resume=True, progress=False)
    (tmp_path / "kept.jsonl").replace(folder / "ledger.jsonl")
    for file in ("run.json", "private/data.json"):
        before = (folder / file).read_text()
        (folder / file).write_text(before[:20])
        with pytest.raises(ValueError, match=r"(run|data)\.json is damaged"):
            run_recipe(make(), output_dir=folder, resume=True, progress=False)
        (folder / file).write_text(before)
    (folder / "private/data.json").write_text('{"data": "another"}')
    with pytest.raises(ValueError, match=r"cannot resume: data has changed \(other training texts\)"):
        run_recipe(make(), output_dir=folder, resume=True, progress=False)
    with pytest.raises(ValueError, match="no run to resume"):
        run_recipe(make(), output_dir=tmp_path / "elsewhere", resume=True, progress=False)


def test_a_damaged_checkpoint_is_refused_and_runs_no_code(tmp_path):
    import pickle

    checkpoint = Checkpoint(tmp_path / "private")
    checkpoint.save({"step": 3, "tensor": torch.ones(2)})
    assert checkpoint.load()["step"] == 3
    whole = checkpoint.path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"not a checkpoint", pickle.dumps(print)):
        checkpoint.path.write_bytes(damaged)
        with pytest.raises(ValueError, match="is damaged"):
            checkpoint.load()
    checkpoint.delete()
    with pytest.raises(ValueError, match="no run to resume"):
        checkpoint.load()


# ---- the demo -------------------------------------------------------------------------------------------------------


def test_the_demo_trains_three_times_on_one_preparation(recipe, tmp_path):
    chosen = recipe("bert", "mean_pooled", "last_layers", training={"steps": 2})
    workload = build(chosen)
    other = calibrate(
        Laplace(1.0), epsilon=20.0, delta=1e-3, steps=2, sampling_rate=1 / 3, dimension=workload.dimension
    )
    runs = train_three(workload, other, tmp_path, progress=False)
    assert isinstance(runs["gaussian"].mechanism, Gaussian)
    assert runs["other"].mechanism == other
    assert max(runs["gaussian"].epsilon.upper, runs["other"].epsilon.upper) <= 20
    assert runs["without_privacy"].epsilon is None
    first = [runs[name].training.history[0] for name in runs]
    assert all(line["loss"] == first[0]["loss"] for line in first)  # the same first weights
    with pytest.raises(ValueError, match="same task and model"):
        workload.again(recipe("bert", "mean_pooled", "head"))


def test_the_exported_names_exist():
    import optnoise.finetune as package

    assert len(package.__all__) == len(set(package.__all__))
    assert all(hasattr(package, name) for name in package.__all__)
