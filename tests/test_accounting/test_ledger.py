"""The ledger: on disk first, never below the truth, read without side effects."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys

import pytest
from optnoise.accounting import Ledger, Release, epsilon
from optnoise.mechanisms import Gaussian, Laplace

RELEASE = Release(Gaussian(1.0), sampling_rate=0.01, dimension=1000)


def fill(ledger, count, release=RELEASE):
    for _ in range(count):
        ledger.record(release, clipping_norm=0.1, divisor=64.0)


def test_b78_reading_is_pure(tmp_path):
    """B78: 50 steps, ε twice: the same number, the history unchanged."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    fill(ledger, 50)
    before = ledger.path.read_bytes()
    first, second = ledger.epsilon(delta=1e-5), ledger.epsilon(delta=1e-5)
    assert first == second == epsilon(Gaussian(1.0), delta=1e-5, steps=50, sampling_rate=0.01)
    assert ledger.steps == 50
    assert ledger.path.read_bytes() == before


def test_b72_resume_continues_the_history(tmp_path):
    """B72: 500 + 500 steps are 1000 (Rényi at most 2.1014, exact 1.8282), not 500 and not twice 500."""
    path = tmp_path / "ledger.jsonl"
    fill(Ledger(path), 500)
    resumed = Ledger(path)
    fill(resumed, 500)
    assert resumed.steps == 1000
    assert resumed.epsilon(delta=1e-5).upper == pytest.approx(1.8282, rel=5e-4)


def test_b30_epsilon_after_more_steps_than_planned():
    """B30: q=1/806, σ=0.6: 2.0313 at 2421 steps and 2.0461 at 2501 (both to 5e-4); asking further never fails."""
    ledger = Ledger()
    ledger.record(
        dataclasses.replace(RELEASE, mechanism=Gaussian(0.6), sampling_rate=1 / 806, steps=2421),
        clipping_norm=1,
        divisor=1,
    )
    now, later = ledger.epsilon(delta=1e-5), ledger.epsilon(delta=1e-5, further_steps=80)
    assert now.upper == pytest.approx(2.0313, rel=5e-4)
    assert later.upper == pytest.approx(2.0461, rel=5e-4)
    assert now.upper < later.upper
    assert ledger.steps == 2421


def test_mixed_kinds_survive_the_round_trip(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    fill(ledger, 3)
    fill(ledger, 2, Release(Laplace(2.0), dimension=math.inf))
    fill(ledger, 1, Release(Laplace(2.0), dimension=7, adjacency="add_or_remove_one"))
    again = Ledger(path)
    assert again.releases == ledger.releases
    assert again.epsilon(delta=1e-5) == ledger.epsilon(delta=1e-5)


def test_a_copy_in_memory_has_the_entries_and_goes_its_own_way(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    fill(ledger, 3)
    copy = ledger.in_memory()
    assert copy.path is None
    assert copy.epsilon(delta=1e-5, further_steps=2) == ledger.epsilon(delta=1e-5, further_steps=2)
    fill(copy, 2)
    assert (copy.steps, ledger.steps, Ledger(ledger.path).steps) == (5, 3, 3)


def test_a_torn_line_is_charged(tmp_path):
    path = tmp_path / "ledger.jsonl"
    fill(Ledger(path), 3)
    whole = path.read_bytes()
    for cut in (1, 10, 100):
        path.write_bytes(whole[:-cut])
        assert Ledger(path).steps == 3  # two whole lines and the torn one, charged as a repeat
        assert Ledger(path).steps == 3  # mended once, not again


def test_killed_process_never_leaves_fewer_records_than_it_used(tmp_path):
    """SIGKILL in the middle of recording: the file holds at least every record that returned."""
    path = tmp_path / "ledger.jsonl"
    script = (
        "import sys\n"
        "from optnoise.accounting import Ledger, Release\n"
        "from optnoise.mechanisms import Gaussian\n"
        f"ledger = Ledger({str(path)!r})\n"
        "for step in range(10**6):\n"
        "    ledger.record(Release(Gaussian(1.0)), clipping_norm=1.0, divisor=1.0)\n"
        "    print(step + 1, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    used = 0
    with process:
        for line in process.stdout:
            used = int(line)
            if used == 25:
                os.kill(process.pid, signal.SIGKILL)
                break
    assert Ledger(path).steps >= used


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "line 3: not JSON"),
        (b"[]", "line 3: missing or unknown field"),
        (b'{"steps": 1}', "line 3: missing or unknown field: .*mechanism"),
    ],
)
def test_damaged_lines_name_file_line_and_field(tmp_path, line, message):
    path = tmp_path / "ledger.jsonl"
    fill(Ledger(path), 1)
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(ValueError, match=rf"ledger\.jsonl, {message}"):
        Ledger(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", -5),
        ("sampling_rate", 2),
        ("dimension", 0),
        ("shift", 0.5),
        ("adjacency", "none"),
        ("divisor", 0),
        ("mechanism", {"format": 1, "family": "gaussian", "parameters": {"noise_multiplier": -1}}),
    ],
)
def test_altered_fields_are_refused(tmp_path, field, value):
    path = tmp_path / "ledger.jsonl"
    fill(Ledger(path), 1)
    header, entry = path.read_text().splitlines()
    document = json.loads(entry)
    assert field in document
    path.write_text(f"{header}\n{json.dumps({**document, field: value})}\n")
    with pytest.raises(ValueError, match=r"ledger\.jsonl, line 2"):
        Ledger(path)


def test_other_files_are_not_ledgers(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello\n")
    with pytest.raises(ValueError, match="line 1"):
        Ledger(path)


def test_bad_records_are_refused_before_they_are_written(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    before = ledger.path.read_bytes()
    with pytest.raises(ValueError, match="clipping_norm > 0"):
        ledger.record(RELEASE, clipping_norm=0, divisor=1)
    with pytest.raises(ValueError, match="expected release"):
        ledger.record("gaussian", clipping_norm=1, divisor=1)
    with pytest.raises(ValueError, match="further_steps=0 for an empty ledger"):
        ledger.epsilon(delta=1e-5, further_steps=1)
    assert ledger.path.read_bytes() == before
