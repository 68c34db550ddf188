"""Which scheduler runs the jobs: the seam between `gpas run` and the machines."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from gpas_cli.errors import GpasError, nearest
from gpas_cli.launch.summary import Summary

NAMES = ("auto", "local", "slurm")


class Executor(Protocol):
    """Runs the stages that some entries lack. `launch.local.LocalScheduler` is one."""

    name: str

    def submit(self) -> Counter[str]:
        """Claim what nobody has; how many stages are waiting, followed, ended."""

    def follow(self) -> Summary:
        """Wait until everything submitted has ended."""

    def stop(self) -> None:
        """Ask the jobs to save and leave; the second time, kill them."""


@dataclass(frozen=True)
class Choice:
    """An executor's name, and what the user should know about why it was taken ("" when nothing)."""

    name: str
    note: str = ""


def choose(word: str, environ: Mapping[str, str] = os.environ) -> Choice:
    """The executor that `word` (auto, local or slurm) means here. Raises GpasError for one that cannot be had."""
    if word not in NAMES:
        raise GpasError(f"unknown executor '{word}'; {nearest(word, NAMES)}")
    if word == "slurm":
        raise GpasError(
            "this version runs jobs on the machine it is started on and does not submit to SLURM; "
            "start it inside an allocation with --executor local"
        )
    if word == "local" or "SLURM_JOB_ID" in environ or shutil.which("sbatch", path=environ.get("PATH")) is None:
        return Choice("local")
    return Choice("local", "sbatch is here, but this version does not submit to SLURM: jobs run on this machine")


@contextmanager
def stop_on_signals(executor: Executor) -> Iterator[None]:
    """Within the block SIGINT and SIGTERM call `stop`: at the first jobs save and leave, the second kills them."""

    def handle(_number: int, _frame: object) -> None:
        executor.stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
