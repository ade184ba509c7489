"""Several processes that train one model: how they agree, so that no one waits for another that has failed.

Every exchange names what its process is about to do. If an action raised somewhere, all raise; if they are about to do
different things, all raise. `torch.distributed` carries it: gloo between CPUs, nccl between GPUs. Its messages are
private data, so the network between the processes must be as trusted as the machines.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor

_BUCKET = 2**24  # bytes: smaller tensors travel together
_Result = TypeVar("_Result")


class ProcessError(RuntimeError):
    """Another process of the group failed, ended, or is somewhere else in its loop."""


@dataclasses.dataclass(frozen=True)
class _Message:
    """What a process is about to do, what went wrong there, what it has to tell."""

    what: str
    fault: str | None
    content: Any


@final
class Processes:
    """The processes that train one model together, seen from one of them; without a group, this one alone.

    The methods are collective: every process calls the same ones in the same order.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)
        self._backend = None if group is None else str(dist.get_backend(group))

    @property
    def is_first(self) -> bool:
        """Whether this is the process that draws samples and noise, and writes the ledger."""
        return self.rank == 0

    @property
    def are_several(self) -> bool:
        """Whether there is anybody to agree with."""
        return self.size > 1

    @property
    def ranks(self) -> list[int]:
        """These processes, by their ranks in the default group."""
        if self._group is not None:
            return dist.get_process_group_ranks(self._group)
        return [dist.get_rank() if dist.is_available() and dist.is_initialized() else 0]

    @property
    def uses_gpus(self) -> bool:
        """Whether messages go from GPU to GPU (nccl)."""
        return self._backend == "nccl"

    def share(self, items: Tensor) -> Tensor:
        """This process's part of `items` (m,): each of them goes to one process."""
        return items[self.rank :: self.size]

    # ---- agreeing -----------------------------------------------------------------------------------------------

    def agreed(self, what: str, action: Callable[[], _Result]) -> _Result:
        """The result of `action` here. If it raised here, that is raised; if elsewhere, `ProcessError`."""
        result, _ = self._exchange(what, action, tell=lambda _: None)
        return result

    def same(self, what: str, action: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """As `agreed`; raises ValueError naming the first entry that differs between the processes."""
        result, contents = self._exchange(what, action, tell=lambda result: result)
        for rank, content in enumerate(contents):
            for name, first in contents[0].items():
                if content[name] != first:
                    raise ValueError(
                        f"expected the same {name} in all {self.size} processes at {what}, got {first!r} in process 0 "
                        f"and {content[name]!r} in process {rank}"
                    )
        return result

    def from_first(self, what: str, action: Callable[[], _Result]) -> _Result:
        """As `agreed`, but the result of the first process, for all. `action` runs in each of them."""
        _, contents = self._exchange(what, action, tell=lambda result: result if self.is_first else None)
        return contents[0]

    def gathered(self, what: str, action: Callable[[], _Result]) -> list[_Result]:
        """As `agreed`, but the results of all processes, by rank."""
        return self._exchange(what, action, tell=lambda result: result)[1]

    def _exchange(
        self, what: str, action: Callable[[], _Result], *, tell: Callable[[_Result], Any]
    ) -> tuple[_Result, list[Any]]:
        if not self.are_several:
            result = action()
            return result, [tell(result)]
        try:
            result = action()
        except Exception as error:
            self._gather(_Message(what, f"{type(error).__name__}: {error}", None))
            raise
        messages = self._gather(_Message(what, None, tell(result)))
        self._check(messages)
        return result, [message.content for message in messages]

    def _gather(self, message: _Message) -> list[_Message]:
        found: list[Any] = [None] * self.size
        with self._in_touch(message.what):
            dist.all_gather_object(found, message, group=self._group)
        return found

    def _check(self, messages: Sequence[_Message]) -> None:
        places = [message.what for message in messages]
        if len(set(places)) > 1:
            where = ", ".join(f"process {rank} at {place}" for rank, place in enumerate(places))
            raise ProcessError(
                f"the processes are out of step: {where}; each must take the same number of batches and step each of "
                "them, the empty ones too, and of a sharded model's as many microbatches, from batch.microbatches(size)"
            )
        faults = [f"process {rank}: {message.fault}" for rank, message in enumerate(messages) if message.fault]
        if faults:
            raise ProcessError(f"{places[0]} failed in another process, so it is not done here either: {faults[0]}")

    @contextlib.contextmanager
    def _in_touch(self, what: str) -> Iterator[None]:
        """Say what it means when the others do not answer."""
        try:
            yield
        except RuntimeError as error:
            raise ProcessError(
                f"process {self.rank} of {self.size} got no answer at {what}: another process failed or ended, see its "
                "own error; how long to wait is the timeout of torch.distributed.init_process_group"
            ) from error

    # ---- tensors ------------------------------------------------------------------------------------------------

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the processes; all get the same bits. Shapes and order are the same."""
        if not self.are_several:
            return
        for bucket in _buckets(tensors):
            joined = bucket[0].reshape(-1) if len(bucket) == 1 else torch.cat([t.reshape(-1) for t in bucket])
            carried = self._carried(joined)
            with self._in_touch("adding up"):
                dist.all_reduce(carried, group=self._group)
            for tensor, part in zip(bucket, carried.split([t.numel() for t in bucket]), strict=True):
                if part.data_ptr() != tensor.data_ptr():
                    tensor.copy_(part.view(tensor.shape))

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite each tensor by the first process's, of the same shape and dtype, bit by bit."""
        if not self.are_several:
            return
        with self._in_touch("copying the model"), torch.no_grad():
            for tensor in tensors:
                carried = self._carried(tensor.detach().contiguous().view(-1).view(torch.uint8))
                dist.broadcast(carried, group=self._group, group_src=0)
                if not self.is_first:
                    tensor.copy_(carried.to(tensor.device).view(tensor.dtype).view(tensor.shape))

    def _carried(self, tensor: Tensor) -> Tensor:
        """Where the backend can read it: nccl sees GPUs only."""
        return tensor.to("cuda") if self.uses_gpus and tensor.device.type == "cpu" else tensor


ALONE = Processes()
"""One process."""


def find_processes(process_group: Any) -> Processes:
    """The processes of a `torch.distributed.ProcessGroup`; "auto": of the default one, if there is one; None: this one.

    Raises ValueError if this process is not in the group, and for "auto" where a launcher such as torchrun has started
    several processes that know nothing of each other: each would train, and release, by itself.
    """
    if process_group is None:
        return ALONE
    if isinstance(process_group, str) and process_group == "auto":
        if dist.is_available() and dist.is_initialized():
            return Processes(dist.group.WORLD) if dist.get_world_size() > 1 else ALONE
        started = os.environ.get("WORLD_SIZE", "1")
        if started.isdigit() and int(started) > 1:
            raise ValueError(
                f"WORLD_SIZE={started} processes were started, and torch.distributed is not initialised in this one: "
                "each would train by itself; call torch.distributed.init_process_group() first, or pass "
                "process_group=None if this process is to train alone"
            )
        return ALONE
    if not dist.is_available() or not isinstance(process_group, dist.ProcessGroup):
        raise ValueError(
            'expected process_group to be a torch.distributed.ProcessGroup that this process is in, "auto" or None, '
            f"got {process_group!r}"
        )
    return Processes(process_group)


def refuse_several_processes(what: str) -> None:
    """Raise ValueError where a launcher or a process group makes this one of several processes."""
    started = os.environ.get("WORLD_SIZE", "1")
    size = int(started) if started.isdigit() else 1
    if dist.is_available() and dist.is_initialized():
        size = max(size, dist.get_world_size())
    if size > 1:
        raise ValueError(f"{what} runs in one process, got {size}: they would write the same folder; start it once")


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Runs of tensors of one kind, each run of at most `_BUCKET` bytes or one tensor."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket:
            kind = (bucket[0].dtype, bucket[0].device) == (tensor.dtype, tensor.device)
            if not kind or sum(t.nbytes for t in bucket) + tensor.nbytes > _BUCKET:
                yield bucket
                bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
