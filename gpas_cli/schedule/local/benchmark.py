"""Benchmarks of training speed on this machine, before cells are run: one process per shape, on one slot.

Results are written to `runs/.bench/<host>-<shape>.json`; `plan.estimate` reads them for shapes that have not run.
"""

import hashlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpas_cli
from gpas_cli.errors import GpasError
from gpas_cli.plan.estimate import shape
from gpas_cli.plan.machine import machine
from gpas_cli.plan.stage_jobs import StageJob, stage_jobs
from gpas_cli.project import Project
from gpas_cli.schedule.local.process import Lease, Slots
from gpas_cli.schedule.process import job_environment
from gpas_cli.spec.stage import PRETRAIN
from gpas_cli.store.records import BenchRequest
from gpas_cli.store.rundir import write_json
from gpas_cli.structure import Frozen, to_mapping
from gpas_cli.words import grouped

_PACKAGE = Path(gpas_cli.__file__).parents[1]
_COMMAND = (sys.executable, "-P", "-m", "gpas_cli.worker.bench")


class Bench(Frozen):
    """The measured cost of one shape's updates.

    `facts` has `train.bench.Speed`, the number of the job's processes (one was measured), and the machine.
    """

    job: StageJob
    cells: int
    facts: dict[str, Any]


def bench(
    project: Project,
    entries: Iterable[Any],
    seconds: float,
    *,
    profile: bool = False,
    notify: Callable[[str], None] = lambda message: None,
) -> Iterator[Bench]:
    """Measure each shape among the entries' trainings for about `seconds` seconds; record and yield the results. With
    `profile`, they have `roofline`.

    Of a job with several processes, one is measured on one device, with its share of the rows and without
    communication. `notify` is called with a line about each step. Raises GpasError if no slot is free or an update
    fails.
    """
    slots = Slots(project.runs, machine())
    here = slots.machine
    device = "cuda" if here.gpus else "cpu"
    trainings = [job for job in stage_jobs(entries).values() if job.kind == PRETRAIN]
    alike = grouped((shape(job.cell.to_mapping(), device, here.needs(job.resources)), job) for job in trainings)
    for key, jobs in alike.items():
        facts = _measure(project, slots, jobs[0], seconds, profile, notify)
        facts |= {"shape": list(key), "host": socket.gethostname(), "time": time.time(), "cell": jobs[0].id}
        digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]
        path = project.runs / ".bench" / f"{socket.gethostname()}-{digest}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, facts)
        yield Bench(jobs[0], len(jobs), facts)


def _measure(
    project: Project, slots: Slots, job: StageJob, seconds: float, profile: bool, notify: Callable[[str], None]
) -> dict[str, Any]:
    one = job.resources.single_process
    lease = slots.take(one)
    if lease is None:
        raise GpasError("every slot of this machine is busy; next to running jobs a measurement would be too slow")
    record = replace(job.record(), resources=one)
    asked = BenchRequest.of(
        record, threads=lease.threads, seconds=seconds, processes=job.resources.processes, profile=profile
    )
    try:
        facts = _run(project, lease, job.id, asked, notify)
    finally:
        lease.close()
    positions = job.cell.optim.batch * job.cell.data.length
    speed = positions / facts["seconds_per_step"]
    return facts | {"positions_per_second": speed, "processes": job.resources.processes}


def _run(
    project: Project, lease: Lease, who: str, asked: BenchRequest, notify: Callable[[str], None]
) -> dict[str, Any]:
    """Return the last record printed by the process that measures the cell `who`. Raises GpasError if it fails."""
    environment = job_environment(_PACKAGE, lease.variables)
    last: dict[str, Any] = {}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, pass_fds=lease.fds,
            cwd=project.config.parent, env=environment,
        ) as child,
    ):  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(BrokenPipeError), child.stdin:
            child.stdin.write(json.dumps(to_mapping(asked)))
        for line in child.stdout:
            last = json.loads(line)
            if "doing" in last:
                notify(f"{who}: {last['doing']}")
        if child.wait():
            errors.seek(0)
            lines = errors.read().strip().splitlines() or [f"it exited with code {child.returncode}"]
            raise GpasError(f"{who} could not be measured: {lines[-1]}")
    return last
