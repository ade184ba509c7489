"""Every command and snippet of the README runs, and prints what the README says."""

import pages
import pytest

README = "README.md"
SLOW = ("optnoise finetune", "optnoise map", "optnoise reproduce", "optnoise search")


def is_slow(session: list[tuple[str, str]]) -> bool:
    return any(command.startswith(SLOW) for command, _ in session)


def test_readme_opens_with_the_two_commands():
    first = pages.text_of(README).split("```console\n")[1]
    assert [line.split("#")[0].strip() for line in first.splitlines()[:2]] == ["make demo", "make test"]


@pytest.mark.parametrize("snippet", pages.snippets(README), ids=lambda text: text.splitlines()[0][:40])
def test_snippet_runs(snippet, tmp_path):
    pages.run_python(snippet, tmp_path)


@pytest.mark.parametrize("session", [s for s in pages.sessions(README) if not is_slow(s)], ids=lambda s: s[0][0][:40])
def test_commands_print_what_the_readme_says(session, tmp_path):
    pages.run_session(session, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("session", [s for s in pages.sessions(README) if is_slow(s)], ids=lambda s: s[0][0][:40])
def test_longer_commands_run(session, tmp_path):
    pages.run_session(session, tmp_path)
