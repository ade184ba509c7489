"""JSON documents and inline text."""

import json

import pytest
from optnoise.mechanisms import GammaLaplace, Gaussian, Laplace, ScaleMixture, from_spec, load, parse, save


@pytest.mark.parametrize(
    ("text", "mechanism"),
    [
        ("gaussian:noise_multiplier=1.0", Gaussian(1.0)),
        ("gaussian:sigma=2", Gaussian(2.0)),
        ("laplace:scale=2", Laplace(2.0)),
        ("gamma_laplace:shape=2,scale=0.2", GammaLaplace(2.0, 0.2)),
        ("gamma_laplace: k=2, theta=0.2", GammaLaplace(2.0, 0.2)),
        (
            "lmo:a1=0.1,a3=0.1,a4=0.1,theta=0.5,k=1,rate=5,low=1,high=2",
            ScaleMixture(0.1, 1.0, 0.5, 0.1, 5.0, 0.1, 1.0, 2.0),
        ),
        ("lmo:a4=2,low=1,high=1", ScaleMixture(uniform_weight=2.0, uniform_low=1.0, uniform_high=1.0)),
    ],
)
def test_parse_reads_the_command_line_form(text, mechanism):
    assert parse(text) == mechanism


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gauss:sigma=1", "FAMILY one of gaussian, laplace, lmo, gamma_laplace"),
        ("gaussian", "gaussian:noise_multiplier="),
        ("gaussian:", "KEY=VALUE"),
        ("gaussian:sigma", "KEY=VALUE"),
        ("gaussian:sigma=one", "sigma to be a number"),
        ("gaussian:sigma=nan", "noise_multiplier=nan"),
        ("gaussian:sigma=1,sigma=2", "twice"),
        ("gaussian:sigma=1,noise_multiplier=2", "twice"),
        ("gaussian:scale=1", "unknown parameter 'scale'"),
        ("gamma_laplace:k=2", "missing parameter 'scale'"),
        ("no-such-file.json", "noise file"),
    ],
)
def test_parse_refuses_by_name(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format=1"),
        ({"family": "cauchy"}, "family='cauchy'"),
        ({"family": 3}, "family to be a string"),
        ({"colour": "red"}, "unknown field 'colour'"),
        ({"parameters": {"noise_multiplier": 1, "x": 2}}, "unknown parameter 'x'"),
        ({"parameters": {"noise_multiplier": -1}}, "noise_multiplier > 0"),
        ({"parameters": {"noise_multiplier": "1"}}, "real number"),
        ({"parameters": {"noise_multiplier": True}}, "real number"),
        ({"parameters": {}}, "missing parameter 'noise_multiplier'"),
        ({"parameters": [1]}, "JSON object"),
    ],
)
def test_documents_refuse_unknown_fields_and_bad_values(change, message):
    with pytest.raises(ValueError, match=message):
        from_spec({**Gaussian(1.0).spec(), **change})


def test_documents_need_every_field():
    for field in ("format", "family", "parameters"):
        document = Gaussian(1.0).spec()
        del document[field]
        with pytest.raises(ValueError, match=f"lacks the field '{field}'"):
            from_spec(document)


def test_load_reads_a_document_and_a_search_result(tmp_path):
    path = tmp_path / "noise.json"
    path.write_text(json.dumps(Laplace(3.0).spec()))
    assert load(path) == parse(str(path)) == Laplace(3.0)
    path.write_text(json.dumps({"results": [{"mechanism": Gaussian(2.0).spec()}, {"mechanism": Laplace(1.0).spec()}]}))
    assert load(path) == Gaussian(2.0)


@pytest.mark.parametrize("content", ["{", "[]", "3", '{"results": []}', '{"results": [{}]}', '{"results": 4}'])
def test_load_names_the_file_at_fault(tmp_path, content):
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"broken\.json"):
        load(path)


def test_save_writes_what_load_and_the_commands_read(tmp_path):
    save(Laplace(0.25), tmp_path / "noise.json")
    assert load(tmp_path / "noise.json") == parse(str(tmp_path / "noise.json")) == Laplace(0.25)


def test_a_python_file_in_place_of_a_noise_file_is_told_the_way(tmp_path):
    (tmp_path / "mine.py").write_text("import math\n")
    with pytest.raises(ValueError, match=r"mine\.py'; a noise of your own .* becomes a family by running its file"):
        load(tmp_path / "mine.py")
