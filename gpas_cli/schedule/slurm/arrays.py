"""Job arrays for stage jobs: one per resource profile, as large as the scheduler allows.

A job whose parent has yet to run waits for it in SLURM. If every parent has one child of the kind, element i of the
children's array waits for element i of the parents' (aftercorr); otherwise the children of the same parents form an
array that waits for all of these (afterok).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.schedule.slurm.script import parameters

_Element = tuple[StageJob, ...]


@dataclass(frozen=True)
class ArrayIndex:
    """The array element in which a stage will run. `job` is the job id of the array."""

    job: str
    index: int


@dataclass(frozen=True)
class Array:
    """A job array to submit. Index i runs `elements[i]`; empty elements are not submitted."""

    elements: tuple[_Element, ...]
    dependency: str = ""

    @property
    def first(self) -> StageJob:
        return next(job for element in self.elements for job in element)

    @property
    def jobs(self) -> list[StageJob]:
        return [job for element in self.elements for job in element]

    @property
    def indices(self) -> list[int]:
        return [i for i, element in enumerate(self.elements) if element]

    def halves(self) -> list[Array]:
        """Return two arrays of half as many elements. Those that wait for another array's keep their indices."""
        middle = self.indices[len(self.indices) // 2]
        keep = middle if self.dependency.startswith("aftercorr") else 0
        first, second = self.elements[:middle], self.elements[middle:]
        return [Array(first, self.dependency), Array(((),) * keep + second, self.dependency)]

    def spec(self, at_once: int) -> str:
        """Return the indices in sbatch's form: 0-9%4, 1,3-5."""
        throttle = f"%{at_once}" if at_once and at_once < len(self.indices) else ""
        return ranges(self.indices) + throttle


def arrays(jobs: Sequence[StageJob], waiting: Mapping[str, ArrayIndex], largest: int) -> list[Array]:
    """Return the arrays for `jobs`, none of which is a parent of another. `waiting`: parents that have yet to run."""
    made: list[Array] = []
    for same in _by_profile(jobs):
        made += _packed([job for job in same if not _parents(job, waiting)], largest)
        made += _dependent([job for job in same if _parents(job, waiting)], waiting, largest)
    return made


def _packed(jobs: Sequence[StageJob], largest: int, dependency: str = "") -> Iterator[Array]:
    """Yield arrays of jobs that may start together, `pack` jobs per element."""
    pack = jobs[0].resources.pack if jobs else 1
    elements = [tuple(jobs[i : i + pack]) for i in range(0, len(jobs), pack)]
    for i in range(0, len(elements), largest):
        yield Array(tuple(elements[i : i + largest]), dependency)


def levels(jobs: Sequence[StageJob]) -> Iterator[list[StageJob]]:
    """Yield the jobs in groups, each of which builds only on earlier ones."""
    left = {job.key: job for job in jobs}
    while left:
        ready = [job for job in left.values() if not any(key in left for key in job.after)]
        yield ready
        for job in ready:
            del left[job.key]


def _by_profile(jobs: Sequence[StageJob]) -> list[list[StageJob]]:
    found: dict[str, list[StageJob]] = {}
    for job in jobs:
        asked = {**parameters(job.resources), "pack": job.resources.pack, "kind": job.kind}
        found.setdefault(json.dumps(asked, sort_keys=True), []).append(job)
    return list(found.values())


def _parents(job: StageJob, waiting: Mapping[str, ArrayIndex]) -> tuple[ArrayIndex, ...]:
    return tuple(waiting[key] for key in job.after if key in waiting)


def _dependent(jobs: Sequence[StageJob], waiting: Mapping[str, ArrayIndex], largest: int) -> Iterator[Array]:
    after: dict[tuple[ArrayIndex, ...], list[StageJob]] = {}
    for job in jobs:
        after.setdefault(_parents(job, waiting), []).append(job)
    alone = {places[0]: same[0] for places, same in after.items() if len(places) == len(same) == 1}
    by_job: dict[str, dict[int, StageJob]] = {}
    for place, job in alone.items():
        by_job.setdefault(place.job, {})[place.index] = job
    for parent, at in by_job.items():
        elements = tuple((at[i],) if i in at else () for i in range(max(at) + 1))
        yield Array(elements, f"aftercorr:{parent}")
    for places, same in after.items():
        if len(places) == len(same) == 1:
            continue
        names = ":".join(f"{place.job}_{place.index}" for place in places)
        yield from _packed(same, largest, f"afterok:{names}")


def ranges(indices: Sequence[int]) -> str:
    """Return ascending indices in SLURM's form: 0-9, 1,3-5."""
    return ",".join(f"{a}-{b}" if a != b else f"{a}" for a, b in _ranges(indices))


def _ranges(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = previous = indices[0]
    for index in indices[1:]:
        if index != previous + 1:
            yield start, previous
            start = index
        previous = index
    yield start, previous
