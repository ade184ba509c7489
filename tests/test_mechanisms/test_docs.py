"""The code of docs/mechanisms.md runs, in the order in which it stands there."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mechanisms.md"


def test_the_page_runs_from_top_to_bottom(tmp_path):
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(code) == 4
    script = tmp_path / "page.py"
    script.write_text("\n".join(code), encoding="utf-8")
    run = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "0 of 23 checks failed" in run.stdout


def test_every_family_stands_on_the_page():
    from optnoise.mechanisms import FAMILIES

    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in FAMILIES)
