"""The state of an interrupted run, in a private folder: it holds the generators, so it is as secret as the data."""

from __future__ import annotations

import os
import shutil
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch


@final
class Checkpoint:
    """One file in a folder of mode 0700, mode 0600, replaced in one piece; deleted with the folder at the end."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "checkpoint.pt"

    def exists(self) -> bool:
        """Whether a checkpoint was written and not yet deleted."""
        return self.path.is_file()

    def save(self, state: dict[str, Any]) -> None:
        """Write `state` (tensors, numbers, text, lists, dicts); after a crash the old or the new one is there."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        draft = self.folder / "checkpoint.part"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)
        _sync_folder(self.folder)

    def load(self, fields: Mapping[str, type] | None = None) -> dict[str, Any]:
        """What `save` wrote; no code in the file is run. `fields` says which entries must be there, of which type.

        Raises ValueError if there is none, or it is damaged: every part of the file has a check of its own (CRC-32).
        That guards against accidents, not against somebody who writes the file anew.
        """
        if not self.exists():
            raise ValueError(f"there is no run to resume: no checkpoint at {self.path}")
        try:
            state = _read(self.path)
        except Exception as error:  # zipfile, torch and its unpickler raise a dozen kinds for damaged files
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ValueError(f"the checkpoint {self.path} is damaged: {reason}") from error
        if not isinstance(state, dict):
            raise ValueError(f"the checkpoint {self.path} is damaged: expected a mapping, got {type(state).__name__}")
        try:
            check_fields(state, fields or {})
        except ValueError as error:
            raise ValueError(f"the checkpoint {self.path} is damaged: {error}") from error
        return state

    def delete(self) -> None:
        """Remove the folder and all that is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _read(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        if (name := archive.testzip()) is not None:
            raise ValueError(f"the check of its part {name!r} does not hold")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of what it then fails on
        return torch.load(path, weights_only=True, map_location="cpu")


def check_fields(state: Any, fields: Mapping[str, type]) -> None:
    """Raise ValueError naming the first of `fields` that is missing from a mapping, not of its type, or negative."""
    if not isinstance(state, dict):
        raise ValueError(f"expected a mapping, got {type(state).__name__}")
    for name, kind in fields.items():
        if name not in state:
            raise ValueError(f"it lacks the field {name}")
        value = state[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(f"expected {name} to be of type {kind.__name__}, got {type(value).__name__}")
        if kind is int and value < 0:
            raise ValueError(f"expected {name} >= 0, got {name}={value}")


def check_same(before: dict[str, Any], now: dict[str, Any], path: str = "") -> None:
    """Raise ValueError naming the first entry in which two nested documents differ."""
    for key in sorted(before.keys() | now.keys()):
        old, new, name = before.get(key), now.get(key), f"{path}{key}"
        if isinstance(old, dict) and isinstance(new, dict):
            check_same(old, new, f"{name}.")
        elif old != new:
            values = "other training texts" if name == "data" else f"{old!r} then, {new!r} now"
            name = name if name.isprintable() else ascii(name)
            raise ValueError(f"cannot resume: {name} has changed ({values}); start a new run in another folder")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
