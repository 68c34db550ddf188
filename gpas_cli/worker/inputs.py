"""Clean up after the earlier attempts at a training stage."""

from __future__ import annotations

import time
from collections.abc import Iterable

from gpas_cli.state import locks
from gpas_cli.state.attempt import alive_path
from gpas_cli.store.rundir import AttemptDir

SETTLED_SECONDS = 3600.0


def discard_unfinished(earlier: Iterable[AttemptDir]) -> None:
    """Delete the checkpoints that earlier attempts were still writing when they were killed.

    Attempts that may still be alive are skipped: those whose lock is held and, if the state of the lock is unknown,
    those whose checkpoints have changed within the last SETTLED_SECONDS seconds.
    """
    from gpas_cli.train.dcp_storage import discard

    for attempt in earlier:
        if _is_over(attempt):
            discard(attempt.checkpoints)


def _is_over(attempt: AttemptDir) -> bool:
    lock = locks.probe(alive_path(attempt))
    if lock in (locks.Lock.FREE, locks.Lock.HELD):
        return lock is locks.Lock.FREE
    try:
        return time.time() - attempt.checkpoints.stat().st_mtime > SETTLED_SECONDS
    except OSError:
        return False
