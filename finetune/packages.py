"""Data and models that Python packages ship: found on disk, never imported."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def package_folder(package: str, *, distribution: str | None = None) -> Path:
    """The folder of an installed package, without importing it.

    Raises ValueError with the pip command if it is missing; `distribution` is its name there, if another.
    """
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        name = distribution or package.replace("_", "-")
        raise ValueError(f"the package {package!r} is not installed; run: pip install --no-deps {name}")
    return Path(spec.submodule_search_locations[0])


def file_in_package(package: str, relative: str, *, distribution: str | None = None) -> Path:
    """A file or folder inside an installed package. Raises ValueError if the package or the file is missing."""
    path = package_folder(package, distribution=distribution) / relative
    if not path.exists():
        raise ValueError(f"the package {package!r} has no {relative!r} (looked at {path})")
    return path
