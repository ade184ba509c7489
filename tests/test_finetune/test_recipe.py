"""Recipes, tables and packages: what is read, and the error for everything that is wrong."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from optnoise.finetune import demo_recipe, load_recipe
from optnoise.finetune.packages import file_in_package, package_folder
from optnoise.finetune.ragged import Ragged
from optnoise.finetune.text_data import LabelledTexts, read_table, split

RECIPE = """
[privacy]
epsilon = 1
delta = 1e-5
steps = 4
sampling_rate = 0.5
clipping_norm = 1.0
divisor = 10

[data]
path = "texts.tsv"
text_column = "text"
label_column = "label"
labels = ["a", "b"]

[model]
name = "folder"
train = "head"

[optimizer]
learning_rate = 0.1
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="recipe.toml", encoding="utf-8"):
        path = tmp_path / name
        path.write_text(text, encoding=encoding)
        return path

    return write


def test_a_recipe_is_read_and_frozen(write):
    recipe = load_recipe(write(RECIPE))
    assert recipe.privacy.epsilon == 1.0
    assert recipe.privacy.adjacency == "add_or_remove_one"
    assert recipe.runtime.noise_seed is None
    with pytest.raises(ValueError, match="frozen"):
        recipe.privacy.epsilon = 2.0


def test_the_demo_recipe_is_valid():
    recipe = demo_recipe()
    assert recipe.privacy.epsilon == 1.0
    assert recipe.privacy.delta == 1e-5
    assert recipe.runtime.noise_seed is None


def test_overrides_replace_values_and_are_checked_like_the_file(write):
    path = write(RECIPE)
    changed = load_recipe(
        path, ["privacy.steps=9", "model.train=full", 'optimizer.name = "sgd"', "runtime.noise_seed=3"]
    )
    assert (changed.privacy.steps, changed.model.train, changed.optimizer.name) == (9, "full", "sgd")
    assert changed.runtime.noise_seed == 3
    for override in ("privacy.step=9", "privcy.steps=9"):
        with pytest.raises(ValueError, match=override.split("=")[0].split(".")[0] + r".*unknown key"):
            load_recipe(path, [override])
    for override in ("steps=9", "privacy.steps", "privacy.=1", "=1"):
        with pytest.raises(ValueError, match=r"section\.key=value"):
            load_recipe(path, [override])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epsilon = 1", "epsilon = -1", r"privacy\.epsilon: .*greater than 0, got -1"),
        ("epsilon = 1", "epsilom = 1", r"privacy\.epsilom: unknown key"),
        ("epsilon = 1", "", r"privacy\.epsilon: this key is missing"),
        ("epsilon = 1", "epsilon = inf", r"privacy\.epsilon"),
        ("epsilon = 1", "epsilon = nan", r"privacy\.epsilon"),
        ("delta = 1e-5", "delta = 1.0", r"privacy\.delta"),
        ("steps = 4", "steps = 4.5", r"privacy\.steps"),
        ("steps = 4", "steps = true", r"privacy\.steps"),
        ("steps = 4", 'steps = "4"', r"privacy\.steps"),
        ("sampling_rate = 0.5", "sampling_rate = 1.5", r"privacy\.sampling_rate"),
        ("divisor = 10", "", r"privacy\.divisor"),
        ('train = "head"', 'train = "tail"', r"model\.train"),
        ('train = "head"', 'train = "last_layers"', r"give layers"),
        ('train = "head"', 'train = "head"\nlayers = 2', r"leave layers out"),
        ('name = "folder"', 'name = "folder"\npackage = "p"', r"model: give either name"),
        ('path = "texts.tsv"', 'package = "p"', r"data: give either path"),
        ('labels = ["a", "b"]', 'labels = ["a"]', r"data\.labels"),
        ("[optimizer]", "[optimiser]", r"optimiser: unknown key"),
        ("[privacy]", "[privacy", "not TOML"),
    ],
)
def test_every_fault_is_named_with_its_key(write, old, new, message):
    with pytest.raises(ValueError, match=message):
        load_recipe(write(RECIPE.replace(old, new, 1)))


def test_a_missing_recipe_is_an_error_with_its_name():
    with pytest.raises(ValueError, match=r"cannot read the recipe 'nowhere\.toml'"):
        load_recipe("nowhere.toml")


# ---- tables -----------------------------------------------------------------------------------------------------

COLUMNS = {"text_column": "text", "label_column": "label", "label_names": ["no", "yes"]}


def test_a_table_is_read_with_its_encoding_delimiter_and_filter(write):
    path = write("label\ttext\nno\tcafé\nmaybe\tx\nyes\ta,b\n", "t.tsv", "latin-1")
    table = read_table(path, **COLUMNS, encoding="latin-1", delimiter="\t", ignored_labels=["maybe"])
    assert table == LabelledTexts(("café", "a,b"), (0, 1), ("no", "yes"))
    with pytest.raises(ValueError, match=r"line 3: expected label to be one of no, yes, got 'maybe'"):
        read_table(path, **COLUMNS, encoding="latin-1", delimiter="\t")
    with pytest.raises(ValueError, match="not in encoding='utf-8'"):
        read_table(path, **COLUMNS, delimiter="\t")
    with pytest.raises(ValueError, match=r"expected a column 'text', got the columns label\ttext"):
        read_table(path, **COLUMNS, encoding="latin-1")
    with pytest.raises(ValueError, match="cannot read the table"):
        read_table(path.parent / "no.tsv", **COLUMNS)
    with pytest.raises(ValueError, match="no row"):
        read_table(write("label,text\n", "e.csv"), **COLUMNS)
    with pytest.raises(ValueError, match="line 2"):
        read_table(write("label,text\nno\n", "s.csv"), **COLUMNS)


def test_the_split_is_fixed_and_keeps_equal_texts_together():
    data = LabelledTexts(tuple(f"t{i % 70}" for i in range(100)), tuple(i % 2 for i in range(100)), ("a", "b"))
    train, test = split(data, test_share=0.2, seed=0)
    assert len(train) + len(test) == 100
    assert not set(train.texts) & set(test.texts)
    assert len(set(test.texts)) == 14
    assert (train, test) == split(data, test_share=0.2, seed=0)
    assert split(data, test_share=0.2, seed=1)[1] != test
    assert LabelledTexts(("x",) * 4, (0, 0, 0, 1), ("a", "b")).majority_share == 0.75
    with pytest.raises(ValueError, match="test_share"):
        split(data, test_share=1.0, seed=0)
    with pytest.raises(ValueError, match="both sides"):
        split(LabelledTexts(("x",), (0,), ("a", "b")), test_share=0.5, seed=0)


# ---- packages ---------------------------------------------------------------------------------------------------


def test_a_package_is_found_without_being_imported(tmp_path, monkeypatch):
    folder = tmp_path / "optnoise_shipped_data"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "table.csv").write_text("a,b")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert file_in_package("optnoise_shipped_data", "table.csv").read_text() == "a,b"
    assert "optnoise_shipped_data" not in sys.modules
    with pytest.raises(ValueError, match=r"has no 'other\.csv'"):
        file_in_package("optnoise_shipped_data", "other.csv")


@pytest.mark.parametrize("name", ["optnoise_not_there", "../etc", "a.b"])
def test_a_missing_package_names_the_pip_command(name):
    with pytest.raises(ValueError, match="pip install --no-deps"):
        package_folder(name)


# ---- ragged sequences -------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1, max_size=8), st.data())
def test_padding_gives_back_every_sequence(sequences, data):
    ragged = Ragged.from_lists(sequences)
    indices = data.draw(st.lists(st.integers(0, len(sequences) - 1), min_size=1, max_size=5))
    values, mask = ragged.padded(torch.tensor(indices), fill=-1)
    assert values.shape == mask.shape == (len(indices), max(len(sequences[i]) for i in indices))
    for row, valid, index in zip(values, mask, indices, strict=True):
        assert row[valid].tolist() == sequences[index]
        assert (row[~valid] == -1).all()
