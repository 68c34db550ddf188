"""Which scheduler runs the jobs: the seam between `gpas run` and the machines."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, cast

from gpas_cli.errors import GpasError, nearest
from gpas_cli.state.claims import Claim
from gpas_cli.state.status import CellStatus
from gpas_cli.state.view import ClaimScheduler, SchedulerView

NAMES = ("auto", "local", "slurm")


class Scheduler(ClaimScheduler, Protocol):
    """Who runs jobs."""

    def cancel(self, status: CellStatus, claim: Claim) -> tuple[bool, str]:
        """Cancel a queued or running stage. Return whether it was asked to stop, and what was done, for the user."""


def scheduler_of(look: SchedulerView, claim: Claim) -> Scheduler:
    """Return the scheduler that a claim names. Raises GpasError if it is unknown or cannot be loaded."""
    return cast(Scheduler, look.scheduler(claim.scheduler))


@dataclass(frozen=True)
class Choice:
    """An executor's name, and what the user should know about why it was taken ("" when nothing)."""

    name: str
    note: str = ""


def choose(word: str, environ: Mapping[str, str] = os.environ) -> Choice:
    """The executor that `word` (auto, local or slurm) means here. Raises GpasError for one that cannot be had."""
    if word not in NAMES:
        raise GpasError(f"unknown executor '{word}'; {nearest(word, NAMES)}")
    here = shutil.which("sbatch", path=environ.get("PATH")) is not None
    if word == "slurm" and not here:
        raise GpasError(
            "SLURM cannot be asked: sbatch is not on the PATH; submit from a login node, or use --executor local"
        )
    if word != "auto" or not here or "SLURM_JOB_ID" in environ:
        return Choice(word if word != "auto" else "local")
    if _cluster_answers(environ):
        return Choice("slurm")
    return Choice("local", "sbatch is here, but no SLURM controller answers: jobs run on this machine")


def _cluster_answers(environ: Mapping[str, str]) -> bool:
    command = ["scontrol", "ping"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, env=dict(environ), check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0 and "is UP" in done.stdout


class Stoppable(Protocol):
    """What signals may stop."""

    def stop(self) -> None:
        """Called in the signal handler."""


@contextmanager
def stop_on_signals(executor: Stoppable) -> Iterator[None]:
    """Within the block SIGINT and SIGTERM call `stop`: at the first jobs save and leave, the second kills them."""

    def handle(_number: int, _frame: object) -> None:
        executor.stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
