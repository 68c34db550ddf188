"""Bring the results of another project's run directories into this one: `gpas db merge`.

A stage that has a result there and none here is copied with all its attempts, under the next free numbers. The
imported.json of a copy says where it comes from. A result that is here already is kept, and compared with the other.
"""

import hashlib
import math
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated

from gpas_cli.errors import GpasError, StoreError, explain, user_name
from gpas_cli.file_systems import existing
from gpas_cli.files import open_regular
from gpas_cli.state import locks
from gpas_cli.state.claims import claims_lock
from gpas_cli.state.observe import observe
from gpas_cli.state.status import ALIVE, RESULTS, UNREADABLE, StageStatus
from gpas_cli.state.view import SchedulerView
from gpas_cli.store import owner
from gpas_cli.store.records import AttemptRecord, Imported
from gpas_cli.store.rundir import IMPORTED, AttemptDir, all_stages, attempts, create_attempt, write_record
from gpas_cli.store.snapshot import copy_snapshot
from gpas_cli.structure import Frozen
from gpas_cli.words import byte_size

_CHECKPOINTS = "checkpoints"
_DEEPEST = 16  # levels of folders in an attempt; a stranger's project may have a tree without an end
# Files that concern a process that ran elsewhere, or a stage that is no longer the same.
_LEFT = frozenset({"attempt.json", "alive.lock", "process.json", "cancel.json", IMPORTED})
_NOT_COMPARED = ("second", "memory", "mfu")  # parts of the names of metrics that differ between equal trainings


class MergedStage(Frozen):
    """What the merge did with one stage of the other project."""

    key: str
    what: Annotated[str, ("copied", "kept", "known", "busy", "unreadable")]
    name: Annotated[str, "the name of its cell there"] = ""
    attempts: int = 0
    differs: Annotated[
        tuple[str, float, float] | None, "a metric that differs from the kept one: its name, its value here, there"
    ] = None
    problem: str = ""


class Merge(Frozen):
    """How to merge."""

    runs: Path
    there: Path  # the other run directories
    checkpoints: bool = False  # whether to copy checkpoints, too
    dry_run: bool = False  # nothing is copied

    @cached_property
    def project(self) -> str:
        """The id of the other project, "" if it has none or it cannot be read."""
        try:
            return owner.of(self.there).id
        except StoreError:
            return ""

    def stages(self) -> Iterator[MergedStage]:
        """Copy stage by stage and yield what was done with each. Stages without a result there are left out.

        Raises GpasError if both folders are the same, OSError if a copy cannot be written.
        """
        if self.there.resolve() == self.runs.resolve():
            raise GpasError(f"{self.there} has this project's own run directories")
        view = SchedulerView(self.there)
        for folder in all_stages(self.there):
            found = observe(self.there, folder.name, view)
            if found.state in RESULTS:
                yield self._merge(folder.name, found)
            elif found.state == "unknown" and not found.source:  # it may have a result, which cannot be read
                yield MergedStage(folder.name, "unreadable", problem=found.evidence)

    def _merge(self, key: str, found: StageStatus) -> MergedStage:
        try:
            tried = attempts(self.there, key)
            records = [attempt.read_attempt() for attempt in tried]
            theirs = [_digest(attempt) for attempt in tried]
            if other := next((record.key for record in records if record.key != key), ""):
                return MergedStage(key, "unreadable", problem=f"an attempt.json there is of another stage, {other!r}")
            name = f"{records[-1].grid}/{records[-1].name}"
            with locks.locked(claims_lock(self.runs)):
                own = observe(self.runs, key)
                if own.state in ALIVE:
                    return MergedStage(key, "busy", name, len(tried))
                if own.state in RESULTS:
                    return self._kept(key, name, theirs, own, found)
                if not self.dry_run:
                    for attempt, record in zip(tried, records, strict=True):
                        self._copy(attempt, record)
        except UNREADABLE as error:
            return MergedStage(key, "unreadable", problem=explain(error))
        return MergedStage(key, "copied", name, len(tried))

    def _kept(self, key: str, name: str, theirs: list[bytes], own: StageStatus, found: StageStatus) -> MergedStage:
        what = "known" if {_digest(attempt) for attempt in attempts(self.runs, key)}.issuperset(theirs) else "kept"
        return MergedStage(key, what, name, len(theirs), _difference(own.metrics, found.metrics))

    def _copy(self, attempt: AttemptDir, record: AttemptRecord) -> None:
        origin = Imported(
            t=time.time(),
            user=user_name(os.getuid()),
            project=self.project,
            runs=str(self.there.resolve()),
            number=attempt.number,
        )

        files = list(_files(attempt.path, self.checkpoints))
        size, free = sum(path.stat().st_size for path in files), shutil.disk_usage(existing(self.runs)).free
        if size > free:  # a sparse file may be as large as it likes
            raise StoreError(f"{attempt.path} has {byte_size(size)}, and {byte_size(free)} are free")

        def fill(aside: Path) -> None:
            for path in files:
                target = aside / path.relative_to(attempt.path)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            write_record(aside / IMPORTED, origin)

        create_attempt(self.runs, record, fill)
        copy_snapshot(self.there, self.runs, record.code)


def run_directories(path: Path) -> Path:
    """Return the run directories that `path` names: a project's folder, or the run directories themselves.

    Raises GpasError if there are none.
    """
    for folder in (path / "runs", path):
        if next(all_stages(folder), None) is not None:
            return folder
    raise GpasError(f"{path}: no run directories here; name the folder of a project, or its runs/")


def _files(folder: Path, checkpoints: bool, depth: int = _DEEPEST) -> Iterable[Path]:
    """Yield the regular files of an attempt that are copied. Links are left out: they may lead out of the project."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or path.name in _LEFT or path.name.startswith("."):
            continue
        if path.is_file():
            yield path
        elif depth and path.is_dir() and (checkpoints or path.name != _CHECKPOINTS):
            yield from _files(path, checkpoints, depth - 1)


def _digest(attempt: AttemptDir) -> bytes:
    """Return a digest of a journal, b"" if there is none. Raises OSError if it cannot be read or is no file."""
    try:
        with open_regular(attempt.journal_path) as file:
            return hashlib.file_digest(file, "sha256").digest()
    except FileNotFoundError:
        return b""


def _difference(here: Mapping[str, float], there: Mapping[str, float]) -> tuple[str, float, float] | None:
    """Return the first metric, times apart, that differs in its first six digits."""
    for name in here:
        if name in there and not any(part in name for part in _NOT_COMPARED):
            own, other = float(here[name]), float(there[name])
            if not (math.isclose(own, other, rel_tol=1e-6) or (math.isnan(own) and math.isnan(other))):
                return name, own, other
    return None
