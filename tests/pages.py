"""Code and commands of a page of the documentation, and running them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def text_of(page: str) -> str:
    """The page, by its path in the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def snippets(page: str) -> list[str]:
    """The Python blocks, in order."""
    return re.findall(r"^```python\n(.*?)^```", text_of(page), flags=re.DOTALL | re.MULTILINE)


def sessions(page: str) -> list[list[tuple[str, str]]]:
    """The console blocks that show a prompt: (command, expected output) pairs in order."""
    blocks = []
    for block in re.findall(r"^```console\n(.*?)^```", text_of(page), flags=re.DOTALL | re.MULTILINE):
        pairs = [tuple(part.split("\n", 1)) for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
        if pairs:
            blocks.append([(command, output.strip()) for command, output in pairs])
    return blocks


def run_python(code: str, folder: Path) -> str:
    """Run the code in a process of its own; its standard output."""
    return run([sys.executable, "-c", code], folder)


def run_session(session: list[tuple[str, str]], folder: Path) -> None:
    """Run the commands one after another; where the page shows an output, it is the one printed."""
    for command, expected in session:
        words = shlex.split(command)
        assert words[0] == "optnoise"
        output = run([sys.executable, "-m", *words], folder).strip()
        if expected:
            assert output == expected


def run(arguments: list[str], folder: Path) -> str:
    """Run a program that must end well; its standard output."""
    finished = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout
