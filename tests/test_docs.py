"""The code of each page of docs/ runs from top to bottom, and its commands print what the page says."""

import re
import tomllib

import pages
import pytest

RUN_HERE = ["accounting", "checking", "concepts", "optimum", "search", "start"]
RUN_ELSEWHERE = {
    "audits": "test_finetune/test_audit_docs.py",
    "finetuning": "test_finetune/test_trainer.py",
    "lmo_dp": "test_search/test_reproduce.py",
    "mechanisms": "test_mechanisms/test_docs.py",
    "scaling": "test_finetune/test_trainer_processes.py",
}
FRAGMENTS = {"zeroth_order"}  # one block that shows the loop alone; examples and tests have whole ones


def page(name: str) -> str:
    return f"docs/{name}.md"


def test_no_page_has_code_that_no_test_runs():
    with_code = {
        file.stem
        for file in (pages.ROOT / "docs").glob("*.md")
        if pages.snippets(page(file.stem)) or pages.sessions(page(file.stem))
    }
    assert with_code == {*RUN_HERE, *RUN_ELSEWHERE, *FRAGMENTS}
    for name, test in RUN_ELSEWHERE.items():
        assert f"{name}.md" in (pages.ROOT / "tests" / test).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in RUN_HERE if pages.snippets(page(name))])
def test_python_runs_from_top_to_bottom(name, tmp_path):
    pages.run_python("\n".join(pages.snippets(page(name))), tmp_path)


@pytest.mark.parametrize("name", [name for name in RUN_HERE if pages.sessions(page(name))])
def test_commands_print_what_the_page_says(name, tmp_path):
    for session in pages.sessions(page(name)):
        pages.run_session(session, tmp_path)


def test_every_extra_that_a_page_names_exists():
    extras = tomllib.loads((pages.ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    files = [pages.ROOT / "README.md", *(pages.ROOT / "docs").glob("*.md"), *(pages.ROOT / "docs" / "api").glob("*.md")]
    named = {
        extra
        for file in files
        for group in re.findall(r"(?:install '?\.|optnoise)\[([a-z,]+)\]", file.read_text(encoding="utf-8"))
        for extra in group.split(",")
    }
    assert {"trainer", "tasks", "lora"} <= named <= extras.keys()
