"""Jobs that tokenise texts before the jobs that read them, so that no GPU of a cluster waits for tokenisation.

Such a job is a `StageJob` with a key, attempts, a journal and a claim. Its key is a hash of the corpus and of the
amount needed; a corpus that is tokenised completely has one key for all readers. The job is done if the text is in the
token cache. A corpus that was tokenised and then deleted gets a new job.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpas_cli.data import disk
from gpas_cli.data.prepare import open_source
from gpas_cli.data.text_usage import TextRequirement, requirements
from gpas_cli.errors import DataError
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.project import Project
from gpas_cli.spec.parse import plain
from gpas_cli.spec.stage import TOKENISE
from gpas_cli.state.claims import read_claim
from gpas_cli.state.describe import facts_of
from gpas_cli.state.observe import observe
from gpas_cli.state.status import CellStatus, StageStatus
from gpas_cli.state.view import SchedulerView

if TYPE_CHECKING:
    from pathlib import Path


def with_texts(project: Project, jobs: Iterable[StageJob]) -> list[StageJob]:
    """Return `jobs`, preceded by a job for each corpus that they read and that is not tokenised yet. Reads no text.

    A job that depends on another of `jobs` reads the text of that other job.
    """
    jobs = list(jobs)
    keys = {job.key for job in jobs}
    first = [job for job in jobs if keys.isdisjoint(job.parents)]
    readers: dict[Hashable, list[StageJob]] = {}  # by `Cell.seedless`
    for job in first:
        readers.setdefault(job.cell.seedless, []).append(job)
    texts: dict[str, StageJob] = {}
    read: dict[str, str] = {}
    for wanted in requirements(same[0].cell for same in readers.values()):
        mine = [job for same in readers.values() if wanted.serves(same[0].cell) for job in same]
        if key := _needed_key(project, wanted):
            texts[key] = _job(key, wanted, mine[0])
            read |= {job.key: key for job in mine}
    return [*texts.values(), *(job.with_text(read.get(job.key, "")) for job in jobs)]


@dataclass(frozen=True)
class Awaited:
    """A corpus that cells wait for: its name, and the key and status of its job, with the scheduler's report."""

    name: str
    key: str
    status: StageStatus


def awaited(runs: Path, states: Sequence[CellStatus]) -> Iterator[Awaited]:
    """Yield the corpora that queued cells are waiting for, and those that cancelled cells waited for."""
    waiting = [state for state in states if state.claim and state.state in ("queued", "cancelled")]
    keys = dict.fromkeys(key for state in waiting if state.claim for key in state.claim.after)
    alive = SchedulerView(runs)
    trained = {stage.key for state in states for stage in state.entry.cell.stages}
    for key in (key for key in keys if key not in trained):
        facts = facts_of(alive, key)
        if facts.get("stage") == TOKENISE:
            claim = read_claim(runs, key)
            seen = observe(runs, key, alive)
            yield Awaited(str(facts["name"]), key, replace(seen, job=seen.job or alive.job_of(claim)))


def how_far(seen: StageStatus) -> str:
    """Return the state of a tokenising job as a short phrase."""
    share = f" {seen.fraction:.0%}".replace("%", " %") if seen.state == "running" and seen.fraction is not None else ""
    doing = f" ({seen.progress.phase})" if seen.state == "running" and seen.progress else ""
    why = f": {seen.cause}" if seen.cause else ""
    return f"{seen.state}{share}{doing}{why}"


def _needed_key(project: Project, wanted: TextRequirement) -> str:
    """Return the key of the job that must tokenise the corpus, "" if it is already tokenised."""
    if _is_cached(project, wanted):
        return ""
    generation = 0
    while observe(project.runs, key := _key(project, wanted, generation)).state == "done":
        if _is_cached(project, wanted) is not False:
            return ""
        generation += 1
    return key


def _is_cached(project: Project, wanted: TextRequirement) -> bool | None:
    from gpas_cli.data.prepare import present  # and numpy, which `gpas status` does without

    try:
        return present(wanted.data, wanted.vocab, project.cache, root=project.config.parent, rows=wanted.rows)
    except DataError:  # the job reports the error if the text is still missing then, or on its node
        return False


def _key(project: Project, wanted: TextRequirement, generation: int) -> str:
    if not open_source(wanted.data, project.cache, project.config.parent).endless:
        wanted = replace(wanted, data=replace(wanted.data, eval_tokens=1), rows=0)
    return disk.digest([TOKENISE, plain(wanted), generation])


def _job(key: str, wanted: TextRequirement, reader: StageJob) -> StageJob:
    resources = reader.text_resources
    return replace(
        reader, kind=TOKENISE, key=key, parents=(), name=wanted.label, axes={}, resources=resources, demand=wanted
    )
