"""The `gpas run` processes that are alive, and their claims on stages.

runs/.submitters/<id>.lock   flock held for the life of the process; its time stamp is a heartbeat for other hosts
runs/.submitters/<id>.json   {id, host, pid, time, boot}
runs/<key[:2]>/<key>/claim.json   {submitter, host, pid, time} if this submitter runs, or will run, the stage itself;
                                  with {submission, index, after} if that element of a SLURM job array does
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from pathlib import Path

from gpas_cli.errors import GpasError, StoreError
from gpas_cli.state import locks
from gpas_cli.state.locks import Lock
from gpas_cli.store.records import SubmitterRecord
from gpas_cli.store.rundir import read_record, write_record

HEARTBEAT_SECONDS = 15.0  # the interval between two touches of the lock file
SILENCE_SECONDS = 120.0  # without a heartbeat or event, until a process of another host counts as dead


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
        write_record(self._path("json"), about)

    def beat(self) -> None:
        """Show other hosts that this process is alive. Cheap to call. Raises GpasError if the lock file was removed."""
        if time.monotonic() - self._beaten >= HEARTBEAT_SECONDS:
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
