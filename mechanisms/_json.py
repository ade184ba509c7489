"""JSON: reading what may be damaged or hostile, writing whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def read_text(path: str | Path, what: str) -> str:
    """The UTF-8 text of a file; ValueError naming it, as `what`, if it cannot be read, is no file or no such text."""
    try:
        if Path(path).exists() and not Path(path).is_file():  # a pipe would be waited for without end
            raise ValueError("it is not a file")
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{what} {str(path)!r} is not UTF-8 text: {error.reason}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot read {what} {str(path)!r}: {reason}") from error


def read_json(text: str | bytes) -> Any:
    """Parse JSON; ValueError for whatever is wrong with it: syntax, a key that stands twice, nesting without end."""
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {repeated!r} stands twice")
    return document


def write_json(path: Path, document: Any) -> None:
    """Write `document` whole or not at all: to a temporary file beside `path`, which is renamed over it."""
    text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
