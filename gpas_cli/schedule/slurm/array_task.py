"""One array element as the scheduler reports it."""

from __future__ import annotations

from dataclasses import dataclass

from gpas_cli.schedule.slurm import job_states
from gpas_cli.words import ordinal


@dataclass(frozen=True)
class Job:
    """One array element. Times are unix times, 0 if SLURM reports none.

    `place` is its position among the `waiting` jobs of its partition that this user may see, by the scheduler's
    priority; 0 if it is not in line or positions were not queried.
    """

    id: str
    state: str
    reason: str = ""
    nodes: str = ""
    start: float = 0.0
    end: float = 0.0
    exit: str = ""
    restarts: int = 0
    partition: str = ""
    place: int = 0
    waiting: int = 0

    @property
    def ended(self) -> bool:
        return self.state in job_states.ENDED

    @property
    def pending(self) -> bool:
        return self.state in job_states.WAITING

    @property
    def in_line(self) -> str:
        """Its position as text, such as "4th of 31 in low"; "" if it has none."""
        return f"{ordinal(self.place)} of {self.waiting} in {self.partition}" if self.place else ""

    @property
    def held(self) -> str:
        """Who or which command releases a held job, as text; "" if the job is not held."""
        if not job_states.is_held(self.state, self.reason):
            return ""
        if self.reason == "JobHeldAdmin":
            return "held until an administrator releases it"
        # JobHeldUser says no more than that it is held.
        why = "" if self.reason.startswith("JobHeld") or self.reason in ("", "None") else f": {self.reason}"
        return f"held{why}; `scontrol release {self.id}` releases it"

    def __str__(self) -> str:
        reason = self.reason if self.reason not in ("None", "", "NonZeroExitCode") else ""
        detail = self.held or ", ".join(filter(None, (reason, self.in_line)))
        where = f" on {self.nodes}" if self.nodes and self.state in job_states.AT_WORK else ""
        return f"SLURM {self.id} {self.state}{where}{f' ({detail})' if detail else ''}"
