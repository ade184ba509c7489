"""Whole runs of a tiny recipe: report, ledger, refusals, and continuation after an interruption."""

from __future__ import annotations

import json
import logging
import random
import stat

import pytest
import safetensors.torch
import torch
from optnoise.accounting import Ledger, calibrate, epsilon
from optnoise.finetune import (
    DemoTraining,
    load_recipe,
    prepare,
    run_demo_training,
    run_recipe,
    run_without_privacy,
    runner,
    trainable_dimension,
)
from optnoise.finetune.checkpoint import Checkpoint
from optnoise.mechanisms import Gaussian, Laplace

RECIPE = """
[privacy]
epsilon = 20.0
delta = 1e-3
steps = 6
sampling_rate = 0.5
clipping_norm = 1.0
divisor = 70

[data]
path = "{folder}/texts.csv"
text_column = "text"
label_column = "label"
labels = ["bad", "good"]

[model]
name = "{folder}/encoder"
train = "head"
max_length = 8

[optimizer]
learning_rate = 0.05

[runtime]
microbatch_size = 16
evaluate_every = 2
noise_seed = 7
precision = "float32"
"""
NOISE = Gaussian(0.7)  # proven below the 20 of this recipe, without a calibration in every test
WORDS = ["good", "bad", *(f"w{i}" for i in range(20))]


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory):
    """A recipe, a tiny random encoder, a tokenizer of whole words, and 160 texts labelled by their first word."""
    import tokenizers
    import transformers

    folder = tmp_path_factory.mktemp("task")
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(
        folder / "encoder"
    )
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
    )
    transformers.BertModel(config).save_pretrained(folder / "encoder")
    draw = random.Random(0)
    rows = ["text,label"]
    for _ in range(160):
        label = draw.choice(["bad", "good", "good"])
        rows.append(f"{label} {' '.join(draw.choices(WORDS[2:], k=draw.randint(1, 5)))},{label}")
    (folder / "texts.csv").write_text("\n".join(rows))
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(folder=folder))
    return path


def test_a_run_writes_report_ledger_and_weights(recipe_file, tmp_path, caplog):
    recipe = load_recipe(recipe_file)
    with caplog.at_level(logging.INFO, logger="optnoise.finetune"):
        result = run_recipe(recipe, output_dir=tmp_path / "run", progress=False)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report == json.loads(json.dumps(result.report()))
    assert report["private"] is False
    assert report["seeded"] is True
    assert report["dataset_size"] + report["test_size"] == 160
    assert report["dimension"] == 2 * 16 + 2 == trainable_dimension(recipe)
    assert report["divisor"] == 70
    assert report["adjacency"] == "add_or_remove_one"
    assert report["releases"] == report["steps"] == 6 == Ledger(tmp_path / "run" / "ledger.jsonl").steps
    noise = result.mechanism
    assert noise == calibrate(Gaussian(1.0), epsilon=20.0, delta=1e-3, steps=6, sampling_rate=0.5)
    assert result.epsilon == epsilon(noise, delta=1e-3, steps=6, sampling_rate=0.5, dimension=34)
    assert 19.9 < result.epsilon.upper <= 20
    assert [point[0] for point in result.history] == [0, 2, 4, 6]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4
    assert all("ε <= " in line and "SEEDED" in line for line in lines)
    trained = safetensors.torch.load_file(tmp_path / "run" / "trained.safetensors")
    assert trained.keys() == {"head.weight", "head.bias"}
    assert not (tmp_path / "run" / "private").exists()  # generator states are deleted at the end


def test_an_unseeded_run_is_private_and_says_so(recipe_file, tmp_path):
    recipe = load_recipe(recipe_file)
    recipe = recipe.model_copy(update={"runtime": recipe.runtime.model_copy(update={"noise_seed": None})})
    prepared = prepare(recipe, progress=False)
    results = [
        run_recipe(recipe, mechanism=NOISE, output_dir=tmp_path / n, progress=False, prepared=prepared)
        for n in ("a", "b")
    ]
    assert all(r.private and not r.report()["seeded"] for r in results)
    weights = [safetensors.torch.load_file(tmp_path / n / "trained.safetensors")["head.weight"] for n in ("a", "b")]
    assert not torch.equal(*weights)


@pytest.mark.parametrize("train", ["last_layers", "bitfit", "full"])
def test_every_trained_part_runs_and_names_its_weights_as_the_classifier_does(recipe_file, tmp_path, train):
    overrides = [f"model.train={train}", *(["model.layers=1"] if train != "full" else []), "privacy.steps=2"]
    recipe = load_recipe(recipe_file, overrides)
    run_recipe(recipe, mechanism=NOISE, output_dir=tmp_path / "run", progress=True)
    trained = safetensors.torch.load_file(tmp_path / "run" / "trained.safetensors")
    assert sum(t.numel() for t in trained.values()) == trainable_dimension(recipe)
    assert "encoder.encoder.layer.1.output.dense.bias" in trained
    assert ("encoder.encoder.layer.0.output.dense.bias" in trained) == (train == "full")
    assert ("encoder.encoder.layer.1.output.dense.weight" in trained) == (train != "bitfit")
    assert not any("pooler" in name for name in trained)
    moved = trained["encoder.encoder.layer.1.output.dense.bias"]
    assert float(moved.abs().min()) > 0  # it started at zero, and noise alone moves every coordinate


def test_without_privacy_it_learns_and_claims_nothing(recipe_file):
    recipe = load_recipe(recipe_file, ["model.train=full", "privacy.steps=30", "optimizer.learning_rate=0.01"])
    result = run_without_privacy(recipe, progress=False)
    assert result.accuracy == 1.0 > result.majority_accuracy
    assert (result.epsilon, result.delta, result.mechanism, result.private) == (None, None, None, False)
    assert result.report()["epsilon"] is None
    assert "clipping_norm" not in result.report()


def test_private_training_learns_at_a_large_epsilon(recipe_file, tmp_path):
    overrides = ["model.train=full", "privacy.steps=40", "optimizer.learning_rate=0.01", "privacy.epsilon=200"]
    result = run_recipe(
        load_recipe(recipe_file, overrides), mechanism=Gaussian(0.5), output_dir=tmp_path / "run", progress=False
    )
    assert result.accuracy > 0.9 > result.majority_accuracy


def test_a_noise_below_the_target_is_refused_before_anything_is_written(recipe_file, tmp_path):
    recipe = load_recipe(recipe_file)
    with pytest.raises(ValueError, match=r"proven epsilon <= 20 .*got"):
        run_recipe(recipe, mechanism=Gaussian(0.1), output_dir=tmp_path / "run", progress=False)
    scalar = calibrate(Laplace(1.0), epsilon=20.0, delta=1e-3, steps=6, sampling_rate=0.5, dimension=1)
    with pytest.raises(ValueError, match="in dimension 34"):  # enough for one coordinate, not for all of them
        run_recipe(recipe, mechanism=scalar, output_dir=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_divisor_for_other_data_is_refused(recipe_file):
    for divisor in (10, 1000):
        with pytest.raises(ValueError, match=r"privacy\.divisor"):
            prepare(load_recipe(recipe_file, [f"privacy.divisor={divisor}"]), progress=False)


def test_an_unknown_encoder_is_an_error_with_its_name(recipe_file):
    with pytest.raises(ValueError, match="no-such-folder"):
        trainable_dimension(load_recipe(recipe_file, ["model.name=/no-such-folder"]))


# ---- continuation -----------------------------------------------------------------------------------------------


class Interrupted(Exception):
    pass


def interrupt_at(monkeypatch, step):
    """Let the run die in the middle of `step`, after its release was recorded."""
    original = runner._Run._one_step

    def one_step(self):
        original(self)
        if self.done + 1 == step:
            raise Interrupted

    monkeypatch.setattr(runner._Run, "_one_step", one_step)


@pytest.mark.parametrize("train", ["head", "last_layers"])
def test_an_interrupted_run_ends_as_an_uninterrupted_one(recipe_file, tmp_path, monkeypatch, train):
    """Bit-equal weights in seeded mode (dropout included); replayed steps are charged again, never forgotten."""
    recipe = load_recipe(recipe_file, [f"model.train={train}", *(["model.layers=1"] if train != "head" else [])])
    prepared = prepare(recipe, progress=False)
    whole = run_recipe(recipe, mechanism=NOISE, output_dir=tmp_path / "whole", progress=False, prepared=prepared)
    with monkeypatch.context() as patch:
        interrupt_at(patch, 5)
        with pytest.raises(Interrupted):
            run_recipe(recipe, mechanism=NOISE, output_dir=tmp_path / "cut", progress=False, prepared=prepared)
    private = tmp_path / "cut" / "private"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert stat.S_IMODE((private / "checkpoint.pt").stat().st_mode) == 0o600
    assert Ledger(tmp_path / "cut" / "ledger.jsonl").steps == 5
    torch.manual_seed(99)
    resumed = run_recipe(recipe, output_dir=tmp_path / "cut", resume=True, progress=False, prepared=prepared)
    for name, tensor in safetensors.torch.load_file(tmp_path / "whole" / "trained.safetensors").items():
        assert torch.equal(tensor, safetensors.torch.load_file(tmp_path / "cut" / "trained.safetensors")[name])
    assert [p[:2] for p in resumed.history] == [p[:2] for p in whole.history]
    assert Ledger(tmp_path / "cut" / "ledger.jsonl").steps == 7  # 6 of the plan, and step 5 once more
    assert resumed.epsilon.upper > whole.epsilon.upper
    assert not private.exists()


def test_a_continuation_with_other_settings_is_refused(recipe_file, tmp_path, monkeypatch):
    recipe = load_recipe(recipe_file)
    with monkeypatch.context() as patch:
        interrupt_at(patch, 3)
        with pytest.raises(Interrupted):
            run_recipe(recipe, mechanism=NOISE, output_dir=tmp_path / "run", progress=False)
    for override, name in (
        ("privacy.clipping_norm=2.0", r"recipe\.privacy\.clipping_norm"),
        ("privacy.sampling_rate=0.4", r"recipe\.privacy\.sampling_rate"),
        ("optimizer.learning_rate=1.0", r"recipe\.optimizer\.learning_rate"),
        ("runtime.noise_seed=8", r"recipe\.seeds"),
    ):
        changed = load_recipe(recipe_file, [override])
        with pytest.raises(ValueError, match=rf"cannot resume: {name}"):
            run_recipe(changed, output_dir=tmp_path / "run", resume=True, progress=False)
    with pytest.raises(ValueError, match=r"cannot resume: mechanism\.parameters\.noise_multiplier"):
        run_recipe(recipe, mechanism=Gaussian(9.0), output_dir=tmp_path / "run", resume=True, progress=False)
    with pytest.raises(ValueError, match="holds a run already"):
        run_recipe(recipe, output_dir=tmp_path / "run", progress=False)
    assert Ledger(tmp_path / "run" / "ledger.jsonl").steps == 3
    (tmp_path / "run" / "ledger.jsonl").rename(tmp_path / "kept.jsonl")  # a lost ledger must not start at 0
    with pytest.raises(ValueError, match="is not that of this run"):
        run_recipe(recipe, output_dir=tmp_path / "run", resume=True, progress=False)
    (tmp_path / "kept.jsonl").replace(tmp_path / "run" / "ledger.jsonl")
    with pytest.raises(ValueError, match="no run to resume"):
        run_recipe(recipe, output_dir=tmp_path / "elsewhere", resume=True, progress=False)


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


# ---- the demo ---------------------------------------------------------------------------------------------------


def test_the_demo_training_runs_all_three_on_one_preparation(recipe_file, tmp_path):
    recipe = load_recipe(recipe_file, ["privacy.steps=2"])
    other = calibrate(Laplace(1.0), epsilon=20.0, delta=1e-3, steps=2, sampling_rate=0.5, dimension=34)
    found = run_demo_training(other, output_dir=tmp_path, recipe=recipe, progress=False)
    assert isinstance(found, DemoTraining)
    assert isinstance(found.gaussian.mechanism, Gaussian)
    assert found.other.mechanism == other
    assert max(found.gaussian.epsilon.upper, found.other.epsilon.upper) <= 20
    assert found.without_privacy.epsilon is None
    assert (tmp_path / "gaussian" / "report.json").exists()
    with pytest.raises(ValueError, match="proven epsilon"):
        run_demo_training(Laplace(0.01), output_dir=tmp_path / "x", recipe=recipe, progress=False)


def test_the_exported_names_exist():
    import optnoise.finetune as package

    assert len(package.__all__) == len(set(package.__all__))
    assert all(hasattr(package, name) for name in package.__all__)
