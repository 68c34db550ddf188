"""The jobs of a plan by stage: what each of them asks for, and their cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpas_cli.plan.estimate import Work
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.spec.run import Resources
from gpas_cli.words import count


@dataclass(frozen=True)
class StageCost:
    """The jobs of one kind of stage with the same resources. Jobs that tokenise are a kind too, at no estimated cost.

    `hours`: of the longest job. `gpu_hours` and `core_hours`: of all jobs.
    """

    stage: str
    resources: Resources
    jobs: int
    hours: float
    gpu_hours: float
    core_hours: float


def by_stage(jobs: Iterable[StageJob], works: Sequence[Work]) -> list[StageCost]:
    """Return the cost of each group of jobs, in the order of the jobs."""
    groups: dict[tuple[str, Resources], list[StageJob]] = {}
    for job in jobs:
        groups.setdefault((job.kind, job.resources), []).append(job)
    work_of = {work.job.key: work for work in works}
    return [
        _cost(stage, resources, len(same), [work_of[job.key] for job in same if job.key in work_of])
        for (stage, resources), same in groups.items()
    ]


def _cost(stage: str, resources: Resources, jobs: int, works: Sequence[Work]) -> StageCost:
    return StageCost(
        stage=stage,
        resources=resources,
        jobs=jobs,
        hours=max((work.hours for work in works), default=0.0),
        gpu_hours=sum(work.hours * work.devices for work in works if work.device == "cuda"),
        core_hours=sum(work.hours * work.devices for work in works if work.device == "cpu"),
    )


def described(resources: Resources) -> str:
    """Return what a job asks for: "2 GPUs, 16 cores, 48G, 1-00:00:00, partition gpu"; of resources that grow by
    attempt "mem 2G then 4G"."""
    limits = {"mem": resources.mem, "time": resources.time}
    parts = [
        count(resources.gpus, "GPU") if resources.gpus else "",
        count(resources.cpus, "core"),
        f"on {count(resources.nodes, 'node')}" if resources.nodes > 1 else "",
        *(text if isinstance(text, str) else f"{name} {' then '.join(text)}" for name, text in limits.items()),
        f"partition {resources.partition}" if resources.partition else "",
    ]
    return ", ".join(part for part in parts if part)
