"""The code of docs/audits.md runs, in the order in which it stands there, and its command says what the page says."""

import shlex
import subprocess
import sys

import pages

PAGE = "docs/audits.md"


def test_the_page_runs_from_top_to_bottom(tmp_path):
    code = pages.snippets(PAGE)
    assert len(code) == 2
    assert pages.run_python("\n".join(code), tmp_path).count("consistent: shown epsilon >= ") == 2


def test_the_command_contradicts_the_claim(tmp_path):
    (((command, _),),) = pages.sessions(PAGE)
    words = [sys.executable, "-m", *shlex.split(command)]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "CONTRADICTION" in run.stdout
    assert "0.67854" in run.stdout
