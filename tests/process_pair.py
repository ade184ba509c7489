"""Two processes with a gloo group, for tests: started once, they run one function after another."""

from __future__ import annotations

import datetime
import multiprocessing
import queue

import torch
import torch.distributed as dist

SIZE = 2
PATIENCE = 60  # seconds until a test gives up on an answer


class Pair:
    """Runs `function(rank, **arguments)` in both processes."""

    def __init__(self, folder):
        context = multiprocessing.get_context("spawn")
        self._requests = [context.Queue() for _ in range(SIZE)]
        self._answers = context.Queue()
        self.processes = [
            context.Process(target=_work, args=(rank, str(folder / "store"), self._requests[rank], self._answers))
            for rank in range(SIZE)
        ]
        for process in self.processes:
            process.start()

    def outcomes(self, function, **arguments):
        """What it returned in each process, or the exception that it raised there; None where the process ended."""
        for requests in self._requests:
            requests.put((function, arguments))
        found = [None] * SIZE
        for _ in range(SIZE):
            try:
                rank, outcome = self._answers.get(timeout=PATIENCE)
            except queue.Empty:
                break
            found[rank] = outcome
            if isinstance(outcome, SystemExit):
                found[rank] = None
        return found

    def run(self, function, **arguments):
        """The like; an exception in either process is raised here."""
        found = self.outcomes(function, **arguments)
        for outcome in found:
            if isinstance(outcome, BaseException):
                raise outcome
        return found

    def close(self):
        for requests, process in zip(self._requests, self.processes, strict=True):
            requests.put(None)
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
                process.join()


def _work(rank, store, requests, answers):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=SIZE,
        timeout=datetime.timedelta(seconds=PATIENCE / 2),
    )
    while (job := requests.get()) is not None:
        function, arguments = job
        try:
            outcome = function(rank, **arguments)
        except SystemExit as end:
            answers.put((rank, end))
            return
        except Exception as error:
            outcome = type(error)(str(error))
        answers.put((rank, outcome))
    dist.destroy_process_group()
