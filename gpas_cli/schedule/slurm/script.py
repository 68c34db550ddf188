"""Rendering of resources as sbatch scripts, through submitit.

Each task of a step is a supervisor (`schedule.slurm.supervisor`); the one of rank 0 decides. A shell in front of each
ignores the warning signals until Python has installed its handlers: an earlier signal would kill the task, and SLURM
would report the job as failed.
"""

import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from gpas_cli.errors import InvalidExperiments, Problem
from gpas_cli.project import Project
from gpas_cli.schedule.batch.script import preamble, python
from gpas_cli.schedule.batch.submission import Array
from gpas_cli.spec.parse import build, plain
from gpas_cli.spec.run import Resources, option
from gpas_cli.store.snapshot import Snapshot

_MODULE = "gpas_cli.schedule.slurm.supervisor"
# Environment variables that override sbatch options set in the script, by option. The variable of any other option
# has the option's name.
_VARIABLES = {
    "time": ("TIMELIMIT",),
    "array": ("ARRAY_INX",),
    "mem": ("MEM_PER_NODE", "MEM_PER_CPU", "MEM_PER_GPU"),
    "cpus-per-task": ("CPUS_PER_TASK", "CPUS_PER_GPU"),
    "gpus-per-node": ("GPUS_PER_NODE", "GPUS", "GPUS_PER_TASK", "GRES"),
    "requeue": ("REQUEUE", "NO_REQUEUE"),
    "output": ("OUTPUT", "ERROR"),
}
# With these, sbatch would wait for the end of the job or for its start, or would only test the script.
_NEVER = ("SBATCH_WAIT", "SBATCH_IMMEDIATE", "SBATCH_TEST_ONLY")


@cache
def parameters(resources: Resources) -> dict[str, Any]:
    """Return the profile as submitit's parameters. Elements with equal parameters can share an array.

    Callers must not change the result: it is cached.

    Raises InvalidExperiments if the resources are invalid; those in experiments.yaml are checked when the file is read.
    """
    problems: list[Problem] = []
    build(Resources, plain(resources), ("resources",), problems)
    faults = resources.faults | resources.unrecorded
    problems += [Problem(("resources", name), fault) for name, fault in faults.items()]
    if problems:
        raise InvalidExperiments(problems)
    asked = resources.first
    return {
        "partition": asked.chosen_partition or None,
        **{name: getattr(asked, name) or None for name in ("account", "qos", "constraint", "mem", "time")},
        "nodes": asked.nodes,
        "ntasks_per_node": asked.processes // asked.nodes,
        "cpus_per_task": asked.cpus_per_task,
        "gpus_per_node": asked.gpus // asked.nodes or None,
        "signal_delay_s": asked.notice,
        "array_parallelism": asked.at_once or 10**6,
        "additional_parameters": dict(map(option, asked.sbatch)),
    }


def text(
    project: Project, asked: Resources, place: Path, code: Snapshot, array: str, dependency: str = "", exclude: str = ""
) -> str:
    """Return the sbatch script of the submission in `place`.

    `array` has the indices in sbatch's form (0-9%4); `exclude` lists the nodes not to use.
    """
    more: dict[str, Any] = {"array": array, "requeue": True, **dict(map(option, asked.sbatch))}
    if dependency:
        more |= {"dependency": dependency, "kill-on-invalid-dep": "yes"}
    if exclude:
        more["exclude"] = ",".join(filter(None, (str(more.get("exclude", "")), exclude)))
    log = f"{_literal(place)}/%A_%a_"
    inner = f'trap "" USR2 TERM; exec {python(asked)} -u -P -m {_MODULE} {shlex.quote(str(place))}'
    return _rendered(project, place.name, asked, more, f"{log}0_log.out", code, f"{log}%t_log.out", inner)


def single(project: Project, name: str, log: Path, resources: Resources, words: str) -> str:
    """Return the sbatch script of one short task: Python runs `words` (quoted) as it runs jobs of these resources."""
    asked = resources.tiny("2G", "0:02:00")  # enough to import torch
    more = {name: value for name, value in map(option, asked.sbatch) if not name.startswith("mail")}
    output = _literal(log)
    return _rendered(project, name, asked, more, output, None, output, f"exec {python(asked)} -u -P {words}")


def _rendered(
    project: Project, name: str, asked: Resources, more: Mapping[str, Any], log: str, code: Snapshot | None,
    output: str, inner: str,
) -> str:  # fmt: skip
    """Return the sbatch script that runs the shell command `inner` as the step of a job.

    `more` has further options of sbatch; `log` and `output` are SLURM's file name patterns. This is the only place that
    goes beyond submitit's public API: its `submit` pickles a Python function and calls sbatch itself, while we record
    the submission before sbatch, so that a submitter that dies loses nothing. `_make_submission_file_text` only renders
    the script; a test pins our use of it to submitit's newest release.
    """
    from submitit.slurm.slurm import SlurmExecutor

    class Script(SlurmExecutor):
        """An executor that only renders scripts, also on machines without srun."""

        @classmethod
        def affinity(cls) -> int:
            return 1

    chosen = parameters(asked) | {
        "job_name": name,
        "wckey": None,  # a site that enforces wckeys would refuse submitit's default
        "comment": f"gpas {code.code}" if code else None,
        "additional_parameters": {"chdir": str(project.config.parent), "output": log, **more},
        "setup": preamble(project, asked, code),
        "stderr_to_stdout": True,
        "use_srun": False,  # submitit does not escape percent signs of the folder in its log patterns
    }
    executor = Script(project.runs)
    executor.update_parameters(**chosen)
    step = [
        "srun",
        "--unbuffered",
        f"--output={output}",
        "--export=ALL",  # the job's environment, even if the site or the user makes sbatch pass none on
        # Since SLURM 22.05 srun does not inherit cpus-per-task; a rank that dies must not leave others waiting.
        f"--cpus-per-task={asked.cpus_per_task}",
        "--kill-on-bad-exit=1",
    ]
    return str(executor._make_submission_file_text(f"{shlex.join(step)} sh -c {shlex.quote(inner)}", ""))


def _literal(path: Path) -> str:
    """Return a path for use in a pattern, in which SLURM replaces percent signs."""
    return str(path).replace("%", "%%")


def overriding(script: str) -> set[str]:
    """Return the environment variables that would make sbatch override options of the script."""
    lines = (line for line in script.splitlines() if line.startswith("#SBATCH --"))
    options = {line.removeprefix("#SBATCH --").partition("=")[0] for line in lines}
    names = [_VARIABLES.get(option, (option.replace("-", "_").upper(),)) for option in options]
    return {*_NEVER, *(f"SBATCH_{name}" for each in names for name in each)}


def dependency(array: Array) -> str:
    """Return what an array waits for, in sbatch's form: afterok:7_0:7_2, aftercorr:7; "" if nothing."""
    if array.beside:
        return f"aftercorr:{array.beside}"
    return ":".join(("afterok", *(f"{place.job}_{place.index}" for place in array.after))) if array.after else ""


def spec(array: Array, at_once: int | None) -> str:
    """Return the indices of an array in sbatch's form: 0-9%4, 1,3-5."""
    most = at_once or array.first.resources.at_once
    return ranges(array.indices) + (f"%{most}" if most and most < len(array.indices) else "")


def ranges(indices: Sequence[int]) -> str:
    """Return ascending indices in SLURM's form: 0-9, 1,3-5."""
    runs = groupby(enumerate(indices), key=lambda placed: placed[1] - placed[0])
    ends = ([index for _, index in run] for _, run in runs)
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in ends)
