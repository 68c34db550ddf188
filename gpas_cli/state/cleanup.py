"""Retire results (`gpas forget`) and delete checkpoints that no longer serve a purpose (`gpas gc`).

Forgetting erases nothing: it renames an attempt NNN to `.forgotten-NNN`, with the reason in forgotten.json. Undoing it
renames the folder back.

The rules by which checkpoints are deleted, each with what it adds:

    superseded   all checkpoints of a stage with a result but the last one and those that its `cadence.keep` names; all
                 of diverged and forgotten attempts
    finished     these too, unless a declared stage without a result builds on it
    failed       the checkpoints of failed and cancelled stages: `gpas retry` then starts at the first update

Checkpoints of stages that are missing, queued, running, interrupted or unknown are always kept.
"""

import os
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Annotated

from gpas_cli.checkpoints import FAILED, FINISHED, SUPERSEDED, newest_first, step_of
from gpas_cli.errors import GpasError, user_name
from gpas_cli.grid.declared import Entry
from gpas_cli.state import locks
from gpas_cli.state.claims import claim_path, claims_lock
from gpas_cli.state.observe import observe
from gpas_cli.state.outputs import last_checkpoint
from gpas_cli.state.status import ALIVE, RESULTS, StageStatus
from gpas_cli.state.view import SchedulerView
from gpas_cli.store.records import Forgetting
from gpas_cli.store.rundir import FORGOTTEN, AttemptDir, attempts, forgotten_attempts, read_record, write_record
from gpas_cli.structure import Frozen

_RECORD = "forgotten.json"
_FAILED_STATES = ("failed", "cancelled")


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
    return read_record(Forgetting, attempt.path / _RECORD)


def _refuse_alive(runs: Path, keys: Iterable[str]) -> None:
    view = SchedulerView(runs)
    for key in keys:
        if (state := observe(runs, key, view).state) in ALIVE:
            raise GpasError(f"stage {key} is {state}; `gpas cancel` stops it")


def _forget(attempt: AttemptDir, record: Forgetting) -> AttemptDir:
    write_record(attempt.path / _RECORD, record)
    return AttemptDir(attempt.path.rename(attempt.path.with_name(f"{FORGOTTEN}{attempt.path.name}")))


def _restore(attempt: AttemptDir) -> AttemptDir:
    restored = AttemptDir(attempt.path.rename(attempt.path.with_name(attempt.path.name.removeprefix(FORGOTTEN))))
    (restored.path / _RECORD).unlink(missing_ok=True)
    return restored


class _Removable(Frozen):
    """A checkpoint that a rule selects."""

    path: Path
    bytes: int
    rule: Annotated[str, ("superseded", "finished", "failed")]


class StageUse(Frozen):
    """What a stage occupies."""

    key: str
    state: str
    checkpoint_bytes: int
    other_bytes: int
    removable: tuple[_Removable, ...]


def stage_use(
    runs: Path, key: str, state: str, *, needed: Collection[str], rules: Collection[str], before: float
) -> StageUse:
    """Return what a stage in this state occupies. `needed`: stages whose last checkpoint others build on.

    Only checkpoints from before the unix time `before` are selected.
    """
    known = [*attempts(runs, key), *forgotten_attempts(runs, key)]
    checkpoints = sum(size_of(attempt.checkpoints) for attempt in known)
    others = sum(size_of(attempt.path) for attempt in known) - checkpoints
    selected = [
        _Removable(path, size_of(path), rule)
        for rule, path in _selected(runs, key, state, needed)
        if rule in rules and path.stat().st_mtime < before
    ]
    return StageUse(key, state, checkpoints, others, tuple(selected))


def needed_by(entries: Iterable[Entry], seen: Mapping[str, StageStatus]) -> set[str]:
    """Return the stages that a stage of the entries builds on which has no result yet. `seen`: statuses by key."""
    stages = [stage for entry in entries for stage in entry.cell.stages]
    return {parent for stage in stages if seen[stage.key].state not in RESULTS for parent in stage.parents}


def remove(runs: Path, use: StageUse) -> int:
    """Delete the selected checkpoints of a stage, and return the bytes. Does nothing if its state has changed.

    A checkpoint is renamed first, so that no reader sees half of one. Raises OSError.
    """
    with locks.locked(claims_lock(runs)):
        if observe(runs, use.key).state != use.state:
            return 0
        paths = [one.path for one in use.removable]
        aside = [path.rename(path.with_name(f".deleted-{path.name}-{os.getpid()}")) for path in paths]
    for path in aside:
        shutil.rmtree(path)
    return sum(one.bytes for one in use.removable)


def size_of(path: Path) -> int:
    """Return the bytes of a folder's files, hard-linked ones once. Files that vanish meanwhile count nothing."""
    seen: dict[tuple[int, int], int] = {}
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                found = os.lstat(f"{folder}/{name}")
            except FileNotFoundError:
                continue
            seen[found.st_dev, found.st_ino] = found.st_size
    return sum(seen.values())


def _selected(runs: Path, key: str, state: str, needed: Collection[str]) -> Iterator[tuple[str, Path]]:
    """Yield the rule and the path of each checkpoint that some rule selects."""
    yield from ((SUPERSEDED, path) for path in _checkpoints(forgotten_attempts(runs, key)))
    own = _checkpoints(attempts(runs, key))
    if state == "done":
        with suppress(GpasError):  # stages without a checkpoint after the last update, or it is gone
            last = last_checkpoint(runs, key)
            kept = {step for attempt in attempts(runs, key) for step in attempt.read_attempt().cadence.keep}
            for path in own:
                if path != last and step_of(path) not in kept:
                    yield SUPERSEDED, path
                elif key not in needed:
                    yield FINISHED, path
    elif state in RESULTS:
        yield from ((SUPERSEDED, path) for path in own)
    elif state in _FAILED_STATES:
        yield from ((FAILED, path) for path in own)


def _checkpoints(known: Iterable[AttemptDir]) -> list[Path]:
    return [path for path in newest_first(attempt.checkpoints for attempt in known) if path.is_dir()]
