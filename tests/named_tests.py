"""The tests that there are, for pages that name them."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parent


def functions(file: Path) -> dict[str, str]:
    """Names of the tests in a file, each with its name, docstring and decorators as text."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {
        node.name: " ".join([node.name, ast.get_docstring(node) or "", *map(ast.unparse, node.decorator_list)])
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


ALL = {
    f"{file.relative_to(TESTS).as_posix()}::{name}": text
    for file in sorted(TESTS.rglob("test_*.py"))
    for name, text in functions(file).items()
}
"""`folder/test_file.py::test_name`, relative to this folder, and what it says of itself."""
