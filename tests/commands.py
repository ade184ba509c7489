"""The `optnoise` command, run in this process."""

from typing import Any

import pytest
from optnoise.cli import main


def run_command(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[Any, str, str]:
    """Exit code, standard output, standard error."""
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return exit_.value.code, captured.out, captured.err
