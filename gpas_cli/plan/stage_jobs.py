"""The jobs that cells need: one per stage, also when several cells share it, after the jobs it depends on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpas_cli.data.requirements import TextRequirement
from gpas_cli.spec.cell import Cell, Stage
from gpas_cli.spec.parse import plain
from gpas_cli.spec.run import Cadence, Monitoring, Resources

if TYPE_CHECKING:
    from gpas_cli.grid.entry import Entry


@dataclass(frozen=True, kw_only=True)
class StageJob:
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
    text: str = ""  # key of the job that tokenises its text, "" if that is done (`plan.tokenisation`)
    demand: TextRequirement | None = None  # what a job that tokenises prepares

    @property
    def id(self) -> str:
        return f"{self.grid}/{self.name}"

    @property
    def after(self) -> tuple[str, ...]:
        """The keys of the jobs that must succeed before this one starts."""
        return (*self.parents, self.text) if self.text else self.parents

    def facts(self) -> dict[str, Any]:
        """Return the part of attempt.json that describes the job, including the text of the plugins it needs."""
        return {
            **self._plugins(),
            "stage": self.kind,
            "key": self.key,
            "parents": list(self.parents),
            **({"text": self.text} if self.text else {}),
            **({"demand": plain(self.demand)} if self.demand else {}),
            "cell": self.cell.to_mapping(),
            "grid": self.grid,
            "name": self.name,
            "axes": dict(self.axes),
            "resources": plain(self.resources),
            "cadence": plain(self.cadence),
            "watch": plain(self.watch),
        }

    def _plugins(self) -> dict[str, Any]:
        """Return the plugins behind the cell's scheme and stages, and the title of a stage that one of them defines."""
        scheme = self.cell.model.norm.origin
        stages = [stage.declared for stage in self.cell.stages if stage.declared.origin]
        own = next((kind for kind in stages if kind.name == self.kind), None)
        return {
            **({"plugin": plain(scheme)} if scheme else {}),
            **({"stage_plugins": [plain(origin) for origin in {kind.origin: 0 for kind in stages}]} if stages else {}),
            **({"title": own.title} if own and own.title else {}),
        }


def stage_jobs(entries: Iterable[Entry]) -> dict[str, StageJob]:
    """Return key -> job of every stage of the entries that this version can run: parents first, including teachers."""
    entries = list(entries)
    named = {entry.cell.stages[0].key: entry for entry in reversed(entries)}
    jobs: dict[str, StageJob] = {}
    for entry in entries:
        for stage, job in _chain(entry, entry.cell, named):
            if stage.declared.runnable and all(parent in jobs for parent in job.parents):
                jobs.setdefault(job.key, job)
    return jobs


def blocked(entry: Entry) -> tuple[str, ...]:
    """Return the kinds of the entry's stages that this version cannot run, or whose prerequisites it cannot run."""
    jobs = stage_jobs([entry])
    return tuple(stage.kind for stage in entry.cell.stages if stage.key not in jobs)


def _chain(entry: Entry, cell: Cell, named: Mapping[str, Entry]) -> Iterator[tuple[Stage, StageJob]]:
    teacher = cell.teacher()
    if teacher is not None:
        yield from _chain(_as_teacher(entry, teacher, named), teacher, named)
    for stage in cell.stages:
        yield stage, _job(stage, entry, cell)


def _as_teacher(entry: Entry, teacher: Cell, named: Mapping[str, Entry]) -> Entry:
    """Return the entry of the teacher, or one named after its pupil if the grid does not declare the teacher."""
    own = named.get(teacher.stages[0].key)
    return own if own is not None else replace(entry, cell=teacher, name=f"{entry.name}.teacher", axes={})


def _job(stage: Stage, entry: Entry, cell: Cell) -> StageJob:
    return StageJob(
        kind=stage.kind,
        key=stage.key,
        parents=stage.parents,
        cell=cell,
        grid=entry.grid,
        name=entry.name,
        axes=entry.axes,
        cadence=entry.cadence,
        watch=entry.watch,
        resources=entry.resources if stage.declared.trains else entry.resources.single_process(),
        text_resources=entry.text_resources,
    )
