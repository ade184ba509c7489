"""The scripts of examples/ run, and print what they are there to show."""

import re
import sys

import pages
import pytest

SCRIPTS = sorted(path.name for path in (pages.ROOT / "examples").glob("*.py"))


def rows(printed: str) -> dict[str, list[float]]:
    """The numbers of each line, by the words before them."""
    found = (re.match(r"(\D+?) {2,}(.*)", line) for line in printed.splitlines())
    return {m[1]: [float(x) for x in re.findall(r"(?<!\S)\d+\.\d+(?!\S)", m[2])] for m in found if m}


@pytest.fixture
def run(tmp_path):
    """Script name -> what it prints, in an empty folder."""
    return lambda name: pages.run([sys.executable, str(pages.ROOT / "examples" / name)], tmp_path)


def test_own_noise(run):
    printed = run("own_noise.py")
    assert "0 of 23 checks failed" in printed
    found = rows(printed)
    assert found["logistic"][0] < 0.92 < found["gaussian"][0] < found["laplace"][0]
    assert all(0.999 * 3 < epsilon <= 3 for _, epsilon in (found["logistic"], found["gaussian"], found["laplace"]))


def test_check_a_bound(run):
    verdicts = {line[:28].strip(): line.split()[-1] for line in run("check_a_bound.py").splitlines()[1:]}
    assert verdicts == {
        "Laplace(4), scalar": "consistent",
        "Laplace(4), 100 coordinates": "CONTRADICTION",
        "Gaussian, as claimed": "consistent",
        "Gaussian, half the noise": "CONTRADICTION",
    }


def test_train_private(run):
    printed = run("train_private.py")
    low, high = map(float, re.findall(r"epsilon in \[(.*), (.*)\]", printed)[0])
    assert 0.99 < low <= high <= 1.0
    assert float(re.findall(r"accuracy (\S+)", printed)[0]) > 0.9


def test_train_zeroth_order(run):
    found = {
        line.split()[0]: [float(x) for x in line.split()[1:]] for line in run("train_zeroth_order.py").splitlines()[1:]
    }
    assert found["laplace"][0] < 0.7 * found["gaussian"][0]
    for _, epsilon, accuracy in found.values():
        assert 2.99 < epsilon <= 3
        assert accuracy > 0.9


def test_search_noise(run):
    printed = run("search_noise.py")
    found = rows(printed)
    assert found["staircase"][0] < 0.08 < found["laplace"][0] < found["gaussian"][0] == 1
    (bound,) = re.findall(r"is below (\S+)", printed)
    assert 0.998 * found["convex optimum"][0] < float(bound) <= found["convex optimum"][0]
    assert "read again: True" in printed


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_script_stands_on_its_page_with_its_command_and_has_a_test(name):
    assert f"`python examples/{name}`" in pages.text_of("docs/examples.md")
    assert f"python examples/{name}\n" in pages.text_of(f"examples/{name}")
    assert f"test_{name.removesuffix('.py')}" in globals()
