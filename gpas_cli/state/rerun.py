"""Requests to run a stage again that has a result: `rerun.json` beside its attempts, {t: unix time, after: number}.

Attempts up to number `after` no longer decide whether the stage is to be run, and nothing is resumed from them. They
are kept, and their results stay in tables until a later attempt has one: of several results the newest counts. A
request stands, also when the command that made it is killed, until it is withdrawn; once a later attempt has a result
it has no effect.
"""

from __future__ import annotations

import time
from pathlib import Path

from gpas_cli.store.records import RerunRequest
from gpas_cli.store.rundir import AttemptDir, attempts, read_record, stage_dir, write_record

FILE = "rerun.json"


def request(runs: Path, key: str) -> None:
    """Ask that the stage `key` be run again; `claims.run_again` does so safely. Raises OSError."""
    number = max((attempt.number for attempt in attempts(runs, key)), default=0)
    write_record(_path(runs, key), RerunRequest(t=time.time(), after=number))


def withdraw(runs: Path, key: str) -> bool:
    """Let the earlier result stand again. Returns whether there was a request. Raises OSError."""
    there = _path(runs, key).exists()
    _path(runs, key).unlink(missing_ok=True)
    return there


def superseded(runs: Path, key: str) -> int:
    """The number of the last attempt that does not decide any more, 0 without a request.

    Raises OSError or StoreError when the request is there and cannot be read.
    """
    request = _read(runs, key)
    return request.after if request else 0


def age(runs: Path, key: str) -> float:
    """Return the seconds since the request, from 1970 on without one. Raises like `superseded`."""
    request = _read(runs, key)
    return max(0.0, time.time() - (request.t if request else 0.0))


def deciding(runs: Path, key: str) -> list[AttemptDir]:
    """The attempts that decide the state of the stage, and that may be resumed from, oldest first."""
    after = superseded(runs, key)
    return [attempt for attempt in attempts(runs, key) if attempt.number > after]


def _read(runs: Path, key: str) -> RerunRequest | None:
    try:
        return read_record(RerunRequest, _path(runs, key))
    except FileNotFoundError:
        return None


def _path(runs: Path, key: str) -> Path:
    return stage_dir(runs, key) / FILE
