"""Encode in several worker processes, and restore the order of their results.

    reader thread ── groups ──> this process ──> worker 1..N ──> this process ── in order ──> shards

This process restores the order, so that the shards do not depend on the number of workers. A killed worker is replaced
and its group encoded again; if this process is killed, its workers exit when their pipe closes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from gpas_cli.data.encode import Encode, EncodedGroup, EncoderSpec, Group
from gpas_cli.data.prefetch import Prefetcher
from gpas_cli.errors import DataError

# Groups per worker that may be encoded before the one that is next in order: bounds the memory.
BACKLOG_GROUPS = 4
# An error is raised when this many workers died while encoding the same group.
MAX_DEATHS = 3
_SPAWN = get_context("spawn")


def parallel_encoder(recipe: EncoderSpec, workers: int) -> Encode:
    """Return an encoder that distributes groups over `workers` processes, which it starts with the first group."""

    def encode(groups: Iterator[Group]) -> Iterator[EncodedGroup]:
        with Prefetcher(groups, workers) as ready:
            pool = _WorkerPool(recipe, workers)
            try:
                yield from pool.encode(ready)
            finally:
                pool.close()

    return encode


def serve(pipe: Connection, recipe: EncoderSpec) -> None:
    """Run a worker: receive groups and send `EncodedGroup`s or DataErrors, until the other end of the pipe closes."""
    # Ctrl-C signals every process of a terminal; the main process handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A scheduler's warning is for the main process too.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    encode = recipe.encoder()
    with suppress(EOFError, OSError):
        while True:
            pipe.send(_answer(encode, pipe.recv()))


def _answer(encode: Callable[[Group], EncodedGroup], group: Group) -> EncodedGroup | DataError:
    try:
        return encode(group)
    except DataError as error:
        return error
    except Exception as error:
        # `tokenizers` raises plain Exception; report where, instead of losing the worker.
        return DataError(
            f"cannot tokenise the documents starting with '{group[0].id}': {type(error).__name__}: {error}"
        )


@dataclass
class _Task:
    number: int
    group: Group
    deaths: int = 0


class _Worker:
    """One process, and the group that it is encoding."""

    def __init__(self, recipe: EncoderSpec):
        self.pipe, theirs = _SPAWN.Pipe()
        self.process: BaseProcess = _SPAWN.Process(target=serve, args=(theirs, recipe), daemon=True)
        self.process.start()
        theirs.close()
        self.task: _Task | None = None

    def give(self, task: _Task) -> None:
        self.task = task
        # If the process has just died, reading its answer will fail.
        with suppress(OSError):
            self.pipe.send(task.group)

    def close(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()


class _WorkerPool:
    """The worker processes, and the groups that have to be encoded again."""

    def __init__(self, recipe: EncoderSpec, workers: int):
        self.recipe = recipe
        self.workers = [_Worker(recipe) for _ in range(workers)]
        self._again: list[_Task] = []
        self._taken = 0

    def encode(self, groups: Iterator[Group]) -> Iterator[EncodedGroup]:
        """Yield the encoded groups in order. Errors of `groups` and of workers are raised in that order, too."""
        done: dict[int, EncodedGroup | DataError] = {}
        wanted = 0
        while True:
            ended = self._hand_out(groups, wanted + BACKLOG_GROUPS * len(self.workers))
            while wanted in done:
                answer = done.pop(wanted)
                wanted += 1
                if isinstance(answer, DataError):
                    raise answer
                yield answer
            if any(worker.task for worker in self.workers):
                done.update(self._collect())
            elif ended:
                return

    def _hand_out(self, groups: Iterator[Group], bound: int) -> bool:
        """Give every idle worker a group. Return whether there are no more."""
        for worker in self.workers:
            if worker.task is not None:
                continue
            if self._again:
                worker.give(self._again.pop())
            elif self._taken < bound:
                group = next(groups, None)
                if group is None:
                    return True
                worker.give(_Task(self._taken, group))
                self._taken += 1
        return False

    def _collect(self) -> Iterator[tuple[int, EncodedGroup | DataError]]:
        """Wait for answers. Replace a worker that died, and have its group encoded again."""
        busy = {worker.pipe: worker for worker in self.workers if worker.task}
        for pipe in connection.wait(list(busy)):
            worker = busy[pipe]  # type: ignore[index]
            task = worker.task
            worker.task = None
            assert task is not None
            try:
                answer = worker.pipe.recv()
            except (EOFError, OSError):
                self._replace(worker, task)
            else:
                yield task.number, answer

    def _replace(self, worker: _Worker, task: _Task) -> None:
        worker.close()
        task.deaths += 1
        if task.deaths == MAX_DEATHS:
            raise DataError(
                f"{MAX_DEATHS} processes were killed while tokenising the documents starting with "
                f"'{task.group[0].id}' (exit code {worker.process.exitcode}); if memory is short, use fewer --workers"
            )
        self._again.append(task)
        self.workers[self.workers.index(worker)] = _Worker(self.recipe)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
