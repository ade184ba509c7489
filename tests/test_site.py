"""The site: its navigation has every page, and relative links of README and docs lead somewhere."""

import re
import unicodedata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
LINK = re.compile(r"\]\(([^()\s]+)\)")


def prose(page: Path) -> str:
    """The text of a page without its code blocks."""
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    plain = [re.sub(r"[`*]|\[|\]\(.*?\)", "", unicodedata.normalize("NFC", title)).lower() for title in titles]
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in plain}


def test_the_navigation_has_every_page_once():
    nav = re.search(r"^nav:\n(.*?)^\w", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert nav
    listed = re.findall(r": (\S+\.md)$", nav[1], flags=re.MULTILINE)
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_resolve(page):
    broken = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []
