"""A scheduler from outside the package: jobs run one after the other, even after `gpas run` has exited.

runs/.line/<name>/   jobs.json: attempt.json of each job, without its number;  current: the newest job that was started;
                     worker.lock: held by the process that runs the jobs;  log.txt: the output of that process
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forking import Forked
from launching import until

from gpas_cli.extension import Extension
from gpas_cli.files import replace_file
from gpas_cli.plan.machine import Machine, machine
from gpas_cli.plan.stage_jobs import StageJob, stage_jobs
from gpas_cli.project import Project
from gpas_cli.schedule.process import JOB, record_exit, token
from gpas_cli.schedule.scheduler import (
    Ending,
    Finding,
    JobBatch,
    RunRequest,
    RunSummary,
    Scheduler,
    Submitted,
    reason_of,
    summarise,
)
from gpas_cli.spec.run import Resources
from gpas_cli.state import locks
from gpas_cli.state.attempt import alive_path, process_path
from gpas_cli.state.cancellation import requested
from gpas_cli.state.claim_set import ClaimSet
from gpas_cli.state.claims import Claim, claims_lock, read_claim, release_claim, write_claim
from gpas_cli.state.observe import observe, statuses
from gpas_cli.state.status import ALIVE, SchedulerJob, StageStatus
from gpas_cli.store.records import AttemptRecord
from gpas_cli.store.rundir import AttemptDir, create_attempt, write_json
from gpas_cli.structure import from_mapping, to_mapping

COMMAND: Sequence[str] = JOB
WORKER = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
os.chdir(sys.argv[3])
import line_scheduler
line_scheduler.work(Path(sys.argv[2]))
"""


class LineJob(SchedulerJob):
    def __str__(self) -> str:
        return f"line {self.id} {self.state}"


class LineScheduler(Scheduler):
    foreground = False

    def machine(self) -> Machine:
        return machine()

    def preview(self, project: Project, jobs: Sequence[StageJob]) -> Iterable[str]:
        yield f"# a line of {len(jobs)}"

    def submit(self, request: RunRequest) -> LineRun:
        runs = request.project.runs
        name = f"line-{secrets.token_hex(4)}"
        jobs = stage_jobs(request.entries)
        done = Submitted()
        place = runs / ".line" / name
        place.mkdir(parents=True)
        with ClaimSet(runs, request.retry, "line") as claims:
            done.seen = claims.take(jobs)
            mine = [job for key, job in jobs.items() if key in claims.held]
            done.followed = sum(seen.state in ALIVE for seen in done.seen.values())
            who = {"id": name, "host": claims.submitter.host, "pid": claims.submitter.pid}
            write_json(place / "jobs.json", {"command": COMMAND, "jobs": [_facts(job, request, who) for job in mine]})
            words = (str(Path(__file__).parent), str(place), str(request.project.config.parent))
            environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
            Forked(WORKER, *words, output=place / "log.txt", environment=environment)
            until(lambda: locks.probe(place / "worker.lock") is locks.Lock.HELD)
            for index, job in enumerate(mine):
                write_claim(runs, job.key, claims.submitter, "line", submission=name, index=index, after=job.after)
            claims.held.clear()
            (place / "claimed").touch()
        done.jobs = len(mine)
        done.batches = [JobBatch(name, name, tuple((job.key,) for job in mine), f"{name}: a line of {len(mine)}")]
        return LineRun(request, done)

    def findings(self, project: Project, resources: Mapping[str, Resources], *, nodes: bool) -> Iterable[Finding]:
        yield Finding("line", "ok", f"{len(resources)} cells may wait in {project.runs.name}/.line")

    def state_of(self, key: str, last: StageStatus, claim: Claim) -> StageStatus:
        job = self.job_of(claim)
        own = last.directory is not None and _submission(last.directory) == claim.submission
        if job is None or (own and last.source in ("outcome", "exit")):
            return last
        state = "queued" if job.pending else "running"
        return replace(last, state=state, evidence=str(job), cause="", outcome="", claim=claim, job=job)

    def job_of(self, claim: Claim) -> LineJob | None:
        place = self._place(claim)
        jobs = self._jobs(claim)
        if locks.probe(place / "worker.lock") is not locks.Lock.HELD:
            return None
        current = int((place / "current").read_text()) if (place / "current").exists() else -1
        place_in_line = claim.index - current
        state = "waiting" if place_in_line else "started"
        name = f"{claim.submission}.{claim.index}"
        job = LineJob(name, state, nodes="here", partition="line", place=place_in_line, waiting=len(jobs) - 1 - current)
        return job if job.place >= 0 else None

    def describe(self, claim: Claim, key: str) -> Mapping[str, Any]:
        return self._jobs(claim)[claim.index]

    def log_of(self, claim: Claim) -> Path | None:
        return self._place(claim) / "log.txt"

    def _place(self, claim: Claim) -> Path:
        return self.scan.runs / ".line" / claim.submission

    def _jobs(self, claim: Claim) -> list[dict[str, Any]]:
        return list(json.loads((self._place(claim) / "jobs.json").read_text())["jobs"])


@dataclass
class LineRun:
    request: RunRequest
    submitted: Submitted
    stopped: bool = False

    def stop(self) -> None:
        self.stopped = True

    def follow(self) -> RunSummary:
        runs = self.request.project.runs
        entries = self.request.entries
        while not self.stopped and any(seen.state in ALIVE for seen in statuses(runs, entries).values()):
            time.sleep(0.05)
        self.request.ingest()
        endings = {key: Ending(seen, reason_of(seen)) for key, seen in statuses(runs, entries).items()}
        return summarise(entries, endings)


def _facts(job: StageJob, request: RunRequest, who: Mapping[str, Any]) -> dict[str, Any]:
    project = request.project
    return {
        **to_mapping(job.record()), "schema": 1, "executor": "line", "created": time.time(),
        "code": "", "git": {}, "submitter": who,
        "devices": ["cpu-0"], "threads": 1, "cache": str(project.cache), "root": str(project.config.parent),
    }  # fmt: skip


def _submission(directory: Path) -> str:
    return str(AttemptDir(directory).read_attempt().submitter.id)


def work(place: Path) -> None:
    """Run the jobs of a line one after the other."""
    runs = place.parents[1]
    locks.hold(place / "worker.lock")  # until this process ends
    until((place / "claimed").exists)
    line = json.loads((place / "jobs.json").read_text())
    for index, job in enumerate(line["jobs"]):
        with locks.locked(claims_lock(runs)):
            claim = read_claim(runs, job["key"])
            lost = claim is None or claim.submission != place.name or requested(runs, job["key"])
            if lost or any(observe(runs, key).state != "done" for key in job["parents"]):
                continue
            # After the checks: a job that is not to start is never shown as running.
            replace_file(place / "current", str(index), durable=False)
            attempt = create_attempt(runs, from_mapping(AttemptRecord, {**job, "created": time.time()}, str(place)))
            alive = locks.hold(alive_path(attempt))
        with attempt.log_path.open("ab") as log:
            child = subprocess.Popen([*line["command"], str(attempt.path)], stdout=log, stderr=log, pass_fds=(alive,))
        os.close(alive)
        process = {"host": job["submitter"]["host"], "pid": child.pid, "token": token(child.pid)}
        write_json(process_path(attempt), process)
        code = child.wait()
        record_exit(attempt, None if code < 0 else code, -code if code < 0 else None)
        release_claim(runs, job["key"], place.name, index)


EXTENSION = Extension(name="line", schedulers={"line": "line_scheduler:LineScheduler"})
