"""What jobs will cost: hours of a device, and hours on the clock, from measured speed or else from FLOPs.

FLOPs of a training update are counted as in `spec.flops`; a forward pass costs a third of that.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpas_cli.errors import GpasError
from gpas_cli.plan.gpus import NamedGpus
from gpas_cli.plan.machine import Machine
from gpas_cli.plan.speed import Shape, measured, shape
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.spec.flops import flops_per_token
from gpas_cli.state.progress import number
from gpas_cli.store.journal import read, tail
from gpas_cli.store.rundir import AttemptDir, all_attempts

ASSUMED_GPU_FLOPS = {"fp32": 2e13, "bf16": 1e14, "pure_bf16": 1e14}  # FLOP/s of one device
ASSUMED_THREAD_FLOPS = 2e10  # FLOP/s of a CPU thread, whatever the precision
ENOUGH = 5  # measured attempts of a shape: more do not make its median better


@dataclass(frozen=True)
class Work:
    """One job's part of an estimate. `tokens` counts trained tokens, and evaluated ones at a third; `hours` on the
    clock, on `devices` of `device` (cuda or cpu)."""

    job: StageJob
    tokens: float
    hours: float
    device: str
    devices: int
    measured: bool


@dataclass(frozen=True)
class Estimate:
    """Hours of one GPU, and of one core for the jobs without; however many a job has, it occupies them all.

    `longest_hours`: the longest job with those that it builds on. `wall_hours` until all have ended on `slots` slots;
    None where nobody knows how many run at once: behind a scheduler. `basis` says where the speeds come from, one
    sentence each. `works` are the jobs one by one.
    """

    gpu_hours: float
    core_hours: float
    longest_hours: float
    wall_hours: float | None
    slots: int
    tokens: float
    basis: tuple[str, ...]
    works: tuple[Work, ...]


def estimate(
    runs: Path, jobs: Iterable[StageJob], machine: Machine, resume: Mapping[str, int] | None = None
) -> Estimate:
    """The cost of `jobs` on `machine`; `resume` has the step from which a key's stage goes on."""
    resume = resume or {}
    # What was measured here says nothing about GPUs that are elsewhere.
    speeds = {} if isinstance(machine, NamedGpus) else measured_speeds(runs)
    works = [_work(job, machine, speeds, resume.get(job.key, 0)) for job in jobs]
    needs = [(work.hours, work.devices) for work in works]
    return Estimate(
        gpu_hours=sum(work.hours * work.devices for work in works if work.device == "cuda"),
        core_hours=sum(work.hours * work.devices for work in works if work.device == "cpu"),
        longest_hours=_longest(works),
        wall_hours=makespan(needs, machine.slots) if machine.slots else None,
        slots=machine.slots,
        tokens=sum(work.tokens for work in works),
        basis=_basis(works, machine),
        works=tuple(works),
    )


def equivalent_tokens(job: StageJob, resumed: int = 0) -> float:
    """Return the tokens that the job has yet to train, plus a third of those it evaluates, without a backward pass.

    Raises GpasError for a kind of stage without a cost.
    """
    (kind,) = (stage.declared for stage in job.cell.stages if stage.kind == job.kind)
    if kind.cost is None:
        raise GpasError(f"{job.id}: the cost of the stage {job.kind} is unknown, because this version does not run it")
    return kind.cost(job.cell, job.cadence, resumed)


def measured_speeds(runs: Path) -> dict[Shape, float]:
    """Shape -> median tokens per second, padding included, of the attempts of that shape in `runs`, else what
    `gpas bench` measured; damaged attempts are passed over."""
    found: dict[Shape, list[float]] = {}
    for attempt in all_attempts(runs):
        try:
            asked = attempt.read_attempt()
            own = _attempt_shape(attempt, asked)
            if len(found.get(own, ())) < ENOUGH and (seconds := _seconds_per_step(attempt)):
                found.setdefault(own, []).append(_positions(asked["cell"]) / seconds)
        except (OSError, GpasError, KeyError, TypeError, ValueError, ArithmeticError):
            continue
    return measured(runs) | {own: statistics.median(speeds) for own, speeds in found.items()}


def makespan(needs: Sequence[tuple[float, int]], slots: int) -> float:
    """Hours until the last of (hours, slots needed) jobs ends when they start in order as slots come free."""
    now, free, last = 0.0, slots, 0.0
    busy: list[tuple[float, int]] = []
    for hours, wanted in needs:
        wanted = min(wanted, slots)
        while free < wanted:
            now, returned = heapq.heappop(busy)
            free += returned
        heapq.heappush(busy, (now + hours, wanted))
        free, last = free - wanted, max(last, now + hours)
    return last


def _work(job: StageJob, machine: Machine, speeds: Mapping[Shape, float], resumed: int) -> Work:
    tokens = equivalent_tokens(job, resumed)
    device, devices = machine.device(job.resources), machine.needs(job.resources)
    speed = speeds.get(shape(job.cell.to_mapping(), device, devices))
    if isinstance(machine, NamedGpus):
        each = machine.flops(job.cell.precision)
    else:
        each = ASSUMED_GPU_FLOPS[job.cell.precision] if device == "cuda" else ASSUMED_THREAD_FLOPS
    seconds = tokens / (speed or devices * each / flops_per_token(job.cell))
    return Work(job, tokens, seconds / 3600, device, devices, measured=speed is not None)


def _longest(works: Sequence[Work]) -> float:
    """Hours until the last would end if all started as soon as what they build on has ended. Parents come first."""
    ends: dict[str, float] = {}
    for work in works:
        ends[work.job.key] = work.hours + max((ends.get(parent, 0.0) for parent in work.job.parents), default=0.0)
    return max(ends.values(), default=0.0)


def _basis(works: Sequence[Work], machine: Machine) -> tuple[str, ...]:
    if isinstance(machine, NamedGpus):
        return (machine.basis({work.job.cell.precision for work in works}),) if works else ()
    measured = sum(work.measured for work in works)
    lines = [f"{measured} of {len(works)} jobs: the measured speed of that shape"] if measured else []
    guessed = [work for work in works if not work.measured]
    rates = sorted({ASSUMED_GPU_FLOPS[work.job.cell.precision] / 1e12 for work in guessed if work.device == "cuda"})
    assumed = [f"{' or '.join(f'{rate:g}' for rate in rates)} TFLOP/s per GPU"] if rates else []
    if any(work.device == "cpu" for work in guessed):
        assumed.append(f"{ASSUMED_THREAD_FLOPS / 1e9:g} GFLOP/s per CPU thread")
    if guessed:
        rate = " and ".join(assumed)
        lines.append(f"{len(guessed)} of {len(works)} jobs: FLOPs at an assumed {rate}; nothing of that shape has run")
    return tuple(lines)


def _attempt_shape(attempt: AttemptDir, asked: Mapping[str, Any]) -> Shape:
    events, _, _ = read(attempt.journal_path, limit=4096)
    devices = [str(event["device"]) for event in events if event.get("kind") == "start" and event.get("device")]
    return shape(asked["cell"], devices[0] if devices else "", len(asked.get("devices", ())))


def _positions(cell: Mapping[str, Any]) -> int:
    """Tokens of an update, padding included: what an estimate counts in."""
    return int(cell["optim"]["batch"] * cell["data"]["length"])


def _seconds_per_step(attempt: AttemptDir) -> float | None:
    lines = [event for event in tail(attempt.journal_path, 16384) if event.get("kind") == "step"]
    times = [time for line in lines if (time := number(line.get("seconds_per_step"))) and 0 < time < 1e6]
    return statistics.median(times) if times else None
