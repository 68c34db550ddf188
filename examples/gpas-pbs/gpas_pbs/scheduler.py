"""The scheduler of PBS: its settings, the arguments of qsub, what qstat prints."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.errors import GpasError, InvalidExperiments, Problem
from gpas_cli.grid.document import read_document
from gpas_cli.grid.settings import root_of
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.project import Project
from gpas_cli.schedule.batch.scheduler import BatchRun, BatchScheduler
from gpas_cli.schedule.batch.submission import Array, BatchError, Submission, open_names
from gpas_cli.schedule.batch.view import RUNNING, BatchJob
from gpas_cli.schedule.process import without_secrets
from gpas_cli.schedule.scheduler import Finding, JobBatch, RunRequest
from gpas_cli.spec.parse import setting
from gpas_cli.spec.run import Resources, time_seconds
from gpas_cli.state.view import SchedulerView
from gpas_cli.words import count, listed

_PATIENCE_SECONDS = 60.0  # for a program of PBS
_GONE = re.compile("unknown job|has finished", re.I)  # of each job asked for that has ended
_FIELD = re.compile(r"^\s+(Job_Name|job_state|exec_host|comment|Hold_Types) = (.*)$", re.M)
_DEPEND = re.compile(r"^ +depend = (.*(?:\n\t.*)*)", re.M)
_WAITING = {"Q": "queued", "H": "held", "W": "waiting", "T": "moving", "M": "moved"}
_STATES = {**_WAITING, "R": RUNNING, "E": RUNNING, "S": "suspended"}  # E: exiting


@dataclass(frozen=True, kw_only=True)
class Settings:
    """pbs.yaml, beside the experiments file. gpus: the name of the resource that counts them. options: of qsub."""

    gpus: str = setting("ngpus", choices=("ngpus", "naccelerators"))
    options: tuple[str, ...] = setting(())


def settings_of(project: Project) -> Settings:
    """Return the settings of a project. Raises InvalidExperiments with all that is wrong in the file."""
    path, problems = project.config.with_name("pbs.yaml"), list[Problem]()
    made = root_of(read_document(path), problems).instance(Settings) if path.exists() else Settings()
    if problems or made is None:
        raise InvalidExperiments(problems)
    return made


def arguments(settings: Settings, asked: Resources, after: Sequence[str]) -> list[str]:
    """Return the arguments of qsub for a job with these resources, which starts when the jobs `after` have succeeded.

    Raises GpasError for resources that PBS jobs of this adapter cannot have.
    """
    faults = {**asked.faults, **asked.unrecorded} | ({"nodes": "must be 1 on PBS"} if asked.nodes > 1 else {})
    faults |= {name: "is SLURM's; use `options` in pbs.yaml" for name in ("qos", "sbatch") if getattr(asked, name)}
    if faults:
        raise GpasError("; ".join(f"resources.{name}: {fault}" for name, fault in faults.items()))
    gpus = f"{settings.gpus}={asked.gpus}" if asked.gpus else ""
    memory = f"mem={str(asked.mem).lower().rstrip('b')}b" if asked.mem not in ("", "0") else ""  # 0: all of the node
    wanted = ":".join(filter(None, ("select=1", f"ncpus={asked.threads}", gpus, memory, asked.constraint)))
    if limit := time_seconds(str(asked.time)):
        wanted += f",walltime={limit // 3600}:{limit // 60 % 60:02}:{limit % 60:02}"
    found = ["-S", "/bin/bash", "-j", "oe", "-o", "/dev/null", "-l", wanted]
    found += [word for one in (("-q", asked.chosen_partition), ("-A", asked.account)) if one[1] for word in one]
    return [*found, *(["-W", f"depend=afterok:{':'.join(after)}"] if after else []), *settings.options]


def call(*words: str, cwd: Path | None = None) -> str:
    """Return what a program of PBS prints. Raises BatchError if it refuses, is missing or does not answer."""
    try:
        done = subprocess.run(
            words, cwd=cwd, env=without_secrets(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=_PATIENCE_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BatchError(f"{words[0]}: {error}") from error
    is_gone = done.returncode in (35, 153) and all(map(_GONE.search, done.stderr.splitlines()))
    if words[0] in ("qstat", "qdel") and is_gone:
        return done.stdout
    # With ids, every answer has a job, or a code that says that there is none.
    if done.returncode or (words[0] == "qstat" and "Job Id:" not in done.stdout and (words[2:] or done.stdout.strip())):
        said = "; ".join(dict.fromkeys((done.stderr or done.stdout).splitlines()))  # it repeats itself for each id
        raise BatchError(f"{words[0]}: {said or f'no answer, exit code {done.returncode}'}")
    return done.stdout


@dataclass(frozen=True)
class PbsJob(BatchJob):
    """A job in qstat's answer."""

    after: tuple[str, ...] = ()  # the ids of the jobs that it waits for

    @property
    def pending(self) -> bool:
        return self.state in _WAITING.values()

    @property
    def held(self) -> str:
        """The command that releases a job that somebody holds, "" if it waits for another job or is not held."""
        return f"`qrls {self.id}` releases it" if self.state == "held" and self.reason.strip("s") else ""

    def __str__(self) -> str:
        why = self.held or (self.reason if self.state != "held" else "until the jobs before it have ended")
        return f"PBS {self.id} {self.state.lower()}{f' ({why})' if why else ''}"


def jobs_in(text: str) -> dict[str, PbsJob]:
    """Return the jobs that have not ended by name, given what `qstat -f` prints (OpenPBS, Torque, SLURM's wrapper)."""
    found = {}
    for block in re.split(r"^Job Id:\s*", text, flags=re.M)[1:]:
        fields = dict(reversed(_FIELD.findall(block)))  # the first of a name: what follows may be a variable's value
        if (letter := fields["job_state"]) not in "FCX":
            state: str = _STATES.get(letter) or letter
            why = fields.get("Hold_Types" if letter == "H" else "comment", "")
            depend = "".join(_DEPEND.findall(block)[:1]).replace("\n\t", "")
            after = tuple(id for part in depend.split(",") if "after" in part for id in re.findall(r":([^@:]+)", part))
            name, nodes = fields["Job_Name"], fields.get("exec_host", "")
            found[name] = PbsJob(block.split()[0], state, why, nodes, after=after)
    return found


class PbsScheduler(BatchScheduler):
    """The scheduler of a PBS server."""

    name, title = "pbs", "PBS"

    def __init__(self, scan: SchedulerView):
        super().__init__(scan)
        self._waiting = list[PbsJob]()  # for other jobs
        self._left = list[PbsJob]()  # for jobs that PBS no longer has: OpenPBS holds them for ever

    @staticmethod
    def require() -> None:
        if shutil.which("qsub") is None:
            raise GpasError("PBS is not available: qsub is not on the PATH; submit from a login node")

    def options(self, project: Project, asked: Resources, after: Sequence[str] = ()) -> list[str]:
        return arguments(settings_of(project), asked.first, after)

    def start(self, request: RunRequest, array: Array, made: Submission) -> str:
        while self._left:
            with suppress(GpasError):  # it is another user's, for instance: it stays held
                self.remove(self._left.pop().id, ())
        # A path that is relative, because SLURM's wrapper of qsub gives its words to a shell without quotes.
        after = [array.beside] if array.beside else [place.job for place in array.after]
        words = self.options(request.project, array.first.resources, after)
        return call("qsub", "-N", made.name, *words, "submission.sh", cwd=made.folder).split()[-1]

    def ask(self, ids: Sequence[str]) -> dict[str, PbsJob]:
        names, found = set(open_names(self.place)), jobs_in(call("qstat", "-f", *ids))
        here = {job.id for job in found.values()}
        # Without ids, all jobs of the server are listed; those of others are not removed.
        self._waiting = [job for name, job in found.items() if job.after and name in names]
        self._left = [job for job in self._waiting if not here.issuperset(job.after)]
        return {name: job for name, job in found.items() if job not in self._left}

    def remove(self, array: str, indices: Sequence[int]) -> None:
        call("qdel", array)
        for job in self._waiting:
            if array in job.after:
                with suppress(GpasError):  # other systems have removed it themselves
                    self.remove(job.id, indices)

    def submit(self, request: RunRequest) -> BatchRun:
        if request.at_once:
            raise GpasError("--jobs: PBS does not limit how many jobs of a command run at once; a queue may")
        if request.stop_at_failure:
            raise GpasError("--stop-at-first-failure: jobs of PBS do not know of each other's failures")
        run = super().submit(request)
        if made := run.submitted.batches:
            text, keys = f"{listed([one.job for one in made])} to {self.name}", tuple(one.keys[0] for one in made)
            run.submitted.batches = [JobBatch(self.name, made[0].job, keys, text)]
        return run

    def findings(self, project: Project, resources: Mapping[str, Resources], *, nodes: bool) -> Iterator[Finding]:
        try:
            for asked in resources.values():
                self.options(project, asked)
            if error := self.queue.error:
                raise GpasError(error)
            yield Finding(self.name, "ok", f"{count(len(self.queue.jobs), 'job')} of this project in the queue")
        except GpasError as error:
            yield Finding(self.name, "problem", str(error))

    def preview(self, project: Project, jobs: Sequence[StageJob]) -> Iterator[str]:
        for job in jobs:
            words = self.options(project, job.resources, [f"JOB-{key[:6]}" for key in job.after])
            yield f"# {job.id}: {shlex.join(['qsub', '-N', 'gpas-NAME', *words, 'submission.sh'])}"
