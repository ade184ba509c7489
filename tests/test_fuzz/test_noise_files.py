"""Noise files and inline noise that are damaged or hostile: a noise, or one ValueError that names the file."""

from __future__ import annotations

import json
import math

import pytest
from damage import ODD_TEXTS, as_json, damaged, edited, not_files, refused, without_permission
from hypothesis import given, settings
from hypothesis import strategies as st
from optnoise.mechanisms import (
    GammaLaplace,
    Gaussian,
    GaussianMixture,
    GeneralisedGaussian,
    Laplace,
    Mechanism,
    SphericalGamma,
    Staircase,
    Tabulated,
    TruncatedLaplace,
    from_spec,
    inline,
    load,
    parse,
)

NOISES = [
    Gaussian(1.0),
    Laplace(0.5),
    GammaLaplace(1.5, 0.7),
    GeneralisedGaussian(1.0, 1.5),
    Staircase(0.5, 2.0, 0.3),
    GaussianMixture(0.7, (0.0, 0.9), (0.7, 0.3)),
    TruncatedLaplace(1.0, 4.0),
    Tabulated((0.5, 2.0), (0.2, 1.0, 3.0)),
    SphericalGamma(3, 2.0, 1.0, 1.5),
]
DOCUMENTS = [noise.spec() for noise in NOISES]


def usable(noise):
    """A noise that was taken is one: its moments are numbers, or infinite."""
    assert isinstance(noise, Mechanism | SphericalGamma)
    assert noise.variance >= 0
    assert not math.isnan(noise.variance)
    assert from_spec(json.loads(json.dumps(noise.spec()))) == noise


@settings(max_examples=150)
@given(st.data())
def test_damaged_noise_files(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "noise.json"
    document = data.draw(st.sampled_from(DOCUMENTS))
    found = data.draw(st.one_of(damaged(as_json({"results": [{"mechanism": document}]})), damaged(as_json(document))))
    path.write_bytes(found)
    if refused(lambda: load(path), "noise.json") is None:
        usable(load(path))


@settings(max_examples=400)
@given(st.data())
def test_edited_noise_documents(data):
    document = data.draw(edited(data.draw(st.sampled_from(DOCUMENTS))))
    if refused(lambda: from_spec(document)) is None:
        usable(from_spec(document))


@pytest.mark.parametrize("text", ODD_TEXTS, ids=lambda text: ascii(text[:12]))
def test_odd_texts_are_no_noise(tmp_path, text):
    path = tmp_path / "noise.json"
    path.write_bytes(text)
    assert refused(lambda: load(path), "noise.json")
    assert refused(lambda: parse(str(path)), "noise.json")


def test_what_is_no_file_is_no_noise(tmp_path):
    for path in not_files(tmp_path):
        assert refused(lambda path=path: load(path), path.name)
        assert refused(lambda path=path: parse(str(path)), path.name)
    file = tmp_path / "noise.json"
    file.write_bytes(as_json(DOCUMENTS[0]))
    assert refused(lambda: load(without_permission(file)), "noise.json")


@settings(max_examples=150)
@given(st.one_of(st.text(), st.data()))
def test_inline_noise(text):
    if not isinstance(text, str):
        whole = inline(text.draw(st.sampled_from(NOISES))).encode()
        text = text.draw(damaged(whole)).decode("utf-8", errors="surrogateescape")
    if refused(lambda: parse(text)) is None:
        usable(parse(text))
