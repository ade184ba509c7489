"""The lines of a ledger file: JSON, each with a check that chains it to all lines before it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Self, final

from ..mechanisms import _validate, from_spec
from ..mechanisms._json import read_json
from .release import POISSON, Release

try:
    import fcntl
except ImportError:  # not on Windows: there two writers at once are not kept apart
    fcntl = None

Entry = tuple[Release, float, float]
"""A release, its clipping norm and its divisor."""
_FORMATS = (2, 1)  # the first is written; the lines of the older one have no check
_FIELDS = {"mechanism", "steps", "sampling_rate", "dimension", "adjacency", "shift", "clipping_norm", "divisor"}
_OPTIONAL = {"sampling"}  # absent from the oldest ledgers, which knew Poisson sampling only
_CHECK = "check"


@final
@dataclasses.dataclass(frozen=True)
class Chain:
    """What the next line's check depends on: a digest of all lines so far; empty for a ledger without checks."""

    digest: str

    @classmethod
    def begin(cls) -> tuple[bytes, Self]:
        """The header line of a new ledger, and the chain after it."""
        return _header(_FORMATS[0]), cls(_digest_of(b"", _header(_FORMATS[0])))

    @classmethod
    def after_header(cls, path: Path, line: bytes) -> Self:
        """The chain of a ledger whose first line is `line`. Raises ValueError if that is no header."""
        document = _parse(path, 1, line)
        for version in _FORMATS:
            if document == json.loads(_header(version)):
                return cls(_digest_of(b"", _header(version)) if version > 1 else "")
        raise ValueError(f"{path}, line 1: expected the ledger header {_header(_FORMATS[0]).decode().strip()}")

    def write(self, entry: Entry) -> tuple[bytes, Chain]:
        """The next line, and the chain after it."""
        document = _to_json(*entry)
        if not self.digest:
            return _line(document), self
        chain = self._next(document)
        return _line({**document, _CHECK: chain.digest}), chain

    def read(self, path: Path, number: int, line: bytes) -> tuple[Entry, Chain]:
        """What the next line says, and the chain after it. Raises ValueError naming file, line and field."""
        document = _parse(path, number, line)
        has_check = isinstance(document, dict) and _CHECK in document
        check = document.pop(_CHECK) if has_check else None
        entry = _from_json(path, number, document)
        if has_check != bool(self.digest):
            raise ValueError(f"{path}, line {number}: {'un' if has_check else 'missing or un'}known field: {_CHECK}")
        if not self.digest:
            return entry, self
        chain = self._next(document)
        if check != chain.digest:
            raise ValueError(
                f"{path}, line {number}: its check does not hold: this line was altered, or one before it altered, "
                "moved or removed; take the ledger from a copy that is whole"
            )
        return entry, chain

    def _next(self, document: dict[str, Any]) -> Chain:
        return Chain(_digest_of(self.digest.encode(), _line(document)))


def is_torn_header(content: bytes) -> bool:
    """Whether `content` is empty or the beginning of a header, its newline missing: nothing was recorded yet."""
    return any(_header(version).startswith(content) and len(content) < len(_header(version)) for version in _FORMATS)


def is_json(line: bytes) -> bool:
    """Whether the line can be parsed; the beginning of a record cannot."""
    try:
        read_json(line)
    except ValueError:
        return False
    return True


@contextlib.contextmanager
def opened(path: Path, *, create: bool = False) -> Iterator[BinaryIO]:
    """The file, for reading and writing at its end, held by one process at a time where the system can do that.

    A file that may only be read is opened for reading. Raises ValueError if it cannot be opened or is no regular file.
    """
    try:
        if path.exists() and not path.is_file():
            raise ValueError(f"expected the ledger to be a file, {path} is none")
        try:
            file = path.open("a+b" if create else "r+b")
        except PermissionError:
            file = path.open("rb")
    except OSError as error:
        raise ValueError(f"cannot open the ledger {path}: {error.strerror or error}") from error
    with file:
        if fcntl is not None:
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _header(version: int) -> bytes:
    return _line({"format": version, "kind": "optnoise ledger"})


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document, allow_nan=False).encode() + b"\n"


def _digest_of(before: bytes, line: bytes) -> str:
    return hashlib.sha256(before + line).hexdigest()[:32]


def _to_json(release: Release, clipping_norm: float, divisor: float) -> dict[str, Any]:
    return {
        "mechanism": release.mechanism.spec(),
        "steps": int(release.steps),
        "sampling_rate": float(release.sampling_rate),
        "dimension": "inf" if release.dimension == math.inf else release.dimension,
        "adjacency": release.adjacency,
        "sampling": release.sampling,
        "shift": release.shift,
        "clipping_norm": clipping_norm,
        "divisor": divisor,
    }


def _parse(path: Path, number: int, line: bytes) -> Any:
    try:
        return read_json(line)
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: not JSON ({error})") from error


def _from_json(path: Path, number: int, document: Any) -> Entry:
    try:
        if not isinstance(document, dict) or set(document) - _OPTIONAL != _FIELDS:
            is_object = isinstance(document, dict)
            odd = sorted((set(document) - _OPTIONAL) ^ _FIELDS) if is_object else [type(document).__name__]
            raise ValueError(f"missing or unknown field: {', '.join(map(ascii, odd))}")
        release = Release(
            from_spec(document["mechanism"]),
            steps=document["steps"],
            sampling_rate=document["sampling_rate"],
            dimension=math.inf if document["dimension"] == "inf" else document["dimension"],
            adjacency=document["adjacency"],
            sampling=document.get("sampling", POISSON),
        )
        if document["shift"] != release.shift:
            raise ValueError(f"expected shift={release.shift} for {release.adjacency}, got shift={document['shift']!r}")
        norms = [_validate.positive(name, document[name]) for name in ("clipping_norm", "divisor")]
        return release, norms[0], norms[1]
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: {error}") from error
