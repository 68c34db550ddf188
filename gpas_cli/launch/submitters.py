"""Which `gpas run` processes live, and which stages they have claimed.

runs/.submitters/<id>.lock   flock held for the life of the process; its time stamp is a heartbeat for other hosts
runs/.submitters/<id>.json   {id, host, pid, time, boot}
runs/<key[:2]>/<key>/claim.json   {submitter, host, pid, time}: this submitter is going to run, or runs, the stage;
                                  with {submission, index, after} as well, that element of a SLURM job array is
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from gpas_cli.errors import GpasError, StoreError
from gpas_cli.grid.trust import user_name
from gpas_cli.launch import locks
from gpas_cli.launch.locks import Lock
from gpas_cli.launch.slurm import failures, submission
from gpas_cli.launch.slurm.queue import FRESH, Queue, current
from gpas_cli.store.rundir import read_json, stage_dir, write_json

HEARTBEAT = 15.0  # seconds between two touches of the lock file
CLAIM = "claim.json"
_NAME = re.compile(r"[^/\0]+")  # of a submitter, which is part of a file's name
SILENCE = 120.0  # seconds without a sign of life after which another host's process counts as gone


@dataclass(frozen=True)
class Claim:
    """Who is going to run a stage. `since` is unix time. `submission` names a SLURM job array, "" for a process;
    `after` are the keys of the stages that its job waits for."""

    submitter: str
    host: str
    pid: int
    since: float
    submission: str = ""
    index: int = 0
    after: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.submission:
            return f"{self.submission} [{self.index}]"
        return f"gpas run {self.pid} on {self.host}"


@dataclass
class Liveness:
    """Answers whether a submitter lives, each asked about once: make a new one for each look around."""

    runs: Path
    max_age: float = FRESH  # seconds for which an answer of the scheduler serves
    line: bool = False  # whether the scheduler is asked where jobs stand in line
    verdicts: dict[str, str] = field(default_factory=dict)  # key -> why what waits for it cannot run, "" if it can
    _known: dict[str, bool] = field(default_factory=dict)
    _dead: dict[str, float] = field(default_factory=dict)
    _held: dict[str, str] = field(default_factory=dict)
    _recorded: dict[str, bool] = field(default_factory=dict)
    _others: dict[str, str] = field(default_factory=dict)

    @cached_property
    def queue(self) -> Queue:
        """What the scheduler says of all jobs, asked for when the first of them is looked at."""
        return current(self.runs, self.max_age, line=self.line)

    def renew(self, since: float) -> None:
        """Make sure that the scheduler's answer is none from before `since` (unix time), if it can be had."""
        if self.queue.time < since:
            self.__dict__["queue"] = current(self.runs, max_age=max(0.0, time.time() - since), line=self.line)

    def queue_after(self, claim: Claim) -> Queue | None:
        """An answer given after the submitter was seen to be dead: only such a one can miss a job for good.

        None while the submitter lives. Where the scheduler does not answer, an older one, with its error.
        """
        if claim.submitter not in self._dead:
            if self._ask(claim):
                return None
            self._dead[claim.submitter] = time.time()
        if not self.queue.own or self.queue.time <= self._dead[claim.submitter]:
            self.__dict__["queue"] = current(self.runs, max_age=0.0, line=self.line)
        return self.queue

    def breaker(self, name: str) -> str:
        """Why the rest of a submission is held back, "" when it is not."""
        if name not in self._held:
            self._held[name] = failures.breaker(submission.folder(self.runs) / name)
        return self._held[name]

    def recorded(self, name: str) -> bool:
        """Whether the submission of that name is on disk: one that the scheduler refused is not."""
        if name not in self._recorded:
            self._recorded[name] = submission.find(self.runs, name) is not None
        return self._recorded[name]

    def other_user(self, name: str) -> str:
        """Who made the submission of that name, "" where SLURM hides none of its jobs from the user of this process."""
        if name not in self._others:
            made = submission.find(self.runs, name)
            mine = made is None or os.getuid() in (0, made.owner)
            self._others[name] = "" if made is None or mine else user_name(made.owner)
        return self._others[name]

    def __call__(self, claim: Claim) -> bool:
        if claim.submitter not in self._known:
            self._known[claim.submitter] = self._ask(claim)
        return self._known[claim.submitter]

    def _ask(self, claim: Claim) -> bool:
        path = folder(self.runs) / f"{claim.submitter}.lock"
        found = locks.probe(path)
        if found in (Lock.HELD, Lock.ABSENT) or (found is Lock.FREE and _of_here(path, claim.host)):
            return found is Lock.HELD
        try:  # some network file systems keep locks to one host; the heartbeat crosses hosts
            return time.time() - path.stat().st_mtime < SILENCE
        except OSError:
            return False


class Submitter:
    """This process as one that runs cells; a context manager. Dying in any way ends it, without cleaning up."""

    def __init__(self, runs: Path):
        self.host, self.pid, self.since = socket.gethostname(), os.getpid(), time.time()
        self.id = f"{self.host}-{self.pid}-{secrets.token_hex(4)}"
        self._stem = folder(runs) / self.id
        with locks.locked(claims_lock(runs)):  # or `sweep` might take the file for one left over, before it is locked
            self._fd = locks.hold(self._path("lock"))
        self._beaten = time.monotonic()
        about = {"id": self.id, "host": self.host, "pid": self.pid, "time": self.since, "boot": locks.boot_id()}
        write_json(self._path("json"), about)

    def beat(self) -> None:
        """Show other hosts that this process lives; cheap to call often. Raises GpasError when it no longer can."""
        if time.monotonic() - self._beaten >= HEARTBEAT:
            try:
                os.utime(self._path("lock"))
            except FileNotFoundError as error:
                what = "was removed, so other runs may start the same cells; run again to follow the jobs that go on"
                raise GpasError(f"{error.filename} {what}") from error
            self._beaten = time.monotonic()

    def close(self) -> None:
        """Leave: the files go, and with them the worth of any claim not given back."""
        if self._fd >= 0:
            for suffix in ("json", "lock"):
                self._path(suffix).unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1

    def _path(self, suffix: str) -> Path:
        return self._stem.parent / f"{self._stem.name}.{suffix}"


def folder(runs: Path) -> Path:
    """Where submitters are listed."""
    return runs / ".submitters"


def claims_lock(runs: Path) -> Path:
    """Held for the moment in which claims are taken and submitters come and go."""
    return runs / ".lock"


def claim_path(runs: Path, key: str) -> Path:
    return stage_dir(runs, key) / CLAIM


def read_claim(runs: Path, key: str) -> Claim | None:
    """The claim on a stage, whether or not its submitter lives; an unreadable one claims nothing."""
    try:
        found = read_json(claim_path(runs, key))
        who = (str(found["submitter"]), str(found["host"]), int(found["pid"]), float(found["time"]))
        after = tuple(map(str, found.get("after", ())))
        if not _NAME.fullmatch(who[0]):
            return None
        return Claim(*who, str(found.get("submission", "")), int(found.get("index", 0)), after)
    except (OSError, StoreError, KeyError, TypeError, ValueError, OverflowError):
        return None


def write_claim(runs: Path, key: str, submitter: Submitter, **more: str | int | Sequence[str]) -> None:
    """Write a claim, replacing any there. No fsync: after a power cut its submitter is dead anyway.

    `more` is {submission, index, after} where a SLURM job is to run the stage: such a claim outlives its submitter.
    """
    path = claim_path(runs, key)
    aside = path.with_name(f".{CLAIM}.{submitter.id}")
    claim = {"submitter": submitter.id, "host": submitter.host, "pid": submitter.pid, "time": time.time(), **more}
    try:
        aside.write_text(json.dumps(claim) + "\n", encoding="utf-8")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(claim) + "\n", encoding="utf-8")
    aside.replace(path)


def sweep(runs: Path) -> None:
    """Remove what dead submitters of this host left; call it with `claims_lock` held."""
    for lock in folder(runs).glob("*.lock"):
        host = lock.name.rsplit("-", 2)[0]
        if locks.probe(lock) is Lock.FREE and _of_here(lock, host):
            lock.with_suffix(".json").unlink(missing_ok=True)
            lock.unlink(missing_ok=True)


def _of_here(lock: Path, host: str) -> bool:
    """Whether the free lock of a submitter of `host` proves that it is dead: it would be seen here to be held."""
    if host == socket.gethostname():
        return True
    try:
        return locks.seen_from_here(lock, str(read_json(lock.with_suffix(".json")).get("boot", "")))
    except (OSError, StoreError):
        return False
