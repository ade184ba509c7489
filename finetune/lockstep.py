"""Processes that hold one model in pieces: they run it the same number of times, and agree on that before each pass.

Each forward and backward pass of a sharded model gathers frozen weights from all processes, so a process that makes a
pass alone waits for ever. Shares of a Poisson sample differ, and so do the probes for mixed examples: a process that
has less to do makes a pass for nothing instead, whose result is discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, final

from .processes import ALONE, Processes

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@final
class Lockstep:
    """Agreement on the passes of one model; `FREE`, for models in one piece, agrees on nothing and costs nothing.

    Args:
        processes: those that hold the pieces.
        shards: the outermost sharded modules of the model.
    """

    def __init__(self, processes: Processes, shards: Sequence[Any]) -> None:
        self._processes, self._shards = processes, shards

    @property
    def is_needed(self) -> bool:
        """Whether other processes take part in each pass of the model."""
        return self._processes.are_several

    def begin(self, left: Callable[[], int]) -> bool:
        """Before a forward pass: whether its examples count. `left` checks, and gives the number not yet recorded.

        False where this process has none left but another has. Raises ValueError if no process has.
        """
        numbers = self._processes.gathered("record()", left)
        if not any(numbers):
            raise ValueError(
                "all examples of this logical batch were recorded, in all processes; take the microbatches from "
                "batch.microbatches(size), and step"
            )
        return numbers[self._processes.rank] > 0

    def padded(self, action: Callable[[], list[_Item]]) -> list[_Item | None]:
        """Before the backward passes: the items of `action`, followed by None up to the most that a process has."""
        own: list[_Item] = []

        def count() -> int:
            own.extend(action())
            return len(own)

        most = max(self._processes.gathered("backward(losses)", count))
        return [*own, *[None] * (most - len(own))]

    def agreed(self, what: str, action: Callable[[], _Result]) -> _Result:
        """The result of `action` here; if it raised in any process, all raise."""
        return self._processes.agreed(what, action)

    def settle(self) -> None:
        """Put the pieces in place of whole weights that an evaluation has left in memory."""
        for root in self._shards:
            for module in root.modules():
                if hasattr(module, "reshard"):
                    module.reshard()

    def recover(self) -> None:
        """After a pass that failed: the pieces in place, and nothing left of the pass."""
        for root in self._shards:
            if hasattr(root, "reset_iter_state"):  # not in every version of torch
                root.reset_iter_state()
        self.settle()


FREE = Lockstep(ALONE, [])
"""A model in one piece: no pass needs another process."""
