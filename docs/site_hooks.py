"""The site's build: where the API reference finds the package, and a check that it has every public name."""

from __future__ import annotations

import ast
import logging
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("mechanisms", "accounting", "search", "finetune")
log = logging.getLogger("mkdocs.plugins.optnoise")


def on_startup(**_: Any) -> None:
    """Lay links to the rooms under build/api: the root holds more (tests, `.venv`), which is not read there.

    Before any plugin is configured: the one that reads the package drops paths that do not exist by then.
    """
    package = ROOT / "build" / "api" / "optnoise"
    package.mkdir(parents=True, exist_ok=True)
    for name in ("__init__.py", *ROOMS):
        link = package / name
        link.unlink(missing_ok=True)
        link.symlink_to(ROOT / name, target_is_directory=name in ROOMS)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Warn (an error of a strict build) of public names that a page of api/ does not show: they lack a docstring."""
    if page.file.src_uri.startswith("api/"):
        package = f"optnoise.{page.title}"  # by its title in the nav
        for name in public_names(package):
            if f'id="{package}.{name}"' not in html and f'id="{package}.{name}.{name}"' not in html:
                log.warning(f"{page.file.src_uri}: {package}.{name} is in __all__ and not on the page")
    return html


def public_names(package: str) -> list[str]:
    """`__all__` of a package such as `optnoise.finetune.audit`, read from its source."""
    file = ROOT.joinpath(*package.split(".")[1:], "__init__.py")
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise ValueError(f"expected {file} to have __all__")
