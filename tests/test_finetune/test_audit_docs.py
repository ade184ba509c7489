"""The code of docs/audits.md runs, in the order in which it stands there, and its command says what the page says."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "audits.md").read_text(encoding="utf-8")


def test_the_page_runs_from_top_to_bottom(tmp_path):
    code = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(code) == 2
    script = tmp_path / "page.py"
    script.write_text("\n".join(code), encoding="utf-8")
    run = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("consistent: shown epsilon >= ") == 2


def test_the_command_contradicts_the_claim(tmp_path):
    (command,) = re.findall(r"```console\n\$ (.*?)\n```", PAGE)
    words = [sys.executable, "-m", *shlex.split(command)]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "CONTRADICTION" in run.stdout
    assert "0.67854" in run.stdout
