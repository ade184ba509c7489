"""Every command and snippet of the README runs, and prints what the README says."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
SLOW = ("optnoise finetune", "optnoise map", "optnoise reproduce", "optnoise search")


def sessions() -> list[list[tuple[str, str]]]:
    """The console blocks that show a prompt: (command, expected output) pairs in order."""
    blocks = []
    for block in re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL):
        parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
        pairs = [tuple(part.split("\n", 1)) for part in parts]
        if pairs:
            blocks.append([(command, output.strip()) for command, output in pairs])
    return blocks


def run(command: str, folder: Path) -> str:
    words = shlex.split(command)
    assert words[0] == "optnoise"
    arguments = [sys.executable, "-m", "optnoise", *words[1:]]
    finished = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


def run_session(session: list[tuple[str, str]], folder: Path) -> None:
    for command, expected in session:
        output = run(command, folder)
        if expected:
            assert output == expected


def is_slow(session: list[tuple[str, str]]) -> bool:
    return any(command.startswith(SLOW) for command, _ in session)


def test_readme_opens_with_the_two_commands():
    first = README.split("```console\n")[1]
    assert [line.split("#")[0].strip() for line in first.splitlines()[:2]] == ["make demo", "make test"]


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda text: text.splitlines()[0][:40])
def test_snippet_runs(snippet, tmp_path):
    finished = subprocess.run(
        [sys.executable, "-c", snippet], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("session", [s for s in sessions() if not is_slow(s)], ids=lambda s: s[0][0][:40])
def test_commands_print_what_the_readme_says(session, tmp_path):
    run_session(session, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("session", [s for s in sessions() if is_slow(s)], ids=lambda s: s[0][0][:40])
def test_longer_commands_run(session, tmp_path):
    run_session(session, tmp_path)
