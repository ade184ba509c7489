"""The code of docs/mechanisms.md runs, in the order in which it stands there."""

import pages

PAGE = "docs/mechanisms.md"


def test_the_page_runs_from_top_to_bottom(tmp_path):
    code = pages.snippets(PAGE)
    assert len(code) == 4
    assert "0 of 23 checks failed" in pages.run_python("\n".join(code), tmp_path)


def test_every_family_stands_on_the_page():
    from optnoise.mechanisms import FAMILIES

    text = pages.text_of(PAGE)
    assert all(f"`{name}`" in text for name in FAMILIES)
