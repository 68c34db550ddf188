"""The estimated cost of measuring a cell on this machine: seconds and memory."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from gpas_cli.plan.estimate import ASSUMED_THREAD_FLOPS
from gpas_cli.plan.machine import Machine
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import activation_bytes, parameters, state_bytes, whole_flops_per_token
from gpas_cli.spec.run import Resources
from gpas_cli.words import abbreviated, byte_size, count, duration

MIN_UPDATES = 3  # in a measurement with only some of the rows of an update
MAX_SECONDS = 60.0  # of a measurement, unless more were requested
MAX_TIMES_ASKED = 10.0  # a measurement may take this many times the requested seconds


@dataclass(frozen=True)
class Cost:
    """The estimated cost of measuring one cell.

    `rows`: those of each update to compute, 0 for all. `memory`: in bytes. `free`: the free bytes of this machine. On a
    GPU there is no estimate, and seconds and memory are 0.
    """

    parameters: int
    rows: int
    seconds: float
    memory: int
    free: int

    def words(self) -> str:
        """Return the estimate in words."""
        number = f"{abbreviated(self.parameters)} parameters"
        part = f", {count(self.rows, 'row')} of each update" if self.rows else ""
        time = f", about {duration(self.seconds)} and {byte_size(self.memory)}" if self.seconds else ""
        return f"{number}{part}{time}"

    def fault(self, job: StageJob, asked: float) -> str:
        """Return why the measurement should not start, "" if it may."""
        if self.memory > self.free:
            return f"{job.id}: {self.words()}; {byte_size(self.free)} are free"
        if self.seconds > max(MAX_SECONDS, MAX_TIMES_ASKED * asked):
            return f"{job.id}: {self.words()}; --seconds asks for {asked:g}"
        return ""


def cost_of(cell: Cell, machine: Machine, resources: Resources, seconds: float) -> Cost:
    """Return the cost of measuring one process of a job for `seconds`, with the rows that fit the time, at least 1."""
    number = parameters(cell)
    if machine.gpus:
        return Cost(number, 0, 0.0, 0, 0)
    row = (
        whole_flops_per_token(cell)
        * cell.data.length
        / (ASSUMED_THREAD_FLOPS * machine.threads(resources.single_process))
    )
    batch = max(1, cell.optim.batch // resources.processes)
    fitting = max(1, int(seconds / (MIN_UPDATES * row)))
    rows = batch if fitting >= batch else fitting
    per_token = activation_bytes(cell.model, cell.precision)
    memory = state_bytes(cell) + 8 * cell.model.size.vocab * cell.model.size.hidden
    memory += min(rows, 64) * cell.data.length * per_token
    expected = max(seconds, MIN_UPDATES * rows * row)
    return Cost(number, 0 if rows == batch else min(rows, 64), expected, memory, psutil.virtual_memory().available)
