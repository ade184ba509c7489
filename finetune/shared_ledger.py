"""One ledger for several processes: the first writes the file, the others keep the same entries in memory."""

from __future__ import annotations

import os

from ..accounting import Ledger
from .processes import Processes

LedgerLike = Ledger | str | os.PathLike[str] | None


def open_ledger(ledger: LedgerLike, processes: Processes) -> Ledger:
    """The ledger of this process; each release is then recorded in all of them.

    A path is opened by the first process only. A `Ledger` with a file may be given in the first process only, one
    without a file in all of them: it stays the object it is. Raises ValueError otherwise, and if their entries differ.
    """

    def first() -> Ledger | None:
        if isinstance(ledger, Ledger):
            if ledger.path is not None and not processes.is_first:
                raise ValueError(
                    f"process {processes.rank} was given an open ledger of the file {ledger.path}, which only the "
                    "first process may write; pass the path, which is opened there alone"
                )
            return ledger
        return Ledger(ledger) if processes.is_first else None

    own = processes.agreed("opening the ledger", first)
    copy = processes.from_first("sharing the ledger", lambda: None if own is None else own.in_memory())
    mine = copy if own is None else own
    assert mine is not None
    processes.same("comparing the ledgers", lambda: {"ledger": mine.releases})
    return mine
