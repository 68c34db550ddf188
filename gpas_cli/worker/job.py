"""The process that runs one attempt: `python -m gpas_cli.worker.job ATTEMPT_DIRECTORY [--rank]`.

It reads `attempt.json` and appends to `journal.jsonl`, as the only writer. Its exit codes are 0 for done or diverged,
1 for failed, 75 for interrupted (checkpointed, to be resumed), 76 for interrupted because this machine does not have
the requested GPUs (to be resumed on another machine), and 130 for cancelled.

An attempt with several processes starts as one process, which starts the others (`worker.ranks`). With --rank, they
have all been started already, by `worker.ranks`, srun or torchrun, and the rank of this one is read from the
environment (`worker.rendezvous`). Rank 0 writes the journal.
"""

import signal

if __name__ == "__main__":
    # Until its own handlers are installed, a job that is signalled ends at once, without a traceback from its imports.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import gc
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from gpas_cli.errors import GpasError, advise, no_disk
from gpas_cli.events import Event, Outcome, Started
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.stage import TOKENISE
from gpas_cli.state.attempt import JobExit
from gpas_cli.state.cancellation import request_path
from gpas_cli.store.journal import Journal
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.worker import ranks
from gpas_cli.worker.ranks import ALONE, RENDEZVOUS, RankEnv, outlive_log, place
from gpas_cli.worker.stages.context import StageContext, runner

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)


class StopFlag:
    """The only signal handler of a job: it sets a flag, which is polled between updates."""

    def __init__(self, cancel_request: Path):
        self.cancel_request = cancel_request
        self.signal: int | None = None

    def install(self) -> dict[int, Any]:
        """Handle the signals. Return their earlier handlers."""
        return {number: signal.signal(number, self._raise) for number in STOP_SIGNALS}

    def _raise(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number

    def outcome(self) -> str | None:
        """Return the outcome to exit with, None to continue."""
        if self.signal is None:
            return None
        return "cancelled" if self.cancel_request.exists() else "interrupted"


def main(directory: Path, *, rank: bool = False) -> int:
    """Run the attempt in `directory`, or the part of this process in it, and return the exit code."""
    if rank:
        return _run_attempt(directory, place(os.environ))
    attempt = AttemptDir(directory).read_attempt()
    processes = attempt.resources.processes
    if processes == 1:
        return _run_attempt(directory)
    command = [sys.executable, "-P", "-m", "gpas_cli.worker.job", str(directory), "--rank"]
    return ranks.run(AttemptDir(directory), processes, max(1, attempt.threads // processes), command, STOP_SIGNALS)


def _run_attempt(directory: Path, here: RankEnv = ALONE) -> int:
    """Run the attempt in `directory` to its outcome, as the process `here` of it, and return the exit code.

    An exception becomes the outcome. If the journal cannot be opened, the exit code stands for an interruption.
    """
    try:
        run = _AttemptProcess(AttemptDir(directory), here)
    except OSError as error:  # without a journal the error can only go to the log
        print(f"not started: {error}", file=sys.stderr)
        return JobExit.INTERRUPTED
    run.flag.install()
    if RENDEZVOUS in os.environ:
        ranks.watch_parent(run.parent_died)
    try:
        outcome = _run_stage(run)
    except GpasError as error:
        outcome = Outcome("interrupted" if no_disk(error.__cause__) else "failed", cause=str(error))
    except Exception as error:
        traceback.print_exc()
        outcome = _outcome_of(run, error)
    return run.conclude(outcome)


class _AttemptProcess:
    """An attempt as one of its processes runs it. Only the first process has a journal."""

    def __init__(self, directory: AttemptDir, here: RankEnv):
        self.directory = directory
        self.place = here
        self.joined = False
        self.attempt = directory.read_attempt()
        self.flag = StopFlag(request_path(directory.path))
        self._journal = Journal(directory.journal_path) if here.rank == 0 else None

    def parent_died(self) -> None:
        """Save and exit, because the parent has died. A process that still waits for its peers exits at once."""
        if not self.joined:
            os._exit(JobExit.INTERRUPTED)
        self.flag.signal = signal.SIGTERM

    def emit(self, event: Event) -> None:
        """Append an event to the journal, if this process writes it."""
        if self._journal is not None:
            self._journal.append(event)

    def conclude(self, outcome: Outcome) -> int:
        """Record the outcome and return its exit code."""
        if self._journal is not None:
            code = _close(self._journal, outcome)
        else:
            code = JobExit.of(outcome.outcome)
            if outcome.outcome == "failed":
                ranks.record_failure(self.directory, self.place.rank, outcome.cause)
        return JobExit.FAULTY_NODE if outcome.node else code


def _outcome_of(run: _AttemptProcess, error: Exception) -> Outcome:
    """Return the outcome after an exception: interrupted if a disk failed or a peer was killed, otherwise failed."""
    cause = f"{type(error).__name__}: {advise(error)}"
    if no_disk(error):
        return Outcome("interrupted", cause=cause)
    if run.place.size == 1:
        return Outcome("failed", cause=cause)
    from gpas_cli.train.parallel import lost_a_peer

    if not lost_a_peer(error):
        return Outcome("failed", cause=cause)
    if run.place.rank == 0 and (failure := ranks.recorded_failure(run.directory, patience=2)):
        return Outcome("failed", cause=failure)
    return Outcome("interrupted", cause=ranks.LOST_PEER)


def _close(journal: Journal, outcome: Outcome) -> int:
    journal.append(outcome)
    try:
        journal.close()
    except OSError as error:
        # Without the outcome on disk the attempt counts as interrupted; the next one resumes from the last checkpoint.
        print(f"the journal could not be written: {error}", file=sys.stderr)
        return JobExit.INTERRUPTED
    print(f"{outcome.outcome}{': ' if outcome.cause else ''}{outcome.cause}")
    return JobExit.of(outcome.outcome)


def _run_stage(run: _AttemptProcess) -> Outcome:
    if run.attempt.stage == TOKENISE:
        from gpas_cli.worker.tokenise import tokenise

        return tokenise(run.attempt, run.emit, run.flag.outcome)
    with _without_collections():
        from gpas_cli.train.device import make_deterministic, missing_gpus, node_name, use_expandable_segments
        from gpas_cli.train.parallel import World, joined
    resources = run.attempt.resources
    if missing := missing_gpus(int(os.environ.get(ranks.GPUS) or resources.gpus)):
        print(missing, file=sys.stderr)
        return Outcome("interrupted", cause=missing, node=node_name())
    cell = run.attempt.resolve_cell()
    with _without_collections():
        run_stage = runner(cell, run.attempt.stage)
    here = run.place
    make_deterministic(max(1, run.attempt.threads // here.size))
    with joined(World(here.rank, here.size, here.local_rank), here.meeting) as world:
        run.joined = True
        use_expandable_segments()
        run.emit(_started(run, cell))
        stage = StageContext(cell, run.attempt, run.directory, run.emit, run.flag.outcome, world)
        return run_stage(stage)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Disable garbage collection, which takes a fifth of the time of imports, and exempt what they create from it."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _started(run: _AttemptProcess, cell: Cell) -> Started:
    import torch

    from gpas_cli.model.llama import build
    from gpas_cli.train.device import choose_device
    from gpas_cli.worker.environment import started

    device = choose_device()
    parameters = None  # of a network that was not trained here, which its stage reads
    if cell.network is None:
        parameters = sum(p.numel() for p in build(cell.model, device="meta").parameters())
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return started(
        run.attempt, device=device.type, threads=torch.get_num_threads(),
        precision=cell.network.precision if cell.network else cell.precision, processes=run.place.size,
        parameters=parameters, more={"torch": torch.__version__, "gpu": gpu},
    )  # fmt: skip


if __name__ == "__main__":
    outlive_log()
    code = main(Path(sys.argv[1]).absolute(), rank="--rank" in sys.argv[2:])
    sys.exit(code)
