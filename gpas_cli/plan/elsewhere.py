"""The cost of jobs on common GPUs, for a plan on a machine that has none or too few."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from gpas_cli.plan.device_memory import JobMemory, memory_of_jobs
from gpas_cli.plan.estimate import Estimate, estimate
from gpas_cli.plan.gpus import MFU_SOURCE, NamedGpus
from gpas_cli.plan.sizes import SizeCost, by_size
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.spec.cell import Cell, distinct
from gpas_cli.spec.flops import peak_flops

GPUS = ("A100", "H100", "H200", "B200")
NODE_GPUS = 8  # the number of GPUs that the jobs share, unless the largest job requests more


@dataclass(frozen=True)
class CostElsewhere:
    """The cost of jobs on `machine`. `names`: the GPUs with these peaks, whose estimates are equal."""

    names: tuple[str, ...]
    machine: NamedGpus
    estimate: Estimate
    sizes: tuple[SizeCost, ...]

    @cached_property
    def too_large(self) -> list[JobMemory]:
        """The jobs that do not fit one of these GPUs, by size."""
        kinds = (replace(self.machine, name=name) for name in self.names)
        found = (one for kind in kinds for one in memory_of_jobs([work.job for work in self.estimate.works], kind))
        return [one for one in found if one.warning()]


def costs_elsewhere(
    runs: Path, cells: Iterable[Cell], jobs: Sequence[StageJob], resume: Mapping[str, int]
) -> tuple[CostElsewhere, ...]:
    """Return the cost of `jobs` and of the sizes of `cells` on each of GPUS; nothing without jobs."""
    if not jobs:
        return ()
    chosen = list(cells)
    number = max(NODE_GPUS, *(job.resources.gpus for job in jobs))
    return tuple(_cost(runs, names, number, chosen, jobs, resume) for names in _alike(jobs))


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


def _cost(
    runs: Path,
    names: tuple[str, ...],
    number: int,
    cells: Sequence[Cell],
    jobs: Sequence[StageJob],
    resume: Mapping[str, int],
) -> CostElsewhere:
    machine = NamedGpus((), (), names[0], number, None)
    guess = estimate(runs, jobs, machine, resume)
    return CostElsewhere(names, machine, guess, tuple(by_size(cells, guess.works)))
