"""Short jobs that ask compute nodes what they see, one for each way in which cells ask for nodes.

Such a job is submitted as a cell's would be: partition, account, options, setup, environment and Python are those of
its resources. What is still in the queue when the wait is over, or when the asking process leaves, is cancelled.
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

from gpas_cli.doctor import probe
from gpas_cli.project import Project
from gpas_cli.schedule.slurm import client, job_states, script
from gpas_cli.schedule.slurm.client import SlurmError
from gpas_cli.schedule.slurm.retry import last_said
from gpas_cli.spec.run import Resources
from gpas_cli.state.logs import end_of

PATIENCE = 120.0  # seconds for a node to be had
EVERY = 1.0  # seconds between two looks
LATE = 5.0  # seconds for which a job that has ended may still owe its answer: files of other nodes appear late
# Reasons of jobs that wait for an administrator, not for a node.
HOPELESS = ("PartitionDown", "PartitionInactive", "BadConstraints", "InvalidAccount", "InvalidQOS", "AccountNotAllowed",
            "QOSNotAllowed", "PartitionNodeLimit", "PartitionTimeLimit")  # fmt: skip


@dataclass
class Probe:
    """One question: who asks for such nodes, the job's name and log, and its answer or what went wrong."""

    label: str
    name: str
    log: Path
    answer: Mapping[str, Any] | None = None
    problem: str = ""
    reason: str = ""  # why it waits, as SLURM last said
    ended: float = 0.0

    @property
    def open(self) -> bool:
        return self.answer is None and not self.problem


def ask(project: Project, profiles: Mapping[str, Resources], lock: Path, patience: float = PATIENCE) -> list[Probe]:
    """Ask one node for each profile, all at the same time, for at most `patience` seconds.

    `lock` is a file in a folder that nodes should see, locked by this process; the jobs' logs lie beside it.
    """
    name = f"gpas-doctor-{secrets.token_hex(4)}"
    probes = [Probe(label, f"{name}-{i}", lock.parent / f"{i}.out") for i, label in enumerate(profiles)]
    try:
        for asked, resources in zip(probes, profiles.values(), strict=True):
            _submit(project, asked, resources, lock)
        until = time.monotonic() + patience
        while any(asked.open for asked in probes) and time.monotonic() < until:
            time.sleep(EVERY)
            _look([asked for asked in probes if asked.open])
    finally:
        for asked in probes:
            with suppress(SlurmError):
                client.run("scancel", f"--name={asked.name}")
    for asked in probes:
        if asked.open:
            asked.problem = f"no node within {patience:.0f} s{f' ({asked.reason})' if asked.reason else ''}"
    return probes


def _submit(project: Project, asked: Probe, resources: Resources, lock: Path) -> None:
    words = [probe.__file__, str(lock), str(min(1, resources.gpus))]
    path = asked.log.with_suffix(".sh")
    path.write_text(script.single(project, asked.name, asked.log, resources, shlex.join(words)))
    try:
        drop = script.overriding(path.read_text())
        client.run("sbatch", f"--job-name={asked.name}", str(path), drop=drop)
    except SlurmError as error:
        asked.problem = str(error)


def _look(probes: Sequence[Probe]) -> None:
    for asked in probes:
        said = [line for line in end_of(asked.log).splitlines() if line.startswith("{")]
        with suppress(ValueError, IndexError):
            asked.answer = json.loads(said[-1])
    with suppress(SlurmError):
        names = ",".join(asked.name for asked in probes)
        told = client.run("squeue", "-h", "-a", "-t", "all", f"--name={names}", "-o", "%j|%T|%r")
        rows = {line.split("|")[0]: line.split("|")[1:] for line in told.splitlines() if line.count("|") == 2}
        for asked in (asked for asked in probes if asked.open):
            _heed(asked, *rows.get(asked.name, ("COMPLETED", "")))


def _heed(asked: Probe, state: str, reason: str) -> None:
    """Take note of what SLURM says of a question's job: it waits, for a reason, or has ended."""
    asked.reason = "" if reason == "None" else reason
    if state == "PENDING" and reason.startswith(HOPELESS):
        asked.problem = f"its job cannot start: {reason}"
    elif job_states.plain(state) in job_states.ENDED:
        asked.ended = asked.ended or time.monotonic()
        if time.monotonic() - asked.ended > LATE:
            asked.problem = f"its job ended without an answer: {last_said(asked.log) or state.lower()}"
