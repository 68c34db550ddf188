"""The cost and the memory of a plan, by size of network and by stage, and what it adds to the disks."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated

from gpas_cli.data.text_usage import MissingText, measured_speed, missing_texts, requirements
from gpas_cli.file_systems import Free, free
from gpas_cli.grid.declared import Entry
from gpas_cli.plan.estimate import Sized, Work, device_hours
from gpas_cli.plan.machine import Machine
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.project import Project, hub_cache
from gpas_cli.spec.cell import Cell, distinct
from gpas_cli.spec.cost import DeviceMemory, checkpoint_bytes, parameters, predicted
from gpas_cli.spec.finetune import Finetune
from gpas_cli.spec.model import SIZES, Size
from gpas_cli.spec.run import Resources
from gpas_cli.spec.stage import PRETRAIN
from gpas_cli.structure import FLAT, Frozen
from gpas_cli.words import byte_size, count, grouped

_Names = Mapping[Size, str]  # of sizes that are not built in
_Group = tuple[object, ...]
# The share of an estimate that is needed in any case: texts may be shorter, and a file system may compress.
_CERTAIN = 0.8


class SizeCost(Frozen):
    """The cells of one size, batch, length and number of updates."""

    size: str
    cells: int
    jobs: int
    parameters: int
    precision: str
    batch: Annotated[int, "rows per update; 0 for a network that was not trained here"]
    length: Annotated[int, "tokens per row"]
    updates: int
    tokens: Annotated[int, "tokens that a cell trains on, with padding"]
    padded: Annotated[bool, "whether rows are padded: fewer tokens are trained on, and recorded as `train_tokens`"]
    devices: Annotated[int, "GPUs or cores of a job"]
    hours: Annotated[float, "of the longest job"]
    gpu_hours: float
    core_hours: float


def size_names(entries: Iterable[Entry]) -> dict[Size, str]:
    """Return size -> label of the sizes that are not built in, where a label belongs to one size and a size has one."""
    named = ((entry.cell.model.size, entry.axes.get("network", entry.axes.get("size"))) for entry in entries)
    labels = dict.fromkeys((size, str(label)) for size, label in named if label is not None)
    names, sizes = Counter(label for _, label in labels), Counter(size for size, _ in labels)
    return {size: name for size, name in labels if names[name] == sizes[size] == 1 and name not in SIZES}


def size_label(cell: Cell, names: _Names) -> str:
    """Return the name of the cell's size, built in or one of `names`, or "4 layers, 32 wide" if it has none."""
    size = cell.model.size
    built_in = next((name for name, known in SIZES.items() if known == size), "")
    return built_in or names.get(size, f"{count(size.layers, 'layer')}, {size.hidden} wide")


def by_size(cells: Iterable[Cell], works: Sequence[Work], names: _Names) -> list[SizeCost]:
    """Return the cost of each group of equally expensive cells, in the order of the cells.

    Teachers add jobs, but no cells.
    """
    cells = list(cells)
    every = distinct([*cells, *(work.job.cell for work in works)])
    groups = {cell.seedless: _group(cell, names) for cell in every}
    first = {groups[cell.seedless]: cell for cell in reversed(every)}
    numbers = Counter(groups[cell.seedless] for cell in cells)
    mine: dict[_Group, list[Work]] = {group: [] for group in numbers}
    for work in works:
        mine.setdefault(groups[work.job.cell.seedless], []).append(work)
    return [_cost(first[group], numbers[group], found, names) for group, found in mine.items()]


def _group(cell: Cell, names: _Names) -> _Group:
    recipe = (cell.precision, cell.optim.batch, cell.data.length, cell.optim.updates)
    return (size_label(cell, names), parameters(cell), *recipe)


def _cost(cell: Cell, cells: int, works: Sequence[Work], names: _Names) -> SizeCost:
    trained = cell.network is None
    return SizeCost(
        size=size_label(cell, names),
        cells=cells,
        jobs=len(works),
        parameters=(cell.network.parameters if cell.network else 0) or parameters(cell),
        precision=cell.precision,
        batch=cell.optim.batch if trained else 0,
        length=cell.data.length if trained else 0,
        updates=cell.optim.updates if trained else 0,
        tokens=cell.optim.trained_rows * cell.data.length if trained else 0,
        padded=cell.data.layout == "pad",
        devices=max((work.devices for work in works), default=0),
        hours=max((work.hours for work in works), default=0.0),
        **device_hours(works),
    )


class StageCost(Frozen):
    """The jobs to start of one kind of stage with the same resources; `tokenise` is a kind too, without a cost."""

    stage: str
    resources: Annotated[Resources, "what each job asks for"]
    jobs: int
    hours: Annotated[float, "of the longest job"]
    gpu_hours: float
    core_hours: float


def by_stage(jobs: Iterable[StageJob], works: Sequence[Work]) -> list[StageCost]:
    """Return the cost of each group of jobs, in the order of the jobs."""
    groups = grouped(((job.kind, job.resources), job) for job in jobs)
    work_of = {work.job.key: work for work in works}
    costs = []
    for (stage, resources), same in groups.items():
        mine = [work_of[job.key] for job in same if job.key in work_of]
        longest = max((work.hours for work in mine), default=0.0)
        costs.append(StageCost(stage, resources, len(same), longest, **device_hours(mine)))
    return costs


def described(resources: Resources) -> str:
    """Return what a job asks for: "2 GPUs, 16 cores, 48G, 1-00:00:00, partition gpu"; of resources that grow by
    attempt "mem 2G then 4G"."""
    limits = {"mem": resources.mem, "time": resources.time}
    parts = [
        count(resources.gpus, "GPU") if resources.gpus else "",
        count(resources.cpus, "core"),
        f"on {count(resources.nodes, 'node')}" if resources.nodes > 1 else "",
        *(text if isinstance(text, str) else f"{name} {' then '.join(text)}" for name, text in limits.items()),
        f"partition {resources.chosen_partition}" if resources.chosen_partition else "",
    ]
    return ", ".join(part for part in parts if part)


class JobMemory(Frozen):
    """The predicted memory of each GPU of the trainings of one size and recipe."""

    size: str
    jobs: int
    gpu: Annotated[str, "the kind of GPU"]
    devices: Annotated[int, "GPUs of a job"]
    memory: DeviceMemory = field(metadata=FLAT)

    def warning(self) -> str:
        """Return a warning that the training does not fit the GPUs, "" if it does."""
        if self.memory.fits:
            return ""
        needs = f"{byte_size(self.memory.total)} on each of {count(self.devices, 'GPU')}"
        what = f"{count(self.jobs, 'training')} of size {self.size} would take about {needs}"
        has = f"{self.gpu} has {byte_size(self.memory.device_bytes)}, not all of it usable"
        remedy = "raise resources.gpus" + (", or leave out strategy: ddp" if self.memory.strategy == "ddp" else "")
        return f"{what}, and {has}: {remedy}"


def memory_of_jobs(jobs: Iterable[StageJob], machine: Machine, names: _Names) -> list[JobMemory]:
    """Return the memory of the pretrainings among `jobs` on the GPUs of `machine`; nothing if their kind is unknown.

    For cells of one size and distribution it is the largest. `names`: of sizes that are not built in.
    """
    kind = machine.gpu_kind()
    if kind is None:
        return []
    known: dict[Hashable, DeviceMemory] = {}
    groups: dict[Hashable, JobMemory] = {}
    for job in jobs:
        if job.kind != PRETRAIN or machine.device(job.resources) != "cuda":
            continue
        devices = machine.needs(job.resources)
        same_memory = (job.cell.seedless, id(job.resources))
        if same_memory not in known:
            known[same_memory] = predicted(job.cell, job.resources, kind.memory, devices)
        one = JobMemory(size_label(job.cell, names), 1, kind.name, devices, known[same_memory])
        group = (one.size, one.devices, one.memory.strategy, one.memory.recompute)
        before = groups.get(group, one)
        largest = max(before, one, key=lambda it: it.memory.total)
        groups[group] = replace(largest, jobs=before.jobs + 1 if group in groups else 1)
    return list(groups.values())


class DiskUse(Frozen):
    """What the jobs add to one folder, in bytes."""

    what: Annotated[str, ("download", "tokens", "checkpoints")]
    folder: Path
    free: Free
    bytes: Annotated[int, "at the end"]
    peak: Annotated[int, "while checkpoints are written that replace others"]
    least: Annotated[int, "in any case: `gpas run grid` refuses to start where that is not free"]


class Storage(Frozen):
    """What the jobs add to the disks."""

    uses: tuple[DiskUse, ...] = ()
    texts: tuple[MissingText, ...] = ()  # those that are not tokenised yet
    at_once: int = 0  # how many trainings are assumed to run at once
    speed: float | None = None  # the tokens per second of a process that tokenises, None if not measured


def overflows(uses: Iterable[DiskUse], amount: str) -> Iterator[str]:
    """Yield a message for each file system on which an amount of what the jobs add, `least` or `peak`, is not free."""
    device = {use: use.free.folder.stat().st_dev for use in uses}
    for one in dict.fromkeys(device.values()):
        same = {use: getattr(use, amount) for use in device if device[use] == one}
        room = min((use.free for use in same), key=lambda free: free.bytes)
        if sum(same.values()) > room.bytes:
            parts = ", ".join(f"{use.what} {byte_size(size)} in {use.folder}" for use, size in same.items())
            verb, limit = "need at least" if amount == "least" else "may need", " in your quota" * room.quota
            yield (
                f"the jobs {verb} {byte_size(sum(same.values()))} on one file system ({parts}), and "
                f"{byte_size(room.bytes)} are free there{limit}; choose folders elsewhere (GPAS_RUNS_DIR, GPAS_CACHE, "
                "HF_HOME), run fewer cells (--where), keep fewer checkpoints (cadence), or free space (`gpas gc`)"
            )


def storage(project: Project, jobs: Sequence[StageJob], machine: Machine, sized: Sized) -> Storage:
    """Return what `jobs` add to the disks of this machine; other arguments are as for `estimate`."""
    root = project.config.parent
    trainings = [job for job in jobs if any(one.key == job.key and one.declared.trains for one in job.cell.stages)]
    each = min((machine.needs(job.resources) for job in trainings), default=1)
    at_once = min(len(trainings), max(1, machine.slots // each) if machine.slots else len(trainings))
    written = [_checkpoints(job, sized(job.cell)) for job in trainings]
    left = sum(left for _, left, _ in written)
    peak = left + sum(sorted((peak - left for _, left, peak in written), reverse=True)[:at_once])
    texts = missing_texts(requirements(job.cell for job in jobs if job.kind == PRETRAIN), project.cache, root)
    networks = {job.cell.network: job.cell for job in jobs if job.cell.network and not job.cell.network.path}
    absent = [one.parameters or parameters(cell) for one, cell in networks.items() if not one.folder(root).exists()]
    download = sum(text.download for text in texts) + 2 * sum(absent)  # most repositories have two bytes a weight
    tokens = sum(text.id_bytes * text.tokens for text in texts)
    # A finetuning may keep the optimizer's state of some layers only.
    sure = sum(one for job, (one, *_) in zip(trainings, written, strict=True) if job.kind == PRETRAIN)
    found = (
        ("download", hub_cache(), download, download, _CERTAIN * download),
        ("tokens", project.cache, tokens, tokens, _CERTAIN * tokens),
        ("checkpoints", project.runs, left, peak, _CERTAIN * sure),
    )
    uses = (DiskUse(what, folder, free(folder), *map(int, sizes)) for what, folder, *sizes in found if sizes[0])
    return Storage(tuple(uses), tuple(texts), at_once, measured_speed(project.cache))


def _checkpoints(job: StageJob, cell: Cell) -> tuple[int, int, int]:
    """Return the bytes of one checkpoint of a training, of those that stay, and of those that there are at the peak."""
    if isinstance(section := cell.parameters(job.kind), Finetune):
        cell = replace(cell, optim=section.optim(section.amount[1]), precision=section.precision or cell.precision)
    one, (left, peak) = checkpoint_bytes(cell), job.cadence.checkpoints(cell.optim.updates)
    return one, left * one, peak * one
