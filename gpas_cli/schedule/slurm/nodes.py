"""Short jobs that report what compute nodes see, one for each set of resources among the cells.

A probe is submitted like the job of a cell, with the partition, account, options, setup, environment and Python of its
resources. Probes that are still queued after the wait, or when this process ends, are cancelled.
"""

from __future__ import annotations

import json
import secrets
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpas_cli.project import Project
from gpas_cli.schedule.slurm import client, job_states, probe, script
from gpas_cli.schedule.slurm.client import SlurmError
from gpas_cli.schedule.slurm.retry import last_log_line
from gpas_cli.spec.run import Resources
from gpas_cli.state.logs import end_of

PATIENCE_SECONDS = 120.0  # for a node to become available
POLL_SECONDS = 1.0
LATE_SECONDS = 5.0  # grace period for the answer of an ended job: files written on other nodes appear late
# Pending reasons that only an administrator, or another request, can resolve.
PERMANENT_REASONS = (
    *("PartitionDown", "PartitionInactive", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints"),
    *("InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed"),
)


@dataclass
class NodeProbe:
    """A probe: the cells whose resources it has, the name and log of its job, and its answer or its problem."""

    label: str
    name: str
    log: Path
    answer: Mapping[str, Any] | None = None
    problem: str = ""
    reason: str = ""  # why it is pending, by SLURM's last report
    ended: float = 0.0

    @property
    def open(self) -> bool:
        return self.answer is None and not self.problem


def ask(
    project: Project, profiles: Mapping[str, Resources], lock: Path, patience: float = PATIENCE_SECONDS
) -> list[NodeProbe]:
    """Submit one probe per profile, all at once, and wait at most `patience` seconds for their answers.

    `lock` is a file that this process holds locked, in a folder that nodes should see; the logs are written beside it.
    """
    name = f"gpas-doctor-{secrets.token_hex(4)}"
    probes = [NodeProbe(label, f"{name}-{i}", lock.parent / f"{i}.out") for i, label in enumerate(profiles)]
    try:
        for asked, resources in zip(probes, profiles.values(), strict=True):
            _submit(project, asked, resources, lock)
        until = time.monotonic() + patience
        while any(asked.open for asked in probes) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
            _look([asked for asked in probes if asked.open])
    finally:
        for asked in probes:
            with suppress(SlurmError):
                client.run("scancel", f"--name={asked.name}")
    for asked in probes:
        if asked.open:
            asked.problem = f"no node within {patience:.0f} s{f' ({asked.reason})' if asked.reason else ''}"
    return probes


def _submit(project: Project, asked: NodeProbe, resources: Resources, lock: Path) -> None:
    words = [probe.__file__, str(lock), str(min(1, resources.gpus))]
    path = asked.log.with_suffix(".sh")
    path.write_text(script.single(project, asked.name, asked.log, resources, shlex.join(words)))
    try:
        drop = script.overriding(path.read_text())
        client.run("sbatch", f"--job-name={asked.name}", str(path), drop=drop)
    except SlurmError as error:
        asked.problem = str(error)


def _look(probes: Sequence[NodeProbe]) -> None:
    for asked in probes:
        answers = [line for line in end_of(asked.log).splitlines() if line.startswith("{")]
        with suppress(ValueError, IndexError):
            asked.answer = json.loads(answers[-1])
    with suppress(SlurmError):
        names = ",".join(asked.name for asked in probes)
        queue = client.run("squeue", "-h", "-a", "-t", "all", f"--name={names}", "-o", "%j|%T|%r")
        rows = {line.split("|")[0]: line.split("|")[1:] for line in queue.splitlines() if line.count("|") == 2}
        for asked in (asked for asked in probes if asked.open):
            _record_state(asked, *rows.get(asked.name, ("COMPLETED", "")))


def _record_state(asked: NodeProbe, state: str, reason: str) -> None:
    """Record the state of a probe's job: pending for a reason, or ended."""
    asked.reason = "" if reason == "None" else reason
    if state == "PENDING" and reason.startswith(PERMANENT_REASONS):
        asked.problem = f"its job cannot start: {reason}"
    elif job_states.plain(state) in job_states.ENDED:
        asked.ended = asked.ended or time.monotonic()
        if time.monotonic() - asked.ended > LATE_SECONDS:
            asked.problem = f"its job ended without an answer: {last_log_line(asked.log) or state.lower()}"
