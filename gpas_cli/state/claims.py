"""Claims on stages, and the `gpas run` processes that hold them.

runs/.submitters/<id>.lock   flock held for the life of the process; its time stamp is a heartbeat for other hosts
runs/.submitters/<id>.json   {id, host, pid, time, boot}
runs/<key[:2]>/<key>/claim.json   {submitter, host, pid, time} if this submitter runs, or will run, the stage itself;
                                  with {submission, index, after} if that element of a SLURM job array does
"""

import json
import os
import re
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import field, replace
from pathlib import Path

from gpas_cli.errors import GpasError, StoreError
from gpas_cli.files import replace_file
from gpas_cli.state import locks
from gpas_cli.state.locks import Lock
from gpas_cli.store.records import Author, SubmitterRecord
from gpas_cli.store.rundir import read_record, stage_dir, write_record
from gpas_cli.structure import ABSENT, Record, to_mapping

_HEARTBEAT_SECONDS = 15.0  # the interval between two touches of the lock file
SILENCE_SECONDS = 120.0  # without a heartbeat or event, until a process of another host counts as dead
CLAIM = "claim.json"
LOCAL, SLURM = "local", "slurm"  # the schedulers of claims by older versions, which name none
_NAME = re.compile(r"[^/\0]+")  # of a submitter; it becomes part of a file name


class Submitter:
    """The registration of this process as one that runs cells. It ends with the process, even without `close`."""

    def __init__(self, runs: Path):
        self.host = socket.gethostname()
        self.pid = os.getpid()
        self.since = time.time()
        self.id = f"{self.host}-{self.pid}-{secrets.token_hex(4)}"
        self._stem = folder(runs) / self.id
        with locks.locked(claims_lock(runs)):  # otherwise `sweep` might remove the file before it is locked
            self._fd = locks.hold(self._path("lock"))
        self._beaten = time.monotonic()
        about = SubmitterRecord(id=self.id, host=self.host, pid=self.pid, time=self.since, boot=locks.boot_id())
        try:
            write_record(self._path("json"), about)
        except BaseException:  # a full disk
            self.close()
            raise

    @property
    def author(self) -> Author:
        """This process, as records of what it starts name it."""
        return Author(self.id, self.host, self.pid)

    def beat(self) -> None:
        """Show other hosts that this process is alive. Cheap to call. Raises GpasError if the lock file was removed."""
        if time.monotonic() - self._beaten >= _HEARTBEAT_SECONDS:
            try:
                os.utime(self._path("lock"))
            except FileNotFoundError as error:
                what = "was removed, so other runs may start the same cells; a new `gpas run` follows its jobs"
                raise GpasError(f"{error.filename} {what}") from error
            self._beaten = time.monotonic()

    def close(self) -> None:
        """Remove the files of this submitter, which invalidates the claims that it has not released."""
        if self._fd >= 0:
            for suffix in ("json", "lock"):
                self._path(suffix).unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1

    def _path(self, suffix: str) -> Path:
        return self._stem.parent / f"{self._stem.name}.{suffix}"


def folder(runs: Path) -> Path:
    """Return the folder with the files of submitters."""
    return runs / ".submitters"


def sweep(runs: Path) -> None:
    """Remove the files of dead submitters of this host. The caller holds `claims_lock`."""
    for lock in folder(runs).glob("*.lock"):
        host = lock.name.rsplit("-", 2)[0]
        if locks.probe(lock) is Lock.FREE and is_of_this_host(lock, host):
            lock.with_suffix(".json").unlink(missing_ok=True)
            lock.unlink(missing_ok=True)


def is_of_this_host(lock: Path, host: str) -> bool:
    """Return whether a free lock proves that a submitter of `host` is dead: this process would see it held."""
    if host == socket.gethostname():
        return True
    try:
        return locks.seen_from_here(lock, read_record(SubmitterRecord, lock.with_suffix(".json")).boot)
    except (OSError, StoreError):
        return False


def claims_lock(runs: Path) -> Path:
    """Return the lock file to hold while claims are taken and submitters are added or removed."""
    return runs / ".lock"


class Claim(Record, kw_only=True):
    """claim.json: the scheduler that will run a stage, and the process that submitted it.

    A claim with a `submission` outlives its submitter.
    """

    submitter: str
    host: str
    pid: int
    time: float
    scheduler: str = field(default="", metadata=ABSENT)
    submission: str = ""  # the scheduler's name for the submission, "" if the submitting process runs the stage itself
    index: int = 0  # the job in the submission
    after: tuple[str, ...] = ()  # the keys of the stages that the job waits for
    grid: str = field(default="", metadata=ABSENT)
    """The grid for which the stage was requested, "" if it is not recorded."""

    def __str__(self) -> str:
        if self.submission:
            return f"{self.submission} [{self.index}]"
        return f"gpas run {self.pid} on {self.host}"


def claim_path(runs: Path, key: str) -> Path:
    return stage_dir(runs, key) / CLAIM


def read_claim(runs: Path, key: str) -> Claim | None:
    """Return the claim on a stage, even if its submitter is dead; None if there is none or it cannot be read."""
    try:
        found = read_record(Claim, claim_path(runs, key))
    except (OSError, StoreError):
        return None
    if not _NAME.fullmatch(found.submitter):
        return None
    return found if found.scheduler else replace(found, scheduler=SLURM if found.submission else LOCAL)


def write_claim(
    runs: Path,
    key: str,
    submitter: Submitter,
    scheduler: str = LOCAL,
    *,
    submission: str = "",
    index: int = 0,
    after: Sequence[str] = (),
    grid: str = "",
) -> None:
    """Write a claim, replacing any earlier one. There is no fsync, because no submitter survives a power cut.

    Without a `submission` the submitter itself runs the stage; the other arguments are as in `Claim`.
    """
    path = claim_path(runs, key)
    claim = Claim(
        submitter=submitter.id, host=submitter.host, pid=submitter.pid, time=time.time(), scheduler=scheduler,
        submission=submission, index=index, after=tuple(after), grid=grid,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(to_mapping(claim)) + "\n", durable=False)


def release_claim(runs: Path, key: str, submission: str, index: int) -> None:
    """Remove the claim of a job that has ended, unless another job has claimed the stage since, as `gpas retry` does.

    Raises OSError, or GpasError if `claims_lock` is not released by its holder.
    """
    with locks.locked(claims_lock(runs)):
        claim = read_claim(runs, key)
        if claim is not None and (claim.submission, claim.index) == (submission, index):
            claim_path(runs, key).unlink(missing_ok=True)
