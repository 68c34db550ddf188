"""The cost of jobs in device-hours and wall-clock hours, from measured speeds or, without these, from FLOPs.

`spec.cost` has the FLOPs of a training update; a forward pass takes a third of them.
"""

import heapq
import socket
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any

from gpas_cli.errors import GpasError
from gpas_cli.events import Started, Step
from gpas_cli.plan.machine import Machine
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.spec.cell import Cell, distinct
from gpas_cli.spec.cost import computed_flops, whole_flops_per_token
from gpas_cli.spec.depth import FULL
from gpas_cli.spec.stage import PRETRAIN
from gpas_cli.store.journal import decoded, read_bytes, tail
from gpas_cli.store.rundir import AttemptDir, all_attempts, read_json
from gpas_cli.structure import HIDDEN, Frozen

Shape = tuple[Any, ...]


# FLOP/s of one device
_ASSUMED_GPU_FLOPS = defaultdict(lambda: 1e14, fp32=2e13)  # by precision
_ASSUMED_THREAD_FLOPS = 2e10  # FLOP/s of a CPU thread, in any precision
Sized = Callable[[Cell], Cell]
_MAX_MEASURED = 5  # attempts per shape; more would hardly change the median


class Work(Frozen):
    """The cost of one job."""

    job: StageJob
    tokens: float  # trained tokens plus a third of the evaluated ones
    hours: float  # wall-clock hours on `devices` devices
    device: str  # the type of the devices, "cuda" or "cpu"
    devices: int
    measured: bool  # whether the speed was measured
    whole: float = 0.0  # the tokens of a job that starts at its first update

    @property
    def device_hours(self) -> float:
        return self.hours * self.devices


class Estimate(Frozen):
    """The cost of several jobs: GPU-hours, and core-hours of the jobs without a GPU."""

    gpu_hours: float
    core_hours: float
    longest_hours: Annotated[float, "the longest chain of jobs"]
    wall_hours: Annotated[float | None, "until all have ended; null behind a scheduler"]
    slots: Annotated[int, "jobs at once on this machine"]
    tokens: Annotated[float, "trained tokens, with padding, and a third of the evaluated ones"]
    basis: Annotated[tuple[str, ...], "where the speeds come from"]
    works: tuple[Work, ...] = field(metadata=HIDDEN)


def estimate(
    runs: Path,
    jobs: Collection[StageJob],
    machine: Machine,
    resume: Mapping[str, int] | None = None,
    sized: Sized = lambda cell: cell,
) -> Estimate:
    """Return the cost of `jobs` on `machine`. `resume`: stage key -> the step from which it resumes.

    `sized` returns a cell with no more text to read than there is (`Texts.sized`).
    """
    resume = resume or {}
    speeds = {} if machine.assumed_speed() or not jobs else _measured_speeds(runs)  # which reads every attempt
    works = _works(jobs, machine, speeds, resume, sized)
    needs = [(work.hours, work.devices) for work in works]
    return Estimate(
        **device_hours(works),
        longest_hours=_longest(works),
        wall_hours=makespan(needs, machine.slots) if machine.slots else None,
        slots=machine.slots,
        tokens=sum(work.tokens for work in works),
        basis=_basis(works, machine),
        works=tuple(works),
    )


def device_hours(works: Iterable[Work]) -> dict[str, float]:
    """Return the `gpu_hours` and `core_hours` of jobs."""
    hours = {"gpu_hours": 0.0, "core_hours": 0.0}
    for work in works:
        hours["gpu_hours" if work.device == "cuda" else "core_hours"] += work.device_hours
    return hours


def _equivalent_tokens(job: StageJob, resumed: int = 0, sized: Sized = lambda cell: cell) -> float:
    """Return the tokens that the job still has to train on, plus a third of those it evaluates (no backward pass)."""
    (kind,) = (stage.declared for stage in job.cell.stages if stage.kind == job.kind)
    return kind.cost(sized(job.cell), job.cadence, resumed)


def _measured_speeds(runs: Path) -> dict[Shape, float]:
    """Return shape -> the tokens per second of its jobs, including padding.

    The speed of a shape is the median over its attempts in `runs`, or else the measurement of `gpas bench`. Damaged
    attempts are skipped. Of the others, of which there are many, no more is interpreted than tells their shape.
    """
    found: dict[Shape, list[float]] = {}
    for attempt in all_attempts(runs):
        try:
            asked = read_json(attempt.attempt_path)
            own = _attempt_shape(attempt, asked)
            if len(found.get(own, ())) < _MAX_MEASURED and (seconds := _seconds_per_step(attempt)):
                positions = asked["cell"]["optim"]["batch"] * asked["cell"]["data"]["length"]  # with padding
                found.setdefault(own, []).append(positions / seconds)
        except (OSError, GpasError, KeyError, TypeError, ValueError, ArithmeticError):
            continue
    return _measured(runs) | {own: statistics.median(speeds) for own, speeds in found.items()}


def _works(
    jobs: Iterable[StageJob], machine: Machine, speeds: Mapping[Shape, float], resume: Mapping[str, int], sized: Sized
) -> list[Work]:
    """Return the cost of each job. Jobs that differ only in the seed are equally expensive."""
    known: dict[Hashable, Work] = {}
    works = []
    for job in jobs:
        resumed = resume.get(job.key, 0)
        same_cost = (job.kind, job.cell.seedless, id(job.resources), id(job.cadence), resumed)
        if same_cost not in known:
            known[same_cost] = _work(job, machine, speeds, resumed, sized)
        like = known[same_cost]
        works.append(replace(like, job=job))
    return works


def _work(job: StageJob, machine: Machine, speeds: Mapping[Shape, float], resumed: int, sized: Sized) -> Work:
    tokens = _equivalent_tokens(job, resumed, sized)
    whole = _equivalent_tokens(job, 0, sized) if resumed else tokens
    device = machine.device(job.resources)
    devices = machine.needs(job.resources)
    speed = speeds.get(shape(job.cell.to_mapping(), device, devices))
    if assumed := machine.assumed_speed():
        each = assumed.flops(job.cell)
    else:
        each = _ASSUMED_GPU_FLOPS[job.cell.precision] if device == "cuda" else _ASSUMED_THREAD_FLOPS
    seconds = tokens / speed if speed is not None else tokens * whole_flops_per_token(job.cell) / (devices * each)
    return Work(job, tokens, seconds / 3600, device, devices, measured=speed is not None, whole=whole)


def _longest(works: Sequence[Work]) -> float:
    """Return the hours until the last job ends if each starts when its parents end. `works` lists parents first."""
    ends: dict[str, float] = {}
    for work in works:
        ends[work.job.key] = work.hours + max((ends.get(parent, 0.0) for parent in work.job.before), default=0.0)
    return max(ends.values(), default=0.0)


def _basis(works: Sequence[Work], machine: Machine) -> tuple[str, ...]:
    if assumed := machine.assumed_speed():
        return (assumed.basis(distinct(work.job.cell for work in works)),) if works else ()
    known = sum(work.measured for work in works)
    lines = [f"{known} of {len(works)} jobs: the measured speed of that shape"] if known else []
    guessed = [work for work in works if not work.measured]
    rates = sorted({_ASSUMED_GPU_FLOPS[work.job.cell.precision] / 1e12 for work in guessed if work.device == "cuda"})
    rates_used = [f"{' or '.join(f'{rate:g}' for rate in rates)} TFLOP/s per GPU"] if rates else []
    if any(work.device == "cpu" for work in guessed):
        rates_used.append(f"{_ASSUMED_THREAD_FLOPS / 1e9:g} GFLOP/s per CPU thread")
    if guessed:
        rate = " and ".join(rates_used)
        lines.append(
            f"{len(guessed)} of {len(works)} jobs: FLOPs at an assumed {rate}, as no job of that shape has run"
        )
    return tuple(lines)


def _attempt_shape(attempt: AttemptDir, asked: Mapping[str, Any]) -> Shape:
    lines = decoded(read_bytes(attempt.journal_path, limit=4096)[0])
    events = (line.event for line in lines if line and line.kind == "start")
    devices = (event.device for event in events if isinstance(event, Started) and event.device)
    return shape(asked["cell"], next(devices, ""), len(asked.get("devices", ())))


def _seconds_per_step(attempt: AttemptDir) -> float | None:
    """Return the seconds of an update of all layers; updates that skip layers are scaled by their FLOPs."""
    asked = attempt.read_attempt()
    skips = asked.stage == PRETRAIN and asked.cell.get("depth", {}).get("kind", FULL) != FULL
    cell = asked.resolve_cell() if skips else None
    steps = [line.event for line in tail(attempt.journal_path, 16384) if isinstance(line.event, Step)]
    times = [
        (event.seconds_per_step or 0.0) / (computed_flops(cell, event.step, event.step) if cell else 1.0)
        for event in steps
    ]
    times = [seconds for seconds in times if 0 < seconds < 1e6]
    return statistics.median(times) if times else None


def makespan(needs: Sequence[tuple[float, int]], slots: int) -> float:
    """Return the hours until the last of the jobs (hours, slots needed) ends. Jobs start in order as slots free up."""
    now = last = 0.0
    free = slots
    busy: list[tuple[float, int]] = []
    for hours, wanted in needs:
        wanted = min(wanted, slots)
        while free < wanted:
            now, returned = heapq.heappop(busy)
            free += returned
        heapq.heappush(busy, (now + hours, wanted))
        free -= wanted
        last = max(last, now + hours)
    return last


def shape(cell: Mapping[str, Any], device: str, slots: int) -> Shape:
    """Return the settings that determine the speed: size, length and layout of rows, batch, precision, devices."""
    size = tuple(cell["size"][name] for name in ("hidden", "ffn", "heads", "layers", "vocab"))
    data = (cell["data"]["length"], cell["data"]["layout"])
    return (*size, *data, cell["optim"]["batch"], cell["precision"], device, slots)


def _measured(runs: Path) -> dict[Shape, float]:
    """Return shape -> its speed, measured on this machine; of jobs with several processes on one of these, without the
    others' communication. Damaged files are skipped."""
    found = {}
    for path in (runs / ".bench").glob(f"{socket.gethostname()}-*.json"):
        facts = read_json(path) or {}
        try:
            found[tuple(facts["shape"])] = float(facts["positions_per_second"])
        except (KeyError, TypeError, ValueError):
            continue
    return found
