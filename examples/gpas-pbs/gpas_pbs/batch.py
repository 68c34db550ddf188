"""The part of the adapter that knows no PBS: stages as jobs of a batch system that runs scripts one after another.

runs/.NAME/JOB/   job.json: the stage, the version of the code, and the system's id ("" if the submitter died before it)
                  job.sh: what was submitted;  log.txt: its output;  setup-failed: there if that is why it ended;
                  batch.py: this file, as it was when the job was submitted, which is the program of the job

JOB is unique and the name of the job, by which the system finds it even if its id was not recorded.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from gpas_cli.errors import GpasError
from gpas_cli.files import replace_file
from gpas_cli.plan.machine import THREAD_VARIABLES, Cluster, Machine
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.plan.trunks import jobs_of
from gpas_cli.project import Project
from gpas_cli.schedule import scheduler as base
from gpas_cli.schedule.local.process import Lease, Spawner
from gpas_cli.schedule.process import Cancelling, require_libraries
from gpas_cli.schedule.retry import ran_out_of_memory
from gpas_cli.spec.run import Resources, time_seconds
from gpas_cli.state import cancellation, claims, locks, rerun
from gpas_cli.state.attempt import conclude, last_line
from gpas_cli.state.claim_set import RETRIABLE, ClaimSet
from gpas_cli.state.observe import observe, statuses
from gpas_cli.state.status import ALIVE, RESULTS, CellStatus, SchedulerJob, StageStatus
from gpas_cli.state.view import SchedulerView, facts_of, stage_title
from gpas_cli.store.records import Author, StageRecord
from gpas_cli.store.rundir import read_json, stage_dir, write_json
from gpas_cli.store.snapshot import Snapshot, snapshot, snapshot_path
from gpas_cli.structure import from_mapping, to_mapping
from gpas_cli.words import count, listed

POLL_SECONDS = 5.0  # between two looks at the stages by `gpas run --wait`
_CHECK_SECONDS = 0.5  # between two looks at the process of a job


class BatchScheduler(base.Scheduler):
    """A claim counts while the system has, or may yet have, the job that it names. A subclass has the four methods of
    the system, which raise GpasError if it does not answer, and its name."""

    name: ClassVar[str]
    foreground = False

    def check(self, project: Project, resources: Resources) -> None:
        """Raise GpasError if a job with these resources cannot run."""
        raise NotImplementedError

    def start(self, project: Project, resources: Resources, folder: Path, after: Sequence[str]) -> str:
        """Submit job.sh of a folder under the folder's name, to start when the jobs `after` have succeeded. Return its
        id."""
        raise NotImplementedError

    def ask(self, ids: Sequence[str]) -> Mapping[str, SchedulerJob]:
        """Return the jobs with these ids, of all if there are none, that have not ended, by name."""
        raise NotImplementedError

    def remove(self, job: SchedulerJob) -> None:
        """Remove a job from the queue."""
        raise NotImplementedError

    def __init__(self, scan: SchedulerView):
        super().__init__(scan)
        self._known: Mapping[str, SchedulerJob] | GpasError | None = None  # the answer, or why there is none
        self._claims: dict[
            str, tuple[str, claims.Claim]
        ] = {}  # name of a job -> its stage, and the claim that names it
        self._dead = set[str]()  # submitters that were dead before the answer

    def machine(self) -> Machine:
        return Cluster()

    def jobs(self) -> Mapping[str, SchedulerJob]:
        """Return the jobs named by claims that have not ended, by name. Raises GpasError if there is no answer."""
        if self._known is None:
            runs = self.scan.runs
            made = {path.parent.name: read_json(path) for path in runs.glob(f".{self.name}/*/job.json")}
            held = {name: (key := one["job"]["key"], claims.read_claim(runs, key)) for name, one in made.items()}
            self._claims = {name: (key, own) for name, (key, own) in held.items() if own and own.submission == name}
            ids = [made[name]["id"] for name in self._claims]
            try:
                self._known = self.ask(ids if all(ids) else ())  # a job without an id is searched for among all
            except GpasError as error:
                self._known = error
        if isinstance(self._known, GpasError):
            raise self._known
        return self._known

    def job_of(self, claim: claims.Claim) -> SchedulerJob | None:
        """Return the job of a claim, None if there is none. Raises GpasError if the system does not answer."""
        found = self.jobs().get(claim.submission)
        if found is None and claim.submitter not in self._dead and not self.scan.lives_now(claim):
            self._dead.add(claim.submitter)  # it may have submitted the job after the answer, and ended since
            self._known = None
            found = self.jobs().get(claim.submission)
        return found

    def state_of(self, key: str, last: StageStatus, claim: claims.Claim) -> StageStatus:
        if not claim.submission:
            return self.scan.with_submitter(last, claim)
        own = last.submission == claim.submission
        if own and last.source in ("outcome", "exit"):
            return last
        seen = replace(last, cause="", outcome="", claim=claim)
        try:
            if job := self.job_of(claim):
                return replace(seen, state="queued" if job.pending else "running", evidence=str(job), job=job)
            silent = f"being submitted by {claim.submitter}" if self.scan.lives(claim) and not own else ""
        except GpasError as error:
            silent = str(error)
        if silent:  # changes nothing; whether the system will run an interrupted job again is not known
            state = "unknown" if own and last.state == "interrupted" else last.state if own else "queued"
            return replace(seen, state=state, evidence=f"{claim}: {silent}")
        seen = replace(seen, evidence=f"the queue no longer has {claim.submission}")
        for parent in claim.after if not own else ():
            if (state := observe(self.scan.runs, parent, self.scan).state) in ("failed", "cancelled", "diverged"):
                cause = f"{stage_title(facts_of(self.scan, parent), parent)} is {state}"
                return replace(seen, state="cancelled", cause=cause, blocker=parent)
        if (failed := self.folder(claim) / "setup-failed").exists() and not own:
            cause = f"resources.setup failed: {last_line(failed.with_name('log.txt'))}"
            return replace(seen, state="failed", cause=cause)
        cause = f"{seen.evidence}; the next `gpas run grid` submits it"
        return replace(seen, state="interrupted" if last.attempt else "missing", cause=cause)

    def cancel(self, stages: Sequence[tuple[CellStatus, claims.Claim]]) -> Iterator[Cancelling]:
        for status, claim in stages:
            cancellation.request(stage_dir(self.scan.runs, status.key))  # which the job reads, also if it starts later
            what = "its job will save and exit, or exit when it starts"
            with suppress(GpasError):
                if (job := self.job_of(claim)) and job.pending:
                    self._drop(status.key, job)
                    what = f"removed from the queue ({job})"
            yield Cancelling(status, True, what)

    def _drop(self, key: str, job: SchedulerJob) -> None:
        """Remove the waiting job of a stage, and those that wait for it: OpenPBS would hold them for ever."""
        self.remove(job)
        for name, (other, claim) in self._claims.items():
            if key in claim.after and (waits := self.jobs().get(name)) and waits.pending:
                with suppress(GpasError):  # other systems have removed it themselves
                    self._drop(other, waits)

    def findings(self, project: Project, resources: Mapping[str, Resources], *, nodes: bool) -> Iterator[base.Finding]:
        try:
            for asked in resources.values():
                self.check(project, asked.first)
            yield base.Finding(self.name, "ok", f"{count(len(self.jobs()), 'job')} of this project in the queue")
        except GpasError as error:
            yield base.Finding(self.name, "problem", str(error))

    def describe(self, claim: claims.Claim, key: str) -> Mapping[str, Any]:
        found: dict[str, Any] = read_json(self.folder(claim) / "job.json")["job"]
        return found

    def log_of(self, claim: claims.Claim) -> Path | None:
        path = self.folder(claim) / "log.txt"
        return path if path.exists() else None

    def folder(self, claim: claims.Claim) -> Path:
        return self.scan.runs / f".{self.name}" / claim.submission

    def submit(self, request: base.RunRequest) -> BatchRun:
        project, runs, done, ids = request.project, request.project.runs, base.Submitted(), dict[str, str]()
        jobs = jobs_of(runs, request.entries)
        for job in jobs.values():
            self.check(project, job.resources.first)
        if request.at_once:
            raise GpasError(f"--jobs: {self.name} does not limit how many jobs of a command run at once; a queue may")
        if request.stop_at_failure:
            raise GpasError(f"--stop-at-first-failure: jobs of {self.name} do not know of each other's failures")
        self.jobs()  # before the lock of the claims is taken
        runs.mkdir(parents=True, exist_ok=True)
        with ClaimSet(runs, request.retry, self.name) as held:
            done.seen = held.take(jobs)
            for key, job in jobs.items():  # what waits for a job that somebody has removed would wait for ever
                seen = done.seen[key]
                ours = seen.state == "queued" and seen.claim and seen.claim.scheduler == self.name
                if ours and seen.job and held.held.intersection(job.after):
                    with suppress(GpasError):
                        self.remove(seen.job)
                    held.held.add(key)
            others = [seen.state for key, seen in done.seen.items() if key not in held.held]
            done.followed = sum(state in ALIVE for state in others)
            done.over, done.unknown = sum(state in RETRIABLE for state in others), others.count("unknown")
            mine = [job for key, job in jobs.items() if key in held.held]
            require_libraries(job for job in mine if not job.resources.python)
            for job in mine:
                waits = {key: ids.get(key) or self._id(key) for key in job.after if done.seen[key].state != "done"}
                if all(waits.values()):
                    ids[job.key] = self._submit(project, job, [*waits.values()], held)
                else:
                    ended = any(done.seen[key].state in (*RETRIABLE, "diverged") for key in waits)
                    (done.blocked if ended else done.left).append(job)
        done.jobs = len(ids)
        if ids:
            text = f"{listed([*ids.values()])} to {self.name}"
            done.batches = [base.JobBatch(self.name, next(iter(ids.values())), tuple((key,) for key in ids), text)]
        return BatchRun(request, done)

    def _id(self, key: str) -> str:
        """Return the id of the job that another command has submitted for a stage, "" if there is none."""
        claim = claims.read_claim(self.scan.runs, key)
        job = self.job_of(claim) if claim else None
        return job.id if job else ""

    def _submit(self, project: Project, job: StageJob, after: Sequence[str], held: ClaimSet) -> str:
        """Record a job, claim its stage, submit it and return its id."""
        name, asked = f"gpas-{secrets.token_hex(5)}", job.resources.first  # PBS once allowed no more than 15 characters
        code = snapshot(project.runs, project=project.config.parent, uses=job.uses)
        folder = project.runs / f".{self.name}" / name
        folder.mkdir(parents=True)
        about = {"id": "", "code": code.code, "git": dict(code.git), "job": to_mapping(job.record())}
        write_json(folder / "job.json", about)
        shutil.copy(__file__, folder)
        replace_file(folder / "job.sh", script(project, folder, code.path, asked), mode=0o600)  # it may have secrets
        more: Any = {"submission": name, "after": job.after, "grid": job.grid}
        claims.write_claim(project.runs, job.key, held.submitter, self.name, **more)
        held.held.discard(job.key)
        try:
            id = self.start(project, asked, folder, after)
        except GpasError as error:
            claims.claim_path(project.runs, job.key).unlink()  # without it, a job that there is after all does nothing
            raise GpasError(f"{error}\nrefused: {job.id}; what was submitted before it stays in the queue") from error
        write_json(folder / "job.json", about | {"id": id})
        return id


@dataclass
class BatchRun:
    """The jobs of one `gpas run`. `stop` only stops the waiting."""

    request: base.RunRequest
    submitted: base.Submitted
    stopped: bool = False

    def stop(self) -> None:
        self.stopped = True

    def follow(self) -> base.RunSummary:
        runs, entries = self.request.project.runs, self.request.entries
        while not self.stopped and any(seen.state in ALIVE for seen in statuses(runs, entries).values()):
            time.sleep(POLL_SECONDS)
        self.request.ingest()
        found = statuses(runs, entries).items()
        return base.summarise(entries, {key: base.Ending(seen, base.reason_of(seen)) for key, seen in found})


def script(project: Project, folder: Path, code: Path, asked: Resources) -> str:
    """Return the shell script of a job. It writes its log itself: some systems bring it only when the job has ended."""
    variables = dict(variable.split("=", 1) for variable in asked.environment) | project.variables
    checked = ("trap 'touch \"$gpas_job/setup-failed\"' EXIT; set -e", *asked.setup, "set +e; trap - EXIT")
    lines = [
        f"gpas_job={shlex.quote(str(folder))}",
        'exec >>"$gpas_job/log.txt" 2>&1',
        f"cd {shlex.quote(str(project.config.parent))} || exit 1",
        *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
        *(checked if asked.setup else ()),
        f"export PYTHONSAFEPATH=1 PYTHONPATH={shlex.quote(str(code))}${{PYTHONPATH:+:$PYTHONPATH}}",
        f'exec {asked.python or shlex.quote(sys.executable)} -u -P "$gpas_job/batch.py" "$gpas_job"',
    ]
    return "\n".join(("#!/bin/sh", *lines, ""))


def work(folder: Path) -> int:
    """Run the stage of the job in `folder`, on the node that it got. Return the exit code, 0 for a result."""
    project, about, signals = Project.find(), read_json(folder / "job.json"), list[int]()
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))  # it is removed, or at its time limit
    runs, record = project.runs, from_mapping(StageRecord, about["job"], str(folder))
    key, asked = record.key, record.resources
    devices = [f"gpu-{i}" for i in range(asked.gpus)] or [f"cpu-{i}" for i in range(asked.threads)]
    lease = Lease((), tuple(devices), asked.threads, dict.fromkeys(THREAD_VARIABLES, str(asked.cpus_per_task)))
    with locks.locked(claims.claims_lock(runs)):
        claim, tries = claims.read_claim(runs, key), [conclude(one) for one in rerun.deciding(runs, key)]
        ended = cancellation.requested(runs, key) or any(one.state in RESULTS for one in tries)
        if ended or claim is None or claim.submission != folder.name:
            return 0
        for parent in (*record.parents, *([record.trunk.key] if record.trunk else [])):
            if not any(conclude(one).state == "done" for one in rerun.deciding(runs, parent)):
                sys.exit(f"needs {parent}, which has no result")
        spawner = Spawner(project, Author(folder.name, socket.gethostname(), os.getpid()), executor=claim.scheduler)
        code = Snapshot(about["code"], snapshot_path(runs, about["code"]), about["git"])
        process = spawner.start(record, code, lease, reduce=bool(tries) and ran_out_of_memory(tries[-1]))
    limit = time_seconds(str(asked.first.time))
    end = time.monotonic() + (limit - asked.notice if limit else float("inf"))
    while not process.ended():
        if cancelled := cancellation.requested(runs, key):
            cancellation.request(process.attempt.path, signalled=True)  # where the job looks when it gets the signal
        if cancelled or signals or time.monotonic() > end:
            process.terminate()
        time.sleep(_CHECK_SECONDS)
    claims.release_claim(runs, key, folder.name, 0)
    return abs(int(process.child.returncode))


if __name__ == "__main__":
    sys.exit(work(Path(sys.argv[1])))
