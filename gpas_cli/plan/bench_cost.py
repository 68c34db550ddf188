"""What a measurement on this machine would take, estimated before it begins: seconds and memory."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from gpas_cli.plan.estimate import ASSUMED_THREAD_FLOPS
from gpas_cli.plan.machine import Machine
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.flops import flops_per_token, parameters
from gpas_cli.spec.memory import activation_bytes, state_bytes
from gpas_cli.spec.run import Resources
from gpas_cli.words import abbreviated, byte_size, count, duration

UPDATES = 3  # the fewest updates of a measurement of a part of the rows
PATIENCE = (60.0, 10.0)  # a measurement may take so many seconds, or so many times what was asked for


@dataclass(frozen=True)
class Cost:
    """`rows` of each update to compute, 0 for all; `seconds` and `memory` (bytes) that it is likely to take; `free`
    bytes that there are. On a GPU nothing is estimated: seconds and memory are 0."""

    parameters: int
    rows: int
    seconds: float
    memory: int
    free: int

    def words(self) -> str:
        """The estimate, in words."""
        number = f"{abbreviated(self.parameters)} parameters"
        part = f", {count(self.rows, 'row')} of each update" if self.rows else ""
        time = f", about {duration(self.seconds)} and {byte_size(self.memory)}" if self.seconds else ""
        return f"{number}{part}{time}"

    def fault(self, job: StageJob, asked: float) -> str:
        """Why the measurement should not begin, "" when it may."""
        if self.memory > self.free:
            return f"{job.id}: {self.words()}; {byte_size(self.free)} are free"
        least, times = PATIENCE
        return (
            f"{job.id}: {self.words()}; --seconds asks for {asked:g}"
            if self.seconds > max(least, times * asked)
            else ""
        )


def cost_of(cell: Cell, machine: Machine, resources: Resources, seconds: float) -> Cost:
    """The cost of measuring `cell` for `seconds` on `machine`: as many rows as fit the time, at least one."""
    number = parameters(cell)
    if machine.gpus:
        return Cost(number, 0, 0.0, 0, 0)
    row = flops_per_token(cell) * cell.data.length / (ASSUMED_THREAD_FLOPS * machine.threads(resources))
    batch = cell.optim.batch
    fitting = max(1, int(seconds / (UPDATES * row)))
    rows = batch if fitting >= batch else fitting
    per_token = activation_bytes(cell.model.size, cell.precision)
    memory = state_bytes(cell) + 8 * cell.model.size.vocab * cell.model.size.hidden
    memory += min(rows, 64) * cell.data.length * per_token
    expected = max(seconds, UPDATES * rows * row)
    return Cost(number, 0 if rows == batch else min(rows, 64), expected, memory, psutil.virtual_memory().available)
