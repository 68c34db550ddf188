"""The scheduler of this machine: `gpas run` starts the jobs as processes and waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpas_cli.schedule.local.cancel import cancel
from gpas_cli.state.claims import Claim
from gpas_cli.state.status import CellStatus, StageStatus
from gpas_cli.state.view import SchedulerView


class LocalScheduler:
    """A claim counts while the `gpas run` that made it lives."""

    def __init__(self, look: SchedulerView):
        self.look = look

    def state_of(self, key: str, last: StageStatus, claim: Claim) -> StageStatus:
        return self.look.with_submitter(last, claim)

    def job_of(self, claim: Claim) -> None:
        return None

    def describe(self, claim: Claim, key: str) -> Mapping[str, Any]:
        return {}

    def log_of(self, claim: Claim) -> Path | None:
        return None

    def cancel(self, status: CellStatus, claim: Claim) -> tuple[bool, str]:
        return cancel(self.look, status, claim)
