"""Many searches: in parallel, on a cluster, and resumed."""

import json

import joblib
import pytest
from optnoise.search import Problem, Refused, search, search_many

FAMILIES = ("gaussian", "laplace", "gamma_laplace")
PROBLEMS = [Problem(1.0, 1e-5), Problem(0.5, 1e-6, cost="variance"), Problem(2.0, 1e-5, cost="quantile:0.9")]


@pytest.fixture(scope="module")
def serial():
    return [search(problem, families=FAMILIES, progress=False, top=1) for problem in PROBLEMS]


def test_results_do_not_depend_on_the_processes(serial):
    with joblib.parallel_config(backend="threading"):
        assert search_many(PROBLEMS, families=FAMILIES, n_jobs=2, progress=False) == serial


@pytest.mark.slow
def test_processes_give_the_same(serial):
    assert search_many(PROBLEMS, families=FAMILIES, n_jobs=2, progress=False) == serial


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # dask's own deprecations and sockets are not ours
def test_a_dask_cluster_gives_the_same(serial, tmp_path):
    distributed = pytest.importorskip("distributed", reason="the extra `cluster` (dask) is not installed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        assert search_many(PROBLEMS, families=FAMILIES, progress=False, resume=tmp_path) == serial
    assert len(list(tmp_path.iterdir())) == len(PROBLEMS) * len(FAMILIES)


def test_a_problem_without_an_answer_does_not_stop_the_others():
    hopeless = Problem(1.0, 1e-5, dimension=10, steps=2)
    found = search_many([hopeless, PROBLEMS[0]], families=("truncated_laplace",), progress=False)
    assert isinstance(found[0], Refused)
    assert found[0].problem == hopeless
    assert "truncated_laplace is left out" in found[0].reason
    assert found[1].best.epsilon.upper <= 1.0


@pytest.mark.parametrize("problems", [[], ["x"]])
def test_bad_problems_are_refused(problems):
    with pytest.raises(ValueError, match="non-empty list of Problem"):
        search_many(problems, progress=False)


# ---- resuming --------------------------------------------------------------------------------------------------------


def test_a_stopped_search_goes_on_from_what_is_finished(tmp_path, monkeypatch):
    problem = PROBLEMS[0]
    expected = search(problem, families=FAMILIES, progress=False, top=1)
    from optnoise.search import families as families_module

    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setitem(families_module.PROPOSERS, "gamma_laplace", stopped)
        with pytest.raises(KeyboardInterrupt):
            search(problem, families=FAMILIES, progress=False, top=1, resume=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2  # the references
    assert search(problem, families=FAMILIES, progress=False, top=1, resume=tmp_path) == expected
    with monkeypatch.context() as patch:  # all is finished now: nothing is computed again
        patch.setitem(families_module.PROPOSERS, "gamma_laplace", stopped)
        patch.setattr("optnoise.search.runner.calibrated", stopped)
        assert search(problem, families=FAMILIES, progress=False, top=1, resume=tmp_path) == expected


def test_other_questions_are_not_answered_by_the_folder(tmp_path):
    search(PROBLEMS[0], families=("laplace",), progress=False, resume=tmp_path)
    before = len(list(tmp_path.iterdir()))
    search(Problem(1.0, 1e-5, cost="variance"), families=("laplace",), progress=False, resume=tmp_path)
    search(PROBLEMS[0], families=("laplace",), progress=False, resume=tmp_path, seed=1)
    assert len(list(tmp_path.iterdir())) == 3 * before


@pytest.mark.parametrize("damage", ["cut", "loud", "other"])
def test_a_damaged_part_is_an_error_with_its_name(tmp_path, damage):
    search(PROBLEMS[0], families=("laplace",), progress=False, resume=tmp_path)
    path = next(tmp_path.glob("laplace-*.json"))
    document = json.loads(path.read_text())
    if damage == "loud":
        document["entries"][0]["epsilon"]["upper"] = 1.5
    if damage == "other":
        document["part"]["problem"]["delta"] = 1e-3
    path.write_text("{" if damage == "cut" else json.dumps(document))
    with pytest.raises(ValueError, match=r"laplace-.*not a finished part of this search"):
        search(PROBLEMS[0], families=("laplace",), progress=False, resume=tmp_path)


def test_a_cost_function_cannot_be_resumed(tmp_path):
    with pytest.raises(ValueError, match="cost given by name with resume"):
        search(Problem(1.0, 1e-5, cost=lambda m: m.variance), progress=False, resume=tmp_path)
