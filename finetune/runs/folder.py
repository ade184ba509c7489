"""The folder of a run: what it is bound to, its ledger, its checkpoints, what it leaves behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, final

from ... import __version__
from ...accounting import Ledger
from ...mechanisms import Mechanism, from_spec, independent
from ...mechanisms._json import read_json, read_text, write_json
from ..checkpoint import check_same
from .files import recipe_from
from .recipe import Recipe


@final
class RunFolder:
    """Paths of one run. `ledger.jsonl` records every release; `run.json` says what the run is, so that a continuation
    is refused if it is not the same; `checkpoints` and `private` are deleted at the end."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.ledger = self.path / "ledger.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.private = self.path / "private"
        self.model = self.path / "model"
        self._document = self.path / "run.json"
        self._digest = self.private / "data.json"

    def check_free(self) -> None:
        """Raise ValueError if there is a run in it already."""
        releases = Ledger(self.ledger).steps if self.ledger.exists() else 0
        if releases or (self.path / "report.json").exists():
            raise ValueError(f"{self.path} holds a run already; resume it or choose another output folder")
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"expected output_dir to be a folder, {self.path} is a file")

    def begin(self, recipe: Recipe, mechanism: Mechanism | None, digest: str) -> None:
        """Write what the run is. The data's digest goes into a folder that only its owner may read."""
        self.private.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.private.chmod(0o700)
        self._digest.write_text(json.dumps({"data": digest}), encoding="utf-8")
        self._digest.chmod(0o600)
        document = {
            "optnoise": __version__,
            "recipe": recipe.model_dump(mode="json"),
            "mechanism": None if mechanism is None else mechanism.spec(),
        }
        write_json(self._document, document)

    def noise_of_interrupted(self, recipe: Recipe, mechanism: Mechanism | None) -> Mechanism:
        """The noise of the run to be continued.

        Raises ValueError if there is none, its files are damaged, or recipe or noise are not the same as then.
        """
        if (self.path / "report.json").exists():
            self.finish()  # a process that was killed at the very end may have left its private state
            raise ValueError(f"the run in {self.path} is finished: see its report.json")
        document = _read(self._document)
        try:
            before = recipe_from(document["recipe"], source="recipe").binding()
            spec = document["mechanism"]
            noise = None if spec is None else independent(from_spec(spec))
        except KeyError as error:
            raise ValueError(f"{self._document} is damaged: it lacks {error}") from error
        except ValueError as error:
            raise ValueError(f"{self._document} is damaged: {error}") from error
        check_same(before, recipe.binding(), "recipe.")
        if noise is None:
            raise ValueError("the run in this folder is without privacy: start it anew in another one")
        if not self.ledger.exists():
            raise ValueError(f"there is no ledger at {self.ledger}: without its ledger a run cannot be continued")
        if mechanism is not None:
            check_same(noise.spec(), mechanism.spec(), "mechanism.")
        return noise

    def check_data(self, digest: str) -> None:
        """Raise ValueError if the training rows are not those of the interrupted run."""
        check_same(_read(self._digest), {"data": digest})

    def finish(self) -> None:
        """Delete checkpoints and private state."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        shutil.rmtree(self.private, ignore_errors=True)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"there is no run to resume: {path} is missing")
    text = read_text(path, "the file")
    try:
        document = read_json(text)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{path} is damaged: expected an object")
    return document
