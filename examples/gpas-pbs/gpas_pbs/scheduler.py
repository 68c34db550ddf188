"""The part of the adapter that knows PBS: its settings, the arguments of qsub, what qstat prints."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.errors import GpasError, InvalidExperiments, Problem
from gpas_cli.grid.document import read_document
from gpas_cli.grid.settings import root_of
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.project import Project
from gpas_cli.schedule.process import without_secrets
from gpas_cli.spec.parse import setting
from gpas_cli.spec.run import Resources, time_seconds
from gpas_cli.state.status import SchedulerJob
from gpas_pbs.batch import BatchScheduler

_PATIENCE_SECONDS = 60.0  # for a program of PBS
_GONE = re.compile("unknown job|has finished", re.I)  # of each job that qstat was asked for and does not list
_FIELD = re.compile(r"^\s+(Job_Name|job_state|exec_host|comment|Hold_Types) = (.*)$", re.M)
_WORDS = {"Q": "queued", "H": "held", "W": "waiting", "R": "running", "E": "exiting", "S": "suspended"}


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


def arguments(settings: Settings, asked: Resources, name: str, after: Sequence[str]) -> list[str]:
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
    found = ["-N", name, "-S", "/bin/sh", "-j", "oe", "-o", "/dev/null", "-l", wanted]
    found += [word for one in (("-q", asked.chosen_partition), ("-A", asked.account)) if one[1] for word in one]
    return [*found, *(["-W", f"depend=afterok:{':'.join(after)}"] if after else []), *settings.options]


def call(*words: str, cwd: Path | None = None) -> str:
    """Return what a program of PBS prints. Raises GpasError if it refuses, is missing or does not answer."""
    try:
        done = subprocess.run(
            words, cwd=cwd, env=without_secrets(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=_PATIENCE_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GpasError(f"{words[0]}: {error}") from error
    is_gone = done.returncode in (35, 153) and all(map(_GONE.search, done.stderr.splitlines()))
    if words[0] == "qstat" and is_gone:
        return done.stdout
    # With ids, every answer has a job, or a code that says that there is none.
    if done.returncode or (words[0] == "qstat" and "Job Id:" not in done.stdout and (words[2:] or done.stdout.strip())):
        said = "; ".join(dict.fromkeys((done.stderr or done.stdout).splitlines()))  # it repeats itself for each id
        raise GpasError(f"{words[0]}: {said or f'no answer, exit code {done.returncode}'}")
    return done.stdout


@dataclass(frozen=True)
class PbsJob(SchedulerJob):
    """A job in qstat's answer; `state` is its letter."""

    @property
    def pending(self) -> bool:
        return self.state in "QHWTM"

    @property
    def held(self) -> str:
        """The command that releases a job that somebody holds, "" if it waits for another job or is not held."""
        return f"`qrls {self.id}` releases it" if self.state == "H" and self.reason.strip("s") else ""

    def __str__(self) -> str:
        why = self.held or (self.reason if self.state != "H" else "until the jobs before it have ended")
        return f"PBS {self.id} {_WORDS.get(self.state, self.state)}{f' ({why})' if why else ''}"


def jobs_in(text: str) -> dict[str, PbsJob]:
    """Return the jobs that have not ended by name, given what `qstat -f` prints (OpenPBS, Torque, SLURM's wrapper)."""
    found = {}
    for block in re.split(r"^Job Id:\s*", text, flags=re.M)[1:]:
        fields = dict(reversed(_FIELD.findall(block)))  # the first of a name: what follows may be a variable's value
        if (state := fields["job_state"]) not in "FCX":
            why = fields.get("Hold_Types" if state == "H" else "comment", "")
            found[fields["Job_Name"]] = PbsJob(block.split()[0], state, why, fields.get("exec_host", ""))
    return found


class PbsScheduler(BatchScheduler):
    """The scheduler of a PBS server."""

    name = "pbs"

    @staticmethod
    def require() -> None:
        if shutil.which("qsub") is None:
            raise GpasError("PBS is not available: qsub is not on the PATH; submit from a login node")

    def check(self, project: Project, resources: Resources) -> None:
        arguments(settings_of(project), resources, "", ())

    def start(self, project: Project, resources: Resources, folder: Path, after: Sequence[str]) -> str:
        # A path that is relative, because SLURM's wrapper of qsub gives its words to a shell without quotes.
        return call(
            "qsub", *arguments(settings_of(project), resources, folder.name, after), "job.sh", cwd=folder
        ).split()[-1]

    def ask(self, ids: Sequence[str]) -> dict[str, PbsJob]:
        return jobs_in(call("qstat", "-f", *ids))

    def remove(self, job: SchedulerJob) -> None:
        call("qdel", job.id)

    def preview(self, project: Project, jobs: Sequence[StageJob]) -> Iterator[str]:
        for job in jobs:
            after = [f"JOB-{key[:6]}" for key in job.after]
            words = arguments(settings_of(project), job.resources.first, "gpas-NAME", after)
            yield f"# {job.id}: {shlex.join(['qsub', *words, 'job.sh'])}"
