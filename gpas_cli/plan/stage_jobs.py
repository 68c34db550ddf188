"""The jobs that cells need: one per stage, even if several cells share it, after the jobs that it depends on."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from itertools import chain
from typing import Any

from gpas_cli.grid.declared import Entry
from gpas_cli.spec.cell import Cell, Stage
from gpas_cli.spec.data import TextDemand
from gpas_cli.spec.extensions import of_cell
from gpas_cli.spec.run import Cadence, Monitoring, Resources
from gpas_cli.store.records import StageRecord, Trunk
from gpas_cli.structure import Frozen


class StageJob(Frozen, kw_only=True):
    """One stage as a job, with the grid and name of the first entry that needs it."""

    kind: str
    key: str
    parents: tuple[str, ...]
    cell: Cell
    grid: str
    name: str
    axes: Mapping[str, Any]
    cadence: Cadence
    watch: Monitoring
    resources: Resources
    text_resources: Resources = field(default_factory=Resources)
    text: str = ""  # the key of the job that tokenises its text, "" if the text is cached (`plan.texts`)
    larger: tuple[str, ...] = ()  # the resources of which a later attempt may ask for more (`Resources.growing`)
    again: str = ""  # what its next attempt has more of, "" for the same as before
    trunk: Trunk | None = None  # the training whose last checkpoint it starts from (`plan.trunks`)
    awaits_trunk: bool = False  # whether that is still to be trained
    is_trunk: bool = False  # whether no cell has asked for it, and others start from it
    demand: TextDemand | None = None  # the text that a tokenising job prepares, None for other jobs

    @property
    def id(self) -> str:
        return f"{self.grid}/{self.name}"

    @property
    def before(self) -> tuple[str, ...]:
        """The keys of the stages that this one builds on, without a trunk that is finished."""
        return (*self.parents, self.trunk.key) if self.trunk and self.awaits_trunk else self.parents

    @property
    def after(self) -> tuple[str, ...]:
        """The keys of the jobs that must succeed before this one starts."""
        return (*self.before, self.text) if self.text else self.before

    def keeping(self, updates: Iterable[int]) -> "StageJob":
        """Return the job with the checkpoints of these updates kept too."""
        kept = tuple(sorted({*self.cadence.keep, *updates}))
        return self if kept == self.cadence.keep else replace(self, cadence=replace(self.cadence, keep=kept))

    @property
    def uses(self) -> tuple[str, ...]:
        """The extensions that the job executes."""
        return of_cell(self.cell.needed_by(self.kind))

    def record(self) -> StageRecord:
        """Return the record of the job for run directories, including the source code of the plugins that it needs."""
        cell = self.cell.needed_by(self.kind)
        stages = [stage.kind for stage in cell.later if stage.kind.origin]
        return StageRecord(
            plugin=cell.model.norm.origin,
            stage_plugins=tuple(dict.fromkeys(kind.origin for kind in stages if kind.origin)),
            title=next((kind.title for kind in stages if kind.name == self.kind), ""),
            stage=self.kind,
            key=self.key,
            parents=self.parents,
            text=self.text,
            trunk=self.trunk,
            demand=self.demand,
            cell=cell.to_mapping(),
            grid=self.grid,
            name=self.name,
            axes=dict(self.axes),
            resources=self.resources,
            cadence=self.cadence,
            watch=self.watch,
        )


def stage_jobs(entries: Iterable[Entry]) -> dict[str, StageJob]:
    """Return key -> job for every stage of the entries, with what they start from, parents first."""
    entries = list(entries)
    named = {entry.cell.stages[0].key: entry for entry in reversed(entries)}
    jobs: dict[str, StageJob] = {}
    for entry in entries:
        for job in _chain(entry, entry.cell, named):
            jobs[job.key] = jobs[job.key].keeping(job.cadence.keep) if job.key in jobs else job
    return jobs


def stage_keys(entries: Iterable[Entry]) -> set[str]:
    """Return the keys of `stage_jobs` without building the jobs."""
    return {key for entry in entries for key in chain_keys(entry.cell)}


def chain_keys(cell: Cell) -> set[str]:
    """Return the keys of the stages of a cell and of its teachers."""
    teacher = cell.teacher()
    keys = {stage.key for stage in cell.stages}
    return keys | chain_keys(teacher) if teacher else keys


def _chain(entry: Entry, cell: Cell, named: Mapping[str, Entry]) -> Iterator[StageJob]:
    teacher = cell.teacher()
    if teacher is not None:
        # A teacher that the grid does not declare is named after its student.
        alone = replace(entry, cell=teacher, name=f"{entry.name}.teacher", axes={}, start=None)
        own = named.get(teacher.stages[0].key) or entry.start or alone
        yield from _chain(own, teacher, named)
    for stage in cell.stages:
        yield _job(stage, entry, cell)


def _job(stage: Stage, entry: Entry, cell: Cell) -> StageJob:
    job = StageJob(
        kind=stage.kind,
        key=stage.key,
        parents=stage.parents,
        cell=cell,
        grid=entry.grid,
        name=entry.name,
        axes=entry.axes,
        cadence=entry.cadence,
        watch=entry.watch,
        resources=entry.resources_of(stage),
        text_resources=entry.text_resources,
    )
    if not stage.declared.trains:
        return job
    return job.keeping(chain.from_iterable(later.parameters.keeps(cell.optim.updates) for later in cell.later))
