"""Data that packages ship, and sequences of different lengths."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from optnoise.finetune.packages import file_in_package, package_folder
from optnoise.finetune.ragged import Ragged


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
