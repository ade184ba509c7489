"""Recipe files and overrides that are damaged or hostile: a recipe whose settings hold, or one ValueError."""

from __future__ import annotations

import pytest
from damage import ODD_TEXTS, damaged, edited, not_files, refused, without_permission
from hypothesis import given, settings
from hypothesis import strategies as st
from optnoise.finetune.runs import load_recipe, recipe_from, shipped_recipes
from tiny_runs import document

RECIPES = shipped_recipes()
TOML = b"""description = "a test"
[privacy]
epsilon = 3.0
delta = 1e-5
clipping_norm = 0.1
[task]
name = "sst2"
path = "data"
[model]
source = "model"
kind = "encoder_head"
trained = "last_layers"
layers = 2
max_length = 64
[training]
batch_size = 20
dataset_size = 600
epochs = 3
learning_rate = 1e-3
[runtime]
secure = true
"""


def usable(recipe):
    """A recipe that was taken says how many steps there are, at which rate, with which guarantee."""
    found = recipe.settings()
    assert 0 < found.sampling_rate <= 1
    assert found.steps >= 1
    assert recipe.binding()


@settings(max_examples=300)
@given(st.data())
def test_damaged_recipe_files(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "recipe.toml"
    path.write_bytes(data.draw(damaged(TOML)))
    if refused(lambda: load_recipe(path), "recipe.toml") is None:
        usable(load_recipe(path))


@settings(max_examples=300)
@given(st.data())
def test_edited_recipes(data):
    whole = document("model", "data", data.draw(st.sampled_from(["encoder_head", "causal_lm", "mean_pooled"])))
    found = data.draw(edited(whole))
    if refused(lambda: recipe_from(found, source="this file"), "this file") is None:
        usable(recipe_from(found))


@pytest.mark.parametrize(
    "text",
    [
        *ODD_TEXTS,
        b"a = " + b"[" * 5000,
        b"a" + b".a" * 5000 + b" = 1",
        b"a = " + b"9" * 5000,
        b"description = 1979-05-27",
        b"privacy = 3",
        b"[privacy]\n[privacy]\n",
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_odd_texts_are_no_recipe(tmp_path, text):
    path = tmp_path / "recipe.toml"
    path.write_bytes(text)
    assert refused(lambda: load_recipe(path), "recipe.toml")


@given(st.text(min_size=1))
def test_overrides(text):
    name = next(iter(RECIPES))
    for override in (text, f"training.steps={text}", f"{text}=1", "training.steps=" + "[" * 5000):
        if refused(lambda override=override: load_recipe(name, [override])) is None:
            usable(load_recipe(name, [override]))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("training", "dataset_size", 10**400),
        ("training", "steps", 10**30),
        ("training", "batch_size", 5e-324),
        ("privacy", "epsilon", float("nan")),
        ("privacy", "delta", 0),
        ("runtime", "noise_seed", 10**400),
    ],
)
def test_numbers_out_of_range_are_named(section, key, value):
    found = document("model", "data", "encoder_head")
    found[section][key] = value
    assert refused(lambda: recipe_from(found), section)
    found = document("model", "data", "encoder_head", training={"steps": None, "epochs": 1e300})
    assert refused(lambda: recipe_from(found), "epochs=1e+300")


def test_what_is_no_file_is_no_recipe(tmp_path):
    for path in not_files(tmp_path):
        assert refused(lambda path=path: load_recipe(path), path.name)
    path = tmp_path / "recipe.toml"
    path.write_bytes(TOML)
    assert refused(lambda: load_recipe(without_permission(path)), "recipe.toml")
