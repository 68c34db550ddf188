"""The cost of jobs on common GPUs, for a plan on a machine that has none or too few."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from gpas_cli.grid.entry import Entry
from gpas_cli.plan.device_memory import JobMemory, memory_of_jobs
from gpas_cli.plan.estimate import Estimate, Sized, estimate
from gpas_cli.plan.gpus import MFU_SOURCE, NamedGpus
from gpas_cli.plan.sizes import Names, SizeCost, by_size, size_names
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.spec.cell import distinct
from gpas_cli.spec.cost import peak_flops

GPUS = ("A100", "H100", "H200", "B200")
NODE_GPUS = 8  # the number of GPUs that the jobs share, unless the largest job requests more


@dataclass(frozen=True)
class CostElsewhere:
    """The cost of jobs on `machine`. `names`: the GPUs with these peaks, whose estimates are equal."""

    names: tuple[str, ...]
    machine: NamedGpus
    estimate: Estimate
    sizes: tuple[SizeCost, ...]
    size_names: Names

    @cached_property
    def too_large(self) -> list[JobMemory]:
        """The jobs that do not fit one of these GPUs, by size."""
        kinds = (replace(self.machine, name=name) for name in self.names)
        jobs = [work.job for work in self.estimate.works]
        found = (one for kind in kinds for one in memory_of_jobs(jobs, kind, self.size_names))
        return [one for one in found if one.warning()]


def costs_elsewhere(
    runs: Path, entries: Sequence[Entry], jobs: Sequence[StageJob], resume: Mapping[str, int], sized: Sized
) -> tuple[CostElsewhere, ...]:
    """Return the cost of `jobs` and of the sizes of `entries` on each of GPUS; nothing without jobs."""
    if not jobs:
        return ()
    number = max(NODE_GPUS, *(job.resources.gpus for job in jobs))
    known = size_names(entries)
    found = []
    for names in _alike(jobs):
        machine = NamedGpus((), (), names[0], number, None)
        guess = estimate(runs, jobs, machine, resume, sized)
        costs = by_size((entry.cell for entry in entries), guess.works, known)
        found.append(CostElsewhere(names, machine, guess, tuple(costs), known))
    return tuple(found)


def basis(costs: Sequence[CostElsewhere]) -> str:
    """Return the assumptions of the estimates as a sentence."""
    cells = distinct(work.job.cell for cost in costs for work in cost.estimate.works)
    precisions = sorted({cell.precision for cell in cells})
    sheets = "; ".join(f"{', '.join(cost.names)}: {cost.machine.peaks(precisions)}" for cost in costs)
    reached = f"MFU, the share of the peak that training reaches, {MFU_SOURCE}"
    return f"assumed, not measured: {reached}; peaks of the data sheets: {sheets}"


def _alike(jobs: Iterable[StageJob]) -> list[tuple[str, ...]]:
    """Return GPUS in groups with the same peaks in the precisions of the jobs."""
    precisions = sorted({cell.precision for cell in distinct(job.cell for job in jobs)})
    groups: dict[tuple[float | None, ...], tuple[str, ...]] = {}
    for name in GPUS:
        peaks = tuple(peak_flops(name, precision) for precision in precisions)
        groups[peaks] = (*groups.get(peaks, ()), name)
    return list(groups.values())
