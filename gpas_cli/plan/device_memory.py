"""The predicted memory of each GPU of a training, by size of network."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

from gpas_cli.plan.machine import GpuKind, Machine
from gpas_cli.plan.sizes import Names, size_label
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.spec.cost import DeviceMemory, predicted
from gpas_cli.spec.stage import PRETRAIN
from gpas_cli.words import byte_size, count


@dataclass(frozen=True)
class JobMemory:
    """The memory of each of `devices` GPUs of the kind `gpu`, for `jobs` trainings of one size and recipe."""

    size: str
    jobs: int
    gpu: str
    devices: int
    memory: DeviceMemory

    def warning(self) -> str:
        """Return a warning that the training does not fit the GPUs, "" if it does."""
        if self.memory.fits:
            return ""
        needs = f"{byte_size(self.memory.total)} on each of {count(self.devices, 'GPU')}"
        what = f"{count(self.jobs, 'training')} of size {self.size} would take about {needs}"
        has = f"{self.gpu} has {byte_size(self.memory.device_bytes)}, not all of it usable"
        remedy = "raise resources.gpus" + (", or leave out strategy: ddp" if self.memory.strategy == "ddp" else "")
        return f"{what}, and {has}: {remedy}"


def memory_of_jobs(jobs: Iterable[StageJob], machine: Machine, names: Names) -> list[JobMemory]:
    """Return the memory of the pretrainings among `jobs` on the GPUs of `machine`; nothing if their kind is unknown.

    For cells of one size and distribution it is the largest. `names`: of sizes that are not built in.
    """
    kind = machine.gpu_kind()
    if kind is None:
        return []
    known: dict[Hashable, JobMemory] = {}
    groups: dict[Hashable, JobMemory] = {}
    for job in jobs:
        if job.kind != PRETRAIN or machine.device(job.resources) != "cuda":
            continue
        same_memory = (job.cell.seedless, id(job.resources))
        if same_memory not in known:
            known[same_memory] = _predicted(job, machine.needs(job.resources), kind, names)
        one = known[same_memory]
        group = (one.size, one.devices, one.memory.strategy, one.memory.recompute)
        before = groups.get(group, one)
        largest = max(before, one, key=lambda it: it.memory.total)
        groups[group] = replace(largest, jobs=before.jobs + 1 if group in groups else 1)
    return list(groups.values())


def _predicted(job: StageJob, devices: int, kind: GpuKind, names: Names) -> JobMemory:
    memory = predicted(job.cell, job.resources, kind.memory, devices)
    return JobMemory(size_label(job.cell, names), 1, kind.name, devices, memory)
