"""Where a model comes from: a hub name, a folder, a GGUF file, or a file inside an installed Python package."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path
from typing import Any, final

from ..packages import file_in_package

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_IN_PACKAGE = re.compile(r"([A-Za-z_]\w*):(.+)")


@final
@dataclasses.dataclass(frozen=True)
class Location:
    """Arguments of `from_pretrained`."""

    name: str
    gguf_file: str | None = None
    local_only: bool = True

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments beside the name."""
        gguf = {} if self.gguf_file is None else {"gguf_file": self.gguf_file}
        return {"local_files_only": self.local_only, **gguf}


def locate(source: str | Path) -> Location:
    """Find `source`; a hub name is looked up once, without retries.

    Raises ValueError: nothing there, a package that is missing, the hub out of reach, a gated model without access.
    """
    text = str(source)
    if isinstance(source, str) and (match := _IN_PACKAGE.fullmatch(text)):
        return _on_disk(file_in_package(match[1], match[2]))
    path = Path(text).expanduser()
    if path.exists():
        return _on_disk(path)
    if isinstance(source, Path) or text.endswith(".gguf") or not _HUB_NAME.fullmatch(text):
        raise ValueError(
            f"expected a hub name, a folder, a .gguf file or package:relative/path, got {text!r}: no such file"
        )
    return _on_hub(text)


def _on_disk(path: Path) -> Location:
    if path.suffix == ".gguf":
        if importlib.util.find_spec("gguf") is None:
            raise ValueError(f"reading {path.name} needs the package gguf; run: pip install gguf")
        return Location(str(path.parent), gguf_file=path.name)
    if not (path / "config.json").is_file():
        files = sorted(entry.name for entry in path.glob("*.gguf")) if path.is_dir() else []
        hint = f"; give one of its files: {', '.join(files)}" if files else ""
        raise ValueError(f"expected a model folder with config.json or a .gguf file, got {str(path)!r}{hint}")
    return Location(str(path))


def _on_hub(name: str) -> Location:
    import huggingface_hub
    from huggingface_hub import constants, errors

    cached = isinstance(huggingface_hub.try_to_load_from_cache(name, "config.json"), str)
    if constants.HF_HUB_OFFLINE:
        if cached:
            return Location(name)
        raise ValueError(
            f"the model {name!r} is neither a folder here nor in the hub's cache, and the hub is switched off "
            "(HF_HUB_OFFLINE); download it first, or give a folder"
        )
    try:
        huggingface_hub.auth_check(name)
    except errors.GatedRepoError:
        raise ValueError(
            f"the model {name!r} is gated: accept its licence at https://huggingface.co/{name}, then log in with "
            "`huggingface-cli login` or set HF_TOKEN, and try again"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ValueError(
            f"the hub has no model {name!r} that you may read, and there is no such folder; a private model needs "
            "`huggingface-cli login` or HF_TOKEN"
        ) from None
    except Exception as error:  # the HTTP library below the hub's client changes with its version
        if cached:
            return Location(name)
        raise ValueError(
            f"cannot reach the hub for the model {name!r} ({type(error).__name__}), and it is not in the cache; check "
            "the connection, or give a folder"
        ) from None
    return Location(name, local_only=False)
