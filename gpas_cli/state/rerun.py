"""Requests for a new run of a stage with a result: `rerun.json` beside its attempts, {t: unix time, after: number}.

Attempts up to number `after` no longer decide whether the stage runs, and no attempt resumes from them. They are kept,
and tables show their results until a later attempt has one: of several results the newest counts. A request
stays valid if the command that made it is killed. It has no effect once a later attempt has a result.
"""

import time
from pathlib import Path

from gpas_cli.period import seconds_since
from gpas_cli.store.records import RerunRequest
from gpas_cli.store.rundir import AttemptDir, attempts, read_record, stage_dir, write_record

FILE = "rerun.json"


def request(runs: Path, key: str) -> None:
    """Request a new run of the stage `key`. `claim_set.run_again` calls this with the lock held. Raises OSError."""
    number = max((attempt.number for attempt in attempts(runs, key)), default=0)
    write_record(_path(runs, key), RerunRequest(t=time.time(), after=number))


def superseded(runs: Path, key: str) -> int:
    """Return the number of the last attempt that no longer decides the state, 0 without a request.

    Raises OSError or StoreError if there is a request that cannot be read.
    """
    request = _read(runs, key)
    return request.after if request else 0


def age(runs: Path, key: str) -> float:
    """Return the seconds since the request, or since 1970 if there is none. Raises the same errors as `superseded`."""
    request = _read(runs, key)
    return seconds_since(request.t if request else 0.0)


def deciding(runs: Path, key: str) -> list[AttemptDir]:
    """Return the attempts that decide the state of the stage, oldest first. Only these may be resumed from."""
    after = superseded(runs, key)
    return [attempt for attempt in attempts(runs, key) if attempt.number > after]


def _read(runs: Path, key: str) -> RerunRequest | None:
    try:
        return read_record(RerunRequest, _path(runs, key))
    except FileNotFoundError:
        return None


def _path(runs: Path, key: str) -> Path:
    return stage_dir(runs, key) / FILE
