"""The plan of a run as text and tables for the terminal, and as JSON."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from gpas_cli.cli.console import wrapped
from gpas_cli.cli.views.columns import Columns
from gpas_cli.cli.views.states import COLOURS, LabelledCellJson
from gpas_cli.data.text_usage import MissingText
from gpas_cli.grid.variant import ShrunkSetting
from gpas_cli.plan.costs import DiskUse, JobMemory, SizeCost, StageCost, described, size_label
from gpas_cli.plan.estimate import Estimate
from gpas_cli.plan.machine import NamedGpus
from gpas_cli.plan.plan import CostElsewhere, Plan, PlanRow
from gpas_cli.plan.trunks import saving
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.stage import PRETRAIN
from gpas_cli.store.records import Trunk
from gpas_cli.structure import FLAT, OPTIONAL, Document, DocumentJson
from gpas_cli.words import abbreviated, byte_size, count, duration, grouped, listed

_MOST_TREES = 4
_MOST_VALUES = 4  # of a setting, in the list of what was shrunk

_COLOURS = {**COLOURS, "invalid": "red", "new": "bold"}
_WORDS = {"invalid": "cannot run here"}
_MOST_LISTED = 24  # cells; of more, only the number in each state is shown
_LAYOUTS = {
    "none": "one process",
    "ddp": "a copy each (ddp)",
    "fsdp": "sharded (fsdp)",
    "hsdp": "sharded in each node (hsdp)",
}


class _PlannedCellJson(Document):
    """One cell of a plan."""

    cell: LabelledCellJson = field(metadata=FLAT)
    action: Annotated[
        str, "its state, `new` for one without an attempt, `invalid` for one that cannot be run to its end here"
    ]
    detail: str
    will_run: Annotated[bool, "whether `gpas run` starts a job for it"]


class ShrunkJson(Document):
    """The settings that `--shrink` changed, and where the results are."""

    folder: Annotated[Path, "where the text and the results are"]
    left_out: Annotated[int, "cells that differ from others only in the seed"]
    settings: Sequence[ShrunkSetting]


class _JobMemoryJson(Document):
    """The predicted memory of each GPU of the trainings of one size and recipe, in bytes, at the peak of an update."""

    job: JobMemory = field(metadata=FLAT)
    total: int
    fits: bool


class PlanJson(DocumentJson):
    """`gpas plan --json`, and `gpas run grid --dry-run --json`."""

    cells: Sequence[_PlannedCellJson]
    jobs: Annotated[int, "jobs to start"]
    texts: Annotated[Sequence[str], "corpora that a separate job tokenises first"]
    trunks: Annotated[Mapping[str, Trunk], "where trainings start, by name: at the end of another one"]
    stages: Annotated[Mapping[str, int], "how many stages are in which state"]
    estimate: Estimate
    warnings: Sequence[str]
    sizes: Sequence[SizeCost]
    stage_costs: Sequence[StageCost]
    cost: Annotated[float | None, "GPU-hours times --price"]
    memory: Annotated[Sequence[_JobMemoryJson], "empty if the kind of GPU is unknown"]
    disk: Annotated[Sequence[DiskUse], "what the jobs add to folders of this machine"]
    untokenised: Annotated[Sequence[MissingText], "what they add, by text"]
    speed: Annotated[float | None, "tokens per second of a process, null if not measured"]
    elsewhere: Annotated[Sequence[CostElsewhere], "if this machine has too few GPUs: the cost on common ones"]
    shrunk: Annotated[ShrunkJson | None, "with --shrink"] = field(default=None, metadata=OPTIONAL)


def document(planned: Plan, price: float | None = None, shrunk: ShrunkJson | None = None) -> PlanJson:
    """Return the document of a plan. `shrunk`: what was shrunk for a smoke test."""
    return PlanJson(
        cells=[
            _PlannedCellJson(
                cell=LabelledCellJson.of(row.entry), action=row.action, detail=row.detail, will_run=row.will_run
            )
            for row in planned.rows
        ],
        jobs=len(planned.jobs),
        texts=[job.name for job in planned.texts],
        trunks={job.id: job.trunk for job in planned.jobs if job.trunk},
        stages=planned.stages,
        estimate=planned.estimate,
        warnings=planned.warnings,
        sizes=planned.sizes,
        stage_costs=planned.stage_costs,
        cost=None if price is None else price * planned.estimate.gpu_hours,
        memory=[_JobMemoryJson(job=one, total=one.memory.total, fits=one.memory.fits) for one in planned.memory],
        disk=planned.storage.uses,
        untokenised=planned.storage.texts,
        speed=planned.storage.speed,
        elsewhere=planned.elsewhere,
        shrunk=shrunk,
    )  # fmt: skip


def render(
    planned: Plan, price: float | None = None, *, cells: bool | None = None, asked: Sequence[str] = ()
) -> RenderableType:
    """Return the totals, why cells cannot run, the cost by size and its basis, and the cells.

    `cells`: whether to list every cell; None lists them unless they are many. `asked`: the words that selected the
    cells, for the commands that are proposed; by default the names of their grids.
    """
    basis = [*planned.estimate.basis, *planned.warnings, *planned.text_files]
    parts: list[RenderableType] = [_hanging(line) for line in refusals(planned)]
    parts += [Text(_money(planned.estimate, price))] if price is not None else []
    parts += [_by_size(planned), *([_by_stage(planned)] if len({job.kind for job in planned.jobs}) > 1 else [])]
    parts += _trunks(planned)
    parts += [_indented(basis)] if basis else []
    parts += _memory(planned)
    parts += _storage(planned)
    words = shlex.join(asked or grids_of(planned))
    parts += _elsewhere(planned, words)
    parts += _cells(planned, cells, words)
    return Group(Text(headline(planned), style="bold"), *parts)


def _indented(lines: Sequence[str]) -> Text:
    return Text("\n".join(f"  {part}" for line in lines for part in wrapped(line, 2)), style="dim")


def _hanging(line: str) -> Text:
    """Return a line whose continuations are indented on a terminal."""
    first, *rest = wrapped(line, 2)
    return Text("\n  ".join([first, *rest]))


def _trunks(planned: Plan) -> list[RenderableType]:
    """Return the trees of the trainings that start where others end, and what that saves."""
    own = {job.key: job for job in planned.jobs}
    following = grouped((job.trunk.key, job) for job in planned.jobs if job.trunk)

    def grow(tree: Tree, key: str) -> Tree:
        for job in following.get(key, ()):
            start = job.trunk.update if job.trunk else 0
            grow(tree.add(f"{job.name}  {start:,} to {job.cell.optim.updates:,}"), job.key)
        return tree

    trees: dict[Cell | str, list[Tree]] = {}  # those that differ only in the seed together
    for key, jobs in following.items():
        first = jobs[0].trunk
        if first and not (key in own and own[key].trunk):
            title = f"{first.name}  {f'0 to {first.update:,}' if key in own else 'done'}"
            trees.setdefault(own[key].cell.seedless if key in own else key, []).append(grow(Tree(title), key))
    if not trees:
        return []
    updates, hours = saving(planned.estimate.works)
    time = occupied(hours, 0.0) if planned.estimate.gpu_hours else occupied(0.0, hours)
    title = f"updates in common are trained once, which saves {updates:,} of them, about {time}:"
    shown = [alike[0] for alike in trees.values()][:_MOST_TREES]
    more = sum(map(len, trees.values())) - len(shown)
    return [Text(title), *shown, *([Text(f"and {count(more, 'tree')} like these")] if more else [])]


def _memory(planned: Plan) -> list[RenderableType]:
    """Return the predicted memory of each GPU, if its kind is known."""
    if not planned.memory:
        return []
    first = planned.memory[0]
    has = byte_size(first.memory.device_bytes)
    return [Text(f"predicted memory of each GPU ({first.gpu}, {has}):"), _memory_table(planned.memory)]


def _storage(planned: Plan) -> list[RenderableType]:
    """Return what the jobs add to the disks, against what is free there."""
    found = planned.storage
    rows = [
        (use.what, byte_size(use.bytes), byte_size(use.peak), byte_size(use.free.bytes) + " of quota" * use.free.quota,
         str(use.folder)) for use in found.uses
    ]  # fmt: skip
    headers = ("new on disk", "at the end", "at the peak", "free", "folder")
    kept = f"a training keeps two checkpoints and those in `keep`, at its peak one more; {found.at_once} run at once"
    notes = [*[kept] * bool(found.at_once), *_texts(planned)]
    table = Columns(headers, rows, right=frozenset(headers[1:4]))
    return [Group(table, *map(_indented, [notes] if notes else []))] if rows else []


def _elsewhere(planned: Plan, words: str) -> list[RenderableType]:
    """Return the cost, on common GPUs, of the jobs that need more GPUs than this machine has."""
    costs = [f"{' and '.join(one.gpus)} {occupied(one.estimate.gpu_hours, 0.0)}" for one in planned.elsewhere]
    number = max((one.number for one in planned.elsewhere), default=0)
    lines = (f"on GPUs that this machine does not have, with an assumed MFU: {', '.join(costs)}",
             f"by size, with memory and --price: gpas plan {words} --gpu H100:{number}")  # fmt: skip
    return [_hanging(lines[0]), _indented(lines[1:])] if costs else []


def render_shrunk(shrunk: ShrunkJson) -> RenderableType:
    """Return the settings that were shrunk, before and after, and where the results are."""
    rows = [(one.setting, _shown(one.before), _shown(one.after)) for one in shrunk.settings]
    text = "The text and the records are a few pages of Python's standard library; no data set is downloaded."
    left_out = shrunk.left_out
    seeds = f" {count(left_out, 'cell')} with further seeds left out; --where seed=... asks for them."
    lines = (text + (seeds if left_out else ""), f"Results are in a separate folder, {shrunk.folder}.")
    return Group(Columns(("setting", "declared", "shrunk"), rows), *map(Text, lines))


def _shown(values: Sequence[Any], most: int = _MOST_VALUES) -> str:
    return listed([_spelled(value) for value in values], most)


def _spelled(value: Any) -> str:
    if isinstance(value, list):
        return f"[{_shown(value, 2)}]"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value) or "''"


def grids_of(planned: Plan) -> list[str]:
    """Return the names of the grids of the plan's cells, each once."""
    return list(dict.fromkeys(row.entry.grid for row in planned.rows))


def _cells(planned: Plan, listed: bool | None, words: str) -> list[RenderableType]:
    """Return a row per cell, or if they are not to be listed, how many are in which state, and the notes on them."""
    if listed or (listed is None and len(planned.rows) <= _MOST_LISTED):
        return [_cells_table(planned.rows)]
    notes = [_hanging(line) for line in _notes_of_cells(planned.rows)]
    counted = [_cells_summary(planned)] if len(planned.actions) > 1 else []
    return [*counted, *notes, Text(f"every cell: gpas plan {words} --cells", style="dim")]


def refusals(planned: Plan) -> list[str]:
    """Return why cells cannot run here, each reason once."""
    reasons = Counter(reason for row in planned.rows for reason in row.refusals)
    lines = [f"{count(number, 'cell')} cannot run here: {reason}" for reason, number in reasons.items()]
    return [*lines, *planned.overflows]


def _texts(planned: Plan) -> Iterator[str]:
    """Yield how each untokenised text will be tokenised, and how long that takes if it was measured here."""
    cores, speed = max((job.resources.cpus for job in planned.texts), default=1), planned.storage.speed
    how = f"in a job with {count(cores, 'core')}" if planned.texts else "by the first job that reads it"
    for text in planned.storage.texts:
        time = f"about {duration(text.tokens / speed / cores)}, as measured here" if speed else "time not measured yet"
        size = f"{abbreviated(text.tokens)} tokens, {time}" if text.tokens else "its size is not known and not counted"
        yield f"{text.name} is tokenised first, {how}: {size}"


def headline(planned: Plan) -> str:
    """Return the plan as one sentence."""
    actions = planned.actions
    counts = ", ".join(f"{actions[name]} {_WORDS.get(name, name)}" for name in _COLOURS if actions[name])
    cells = count(len(planned.rows), "cell")
    if not planned.jobs:
        return f"{cells}: {counts}; no job to start"
    guess = planned.estimate
    shared = planned.uses - sum(planned.stages.values())
    saved = f" ({count(shared, 'training')} shared)" if shared else ""
    jobs = count(len(planned.jobs), "job")
    device_time = occupied(guess.gpu_hours, guess.core_hours)
    return f"{cells}: {counts}; {jobs} to start{saved}, about {device_time}; {_wall_time(planned)}"


def _wall_time(planned: Plan) -> str:
    """Return how long the jobs take, as far as that is known."""
    guess = planned.estimate
    gpus = planned.machine
    if isinstance(gpus, NamedGpus):
        if not gpus.number:
            return f"the longest takes {_rounded_hours(guess.longest_hours)}"
        return f"{_rounded_hours(guess.wall_hours or 0)} on {gpus.number} x {gpus.name}"
    if guess.wall_hours is None:
        longest = _rounded_hours(guess.longest_hours)
        return f"the longest takes {longest} once started; the scheduler decides when jobs start"
    return f"{_rounded_hours(guess.wall_hours)} on {count(guess.slots, 'slot')} here"


def _money(guess: Estimate, price: float) -> str:
    """Return what the GPU-hours cost, in the currency of `price`."""
    if not guess.gpu_hours:
        return "no GPU-hours; --gpu estimates them for a GPU that this machine does not have"
    return f"at {price:g} per GPU-hour: about {price * guess.gpu_hours:,.0f}"


def _training(one: SizeCost) -> tuple[str, str, str]:
    """Return batch, updates and tokens of a size, empty for a network that was not trained here."""
    if not one.updates:
        return ("", "", "")
    return (f"{one.batch:,} x {one.length:,}", f"{one.updates:,}", abbreviated(one.tokens))


def _by_size(planned: Plan) -> Columns:
    """Return a table with a row per size: what its jobs cost, and what a cell trains on unless no job trains one."""
    tokens = "tokens with padding" if any(one.padded for one in planned.sizes) else "tokens per cell"
    headers: tuple[str, ...] = (
        "size", "parameters", "cells", "batch", "updates", tokens, "jobs", "longest", "total",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = [
        (one.size, abbreviated(one.parameters), f"{one.cells}", *_training(one), f"{one.jobs}",
         _rounded_hours(one.hours) if one.jobs else "",
         occupied(one.gpu_hours, one.core_hours) if one.jobs else "")
        for one in planned.sizes
    ]  # fmt: skip
    if planned.jobs and all(job.kind != PRETRAIN for job in planned.jobs):
        headers, rows = (*headers[:3], *headers[6:]), [(*row[:3], *row[6:]) for row in rows]
    return Columns(headers, rows, right=frozenset(headers[1:-1]), droppable=("parameters", "updates", "longest"))


def _by_stage(planned: Plan) -> Columns:
    """Return a table of the jobs to start, with a row for each kind of stage and what its jobs ask for."""
    rows = [
        (one.stage, f"{one.jobs}", _rounded_hours(one.hours) if one.hours else "",
         occupied(one.gpu_hours, one.core_hours) if one.hours else "", described(one.resources))
        for one in planned.stage_costs
    ]  # fmt: skip
    headers = ("stage", "jobs", "longest", "total", "each job asks for")
    return Columns(headers, rows, right=frozenset(headers[1:-1]), droppable=("longest", "total"))


def _memory_table(found: Sequence[JobMemory]) -> Columns:
    """Return a table of the predicted memory of each GPU, with a row per size."""
    rows = [
        (one.size, f"{one.devices}", byte_size(one.memory.total), f"{one.memory.micro_batch}",
         byte_size(one.memory.weights + one.memory.gradients + one.memory.state),
         byte_size(one.memory.activations) + (", recomputed" if one.memory.recompute else ""),
         _LAYOUTS[one.memory.strategy])
        for one in found
    ]  # fmt: skip
    headers = ("size", "GPUs", "memory of each", "rows at once", "weights and states", "activations", "network")
    right = frozenset(headers[1:6])
    return Columns(headers, rows, right=right, droppable=("network", "weights and states"))


def _cells_table(rows: Sequence[PlanRow]) -> Columns:
    """Return a table with a row per cell."""
    shown = []
    for row in rows:
        detail = "" if row.action == "invalid" else row.detail  # `refusals` has each reason once
        notes = "; ".join(part for part in (detail, *row.entry.notes) if part)
        shown.append(
            (row.entry.id, row.entry.key[:8], (_WORDS.get(row.action, row.action), _COLOURS[row.action]), notes)
        )
    return Columns(("cell", "key", "action", "detail"), shown)


def _cells_summary(planned: Plan) -> Columns:
    """Return a table with a row for each grid, size and action: the number of cells."""
    names = planned.size_names
    groups = Counter((row.entry.grid, size_label(row.entry.cell, names), row.action) for row in planned.rows)
    shown = [
        (grid, size, (_WORDS.get(action, action), _COLOURS[action]), f"{number:,}")
        for (grid, size, action), number in groups.items()
    ]
    return Columns(("grid", "size", "action", "cells"), shown, right=frozenset({"cells"}))


def _notes_of_cells(rows: Sequence[PlanRow]) -> list[str]:
    """Return each note on cells once, with the cells that it is about."""
    about: dict[str, list[str]] = {}
    for row in rows:
        for note in row.entry.notes:
            about.setdefault(note, []).append(row.entry.id)
    return [f"{listed(ids)}: {note}" for note, ids in about.items()]


def _rounded_hours(hours: float) -> str:
    """Return an estimated duration, at least a minute."""
    return duration(max(hours * 3600, 60.0))


def occupied(gpu_hours: float, core_hours: float) -> str:
    """Return the device time of jobs: "12 GPU-minutes", "340 GPU-hours and 2.5 core-hours"."""
    parts = [(gpu_hours, "GPU"), (core_hours, "core")]
    return " and ".join(_occupied(hours, unit) for hours, unit in parts if hours) or "nothing"


def _occupied(hours: float, unit: str) -> str:
    if hours < 1:
        return count(max(1, round(hours * 60)), f"{unit}-minute")
    return f"{hours:.1f} {unit}-hours" if hours < 100 else f"{hours:,.0f} {unit}-hours"
