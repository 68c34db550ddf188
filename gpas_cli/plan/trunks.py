"""Train once what several trainings begin with: its jobs, and where the others start.

    steps 400, decay 100   |--------------- constant ---------------|-- decay --|
    steps 800, decay 200   |--------------- constant ---------------|----------- constant -----------|-- decay --|
                                                                   300                              600

A trunk is the training at the constant rate until one of these updates, an ordinary cell with its own key: the first
300 updates of both are, bit for bit, those of `trunk(cell, 300)`. docs/explanation/trunks.md explains what follows.

A trunk is worth a job if trainings that have not begun share it and it saves enough of their updates. It starts from a
shorter one in turn. A finished training at the constant rate is a trunk too, whatever it was declared for, as long as
its last checkpoint is there and this version of the code made it.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.grid.declared import Entry
from gpas_cli.plan.estimate import Work
from gpas_cli.plan.stage_jobs import StageJob, stage_jobs
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.data import ENDLESS
from gpas_cli.spec.extensions import of_cell
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.stage import PRETRAIN
from gpas_cli.state.observe import observe, observe_all
from gpas_cli.state.outputs import last_checkpoint, newest_checkpoint
from gpas_cli.state.status import ALIVE, RESULTS
from gpas_cli.store.records import Trunk
from gpas_cli.store.rundir import all_keys, attempts
from gpas_cli.store.snapshot import current_code
from gpas_cli.words import grouped

_WORTH_A_JOB = 0.02  # the least that a trunk saves, of the updates of the trainings that share it
_LONGEST = 100_000_000  # updates
_Made = dict[int, Trunk]  # by the updates that a trunk has done


def trunk(cell: Cell, updates: int) -> Cell:
    """Return the cell that trains only the first `updates` of `cell`, which are at most its `stable_updates`."""
    horizon = (cell.optim.horizon or cell.optim.steps) if _reads_a_part(cell) else 0
    optim = replace(
        cell.optim, schedule="constant", schedule_settings=None, min_ratio=Optim.min_ratio, steps=updates, stop=0,
        horizon=0 if horizon == updates else horizon,
    )  # fmt: skip
    return replace(cell, optim=optim, later=())


def _family(cell: Cell) -> Cell:
    """Return what trainings that share their first updates have in common."""
    return trunk(cell, _LONGEST)


def unshared(cell: Cell) -> str:
    """Return why no training of another length has the first updates of `cell`, "" if one may."""
    optim = cell.optim
    if not optim.stable_updates:
        return f"optim.schedule: {optim.schedule} depends on the length from the start; constant and wsd do not"
    if not cell.depth.is_full:
        return f"depth: {cell.depth.kind} has stages that depend on the length"
    if cell.teacher():
        return "it starts from another training"
    return ""


def _reads_a_part(cell: Cell) -> bool:
    return any(part.source in ENDLESS for part in cell.data.parts)


def jobs_of(
    runs: Path, entries: Iterable[Entry], warn: Callable[[str], None] = lambda text: None
) -> dict[str, StageJob]:
    """Return key -> job for every stage of the entries and for the trunks that they share, what they need first.

    `warn` is called for each trunk that has ended and cannot be continued, so that the cells train alone, and for each
    reason why lengths that an axis names share nothing.
    """
    jobs = stage_jobs(entries)
    named = [job for job in jobs.values() if "optim.steps" in job.axes and job.resources.share != "off"]
    for reason in dict.fromkeys(filter(None, (unshared(job.cell) for job in named))):
        warn(f"trainings of several lengths share no updates: {reason}")
    groups = _families(jobs.values())
    seen = observe_all(runs, [job.key for kindred in groups.values() for job in kindred])
    known = _finished(runs, groups)
    first: dict[str, StageJob] = {}
    for kin, kindred in groups.items():
        idle = [job for job in kindred if seen[job.key].state not in (*RESULTS, *ALIVE)]
        waiting = [job for job in idle if newest_checkpoint(runs, job.key) is None]
        made = dict(known[kin])
        for updates in sorted({job.cell.optim.stable_updates for job in waiting} - made.keys()):
            sharing = [job for job in waiting if job.cell.optim.stable_updates >= updates]
            before = max((update for update in made if update < updates), default=0)
            saved = (len(sharing) - 1) * (updates - before)
            if saved < _WORTH_A_JOB * sum(job.cell.optim.updates for job in sharing) or len(sharing) < 2:
                continue
            job = _job(sharing[0], updates, jobs)
            if observe(runs, job.key).state in RESULTS:
                warn(f"{job.id} cannot be continued and is not used; `gpas retry --done {job.key}` trains it again")
                continue
            first[job.key] = _started(job, made, known[kin])
            made[updates] = Trunk(job.key, updates, job.id)
        first |= {job.key: _started(job, made, known[kin]) for job in waiting if job.key not in first}
    # The trunks come first; a constant training that is one itself is among them.
    return first | {key: first.get(key, job) for key, job in jobs.items()}


def trunk_keys(entries: Iterable[Entry]) -> set[str]:
    """Return the keys of all trunks that trainings of the entries can share, and of those at their decays."""
    groups = _families(stage_jobs(entries).values())
    return {
        trunk(kin, updates).stages[0].key
        for kin, kindred in groups.items()
        for updates in {job.cell.optim.stable_updates for job in kindred if len(kindred) > 1}
    }


def needed_trunks(runs: Path, entries: Iterable[Entry]) -> set[str]:
    """Return the finished trainings from whose last checkpoint a training of the entries without a result may start."""
    groups = _families(stage_jobs(entries).values())
    seen = observe_all(runs, [job.key for kindred in groups.values() for job in kindred])
    wanted = {kin for kin, kindred in groups.items() if any(seen[job.key].state not in RESULTS for job in kindred)}
    return {one.key for made in _finished(runs, wanted).values() for one in made.values()}


def saving(works: Iterable[Work]) -> tuple[int, float]:
    """Return what the trunks of jobs save, compared with each cell alone: updates, and hours of GPUs or cores."""
    updates, hours = 0, 0.0
    for work in works:
        own, start = work.job.cell.optim.updates, work.job.trunk.update if work.job.trunk else 0
        if work.job.is_trunk:
            updates, hours = updates - (own - start), hours - work.device_hours
        elif start:
            updates, hours = updates + start, hours + work.device_hours * (work.whole / work.tokens - 1)
    return updates, hours


def _families(jobs: Iterable[StageJob]) -> dict[Cell, list[StageJob]]:
    """Return the trainings that may share their first updates, by what they have in common."""
    trainings = (job for job in jobs if job.kind == PRETRAIN and job.resources.share != "off")
    sharing = (job for job in trainings if not unshared(job.cell))
    # A checkpoint that a later stage reads must be the training's own.
    return grouped(
        (_family(job.cell), job)
        for job in sharing
        if all(update > job.cell.optim.stable_updates for update in job.cadence.keep)
    )


def _finished(runs: Path, families: Collection[Cell]) -> Mapping[Cell, _Made]:
    """Return the finished trainings at the constant rate that have their last checkpoint, by family."""
    found: dict[Cell, _Made] = defaultdict(dict)
    version = cache(current_code)
    for key in all_keys(runs) if families else ():
        with suppress(GpasError, OSError, IndexError, KeyError):
            record = attempts(runs, key)[-1].read_attempt()
            if record.stage != PRETRAIN or record.cell["optim"]["schedule"] != "constant":
                continue
            cell = record.resolve_cell()
            of_now = record.code == version(of_cell(cell))
            if of_now and not unshared(cell) and (kin := _family(cell)) in families:
                last_checkpoint(runs, key)
                found[kin][cell.optim.updates] = Trunk(key, cell.optim.updates, f"{record.grid}/{record.name}")
    return found


def _job(like: StageJob, updates: int, jobs: Mapping[str, StageJob]) -> StageJob:
    """Return the job of the trunk with so many updates, that of a cell if one declares it."""
    cell = trunk(like.cell, updates)
    key = cell.stages[0].key
    own = replace(like, key=key, cell=cell, name=f"{like.name}.trunk{updates}", axes={}, is_trunk=True)
    return jobs.get(key, own)


def _started(job: StageJob, made: _Made, done: Collection[int]) -> StageJob:
    """Return the job as it starts from the longest trunk that it can. `done`: the trunks that are finished."""
    usable = [update for update, one in made.items() if update <= job.cell.optim.stable_updates and one.key != job.key]
    return replace(job, trunk=made[max(usable)], awaits_trunk=max(usable) not in done) if usable else job
