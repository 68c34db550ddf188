"""Retire results without erasing them: `gpas forget` renames an attempt NNN to `.forgotten-NNN`.

The folder keeps everything, with the reason in forgotten.json. Undoing it renames the folder back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.permissions import user_name
from gpas_cli.state import locks
from gpas_cli.state.claims import claim_path
from gpas_cli.state.observe import observe
from gpas_cli.state.status import ALIVE
from gpas_cli.state.submitters import claims_lock
from gpas_cli.state.view import SchedulerView
from gpas_cli.store.records import Forgetting
from gpas_cli.store.rundir import FORGOTTEN, AttemptDir, attempts, forgotten_attempts, read_record, write_record

RECORD = "forgotten.json"


def forget(runs: Path, stages: Mapping[str, Sequence[str]], why: str) -> dict[str, list[AttemptDir]]:
    """Forget all attempts at stages, and return their new folders by key; stages without attempts are left out.

    `stages` has the keys of the stages that build on each of them, which are forgotten with it. Raises GpasError if one
    is queued or running; then nothing has changed. Raises OSError.
    """
    others = {key: tuple(stages.get(key, ())) for key in (*stages, *chain.from_iterable(stages.values()))}
    done = {}
    with locks.locked(claims_lock(runs)):
        _refuse_alive(runs, others)
        for key, built_on in others.items():
            record = Forgetting(t=time.time(), user=user_name(os.getuid()), why=why, others=built_on)
            done[key] = [_forget(attempt, record) for attempt in attempts(runs, key)]
            # It names the job that made the forgotten result.
            claim_path(runs, key).unlink(missing_ok=True)
    return {key: folders for key, folders in done.items() if folders}


def restore(runs: Path, keys: Iterable[str]) -> dict[str, list[AttemptDir]]:
    """Restore the forgotten attempts at stages and at those that were forgotten with them.

    Returns their folders by key. Raises OSError or StoreError.
    """
    done: dict[str, list[AttemptDir]] = {}
    with locks.locked(claims_lock(runs)):
        for key in keys:
            found = forgotten_attempts(runs, key)
            others = [other for attempt in found for other in read_forgetting(attempt).others]
            for one in dict.fromkeys([key, *others]):
                done[one] = [_restore(attempt) for attempt in forgotten_attempts(runs, one)]
    return {key: folders for key, folders in done.items() if folders}


def read_forgetting(attempt: AttemptDir) -> Forgetting:
    """Return when and why the attempt was forgotten. Raises OSError or StoreError if the record cannot be read."""
    return read_record(Forgetting, attempt.path / RECORD)


def _refuse_alive(runs: Path, keys: Iterable[str]) -> None:
    view = SchedulerView(runs)
    for key in keys:
        if (state := observe(runs, key, view).state) in ALIVE:
            raise GpasError(f"stage {key} is {state}; `gpas cancel` stops it")


def _forget(attempt: AttemptDir, record: Forgetting) -> AttemptDir:
    write_record(attempt.path / RECORD, record)
    return AttemptDir(attempt.path.rename(attempt.path.with_name(f"{FORGOTTEN}{attempt.path.name}")))


def _restore(attempt: AttemptDir) -> AttemptDir:
    restored = AttemptDir(attempt.path.rename(attempt.path.with_name(attempt.path.name.removeprefix(FORGOTTEN))))
    (restored.path / RECORD).unlink(missing_ok=True)
    return restored
