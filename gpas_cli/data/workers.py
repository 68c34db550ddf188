"""Several processes that encode, and the one that keeps their results in order.

    reader thread ── groups ──> this process ──> worker 1..N ──> this process ── in order ──> shards

The reading process restores the order, so that the bytes are those of one process. A worker that is killed is replaced
and its group done again; when this process is killed, its workers see their pipe end and leave.
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

# Groups read or encoded ahead of the one that is waited for, per worker: bounds the memory.
BACKLOG = 4
# A group whose worker died so often is not tried again.
TRIES = 3
_SPAWN = get_context("spawn")


def parallel_encoder(recipe: EncoderSpec, workers: int) -> Encode:
    """The encoder that shares groups among so many processes, started when the first group comes."""

    def encode(groups: Iterator[Group]) -> Iterator[EncodedGroup]:
        with Prefetcher(groups, workers) as ready:
            crew = _Crew(recipe, workers)
            try:
                yield from crew.encode(ready)
            finally:
                crew.close()

    return encode


def serve(pipe: Connection, recipe: EncoderSpec) -> None:
    """The life of a worker: groups in, `EncodedGroup` or a DataError out, until the other end of the pipe is gone."""
    # Ctrl-C reaches every process of a terminal; the reading process decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A scheduler's warning is for that process as well.
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
        # `tokenizers` raises plain Exception; the reader shall know where, not lose a worker.
        return DataError(f"cannot tokenise the documents from '{group[0].id}' on: {type(error).__name__}: {error}")


@dataclass
class _Task:
    number: int
    group: Group
    deaths: int = 0


class _Worker:
    """One process, and the group it is at."""

    def __init__(self, recipe: EncoderSpec):
        self.pipe, theirs = _SPAWN.Pipe()
        self.process: BaseProcess = _SPAWN.Process(target=serve, args=(theirs, recipe), daemon=True)
        self.process.start()
        theirs.close()
        self.task: _Task | None = None

    def give(self, task: _Task) -> None:
        self.task = task
        # One that has just died is found out when its answer is read.
        with suppress(OSError):
            self.pipe.send(task.group)

    def close(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()


class _Crew:
    def __init__(self, recipe: EncoderSpec, workers: int):
        self.recipe = recipe
        self.workers = [_Worker(recipe) for _ in range(workers)]
        self._again: list[_Task] = []
        self._taken = 0

    def encode(self, groups: Iterator[Group]) -> Iterator[EncodedGroup]:
        """The groups' ids in the groups' order. Raises what the groups raise and the workers answer, in that order."""
        done: dict[int, EncodedGroup | DataError] = {}
        wanted = 0
        while True:
            ended = self._hand_out(groups, wanted + BACKLOG * len(self.workers))
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
        """Give every idle worker a group. Returns whether there are no more."""
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
        """Wait for answers; a worker that died is replaced, and its group given to another."""
        busy = {worker.pipe: worker for worker in self.workers if worker.task}
        for pipe in connection.wait(list(busy)):
            worker = busy[pipe]  # type: ignore[index]
            task, worker.task = worker.task, None
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
        if task.deaths == TRIES:
            raise DataError(
                f"a process that tokenises was killed {TRIES} times at the documents from '{task.group[0].id}' on "
                f"(exit code {worker.process.exitcode}); if memory is short, try fewer --workers"
            )
        self._again.append(task)
        self.workers[self.workers.index(worker)] = _Worker(self.recipe)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
