"""Rendering of resources as sbatch scripts, through submitit.

Each task of a step is a supervisor (`schedule.slurm.supervisor`); the one of rank 0 decides. A shell in front of each
ignores the warning signals until Python has installed its handlers: an earlier signal would kill the task, and SLURM
would report the job as failed.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gpas_cli.errors import InvalidExperiments, Problem
from gpas_cli.project import Project
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
# A line of the setup that fails ends the job, as `set -e` does, and gives its number, because its text may be a secret.
# What fails inside a file that it sources does not count, unless the file fails as a whole. The shell's own messages
# quote the setup and the path of Python, so the log is the user's alone.
_CHECKED = (
    "[ ! -f /dev/stdout ] || chmod 600 /dev/stdout; above=$LINENO; trap 'code=$?; [ ${#BASH_SOURCE[@]} -gt 1 ] || "
    '{ echo "resources.setup failed with exit $code in its line $((LINENO - above))"; exit 1; }\' ERR'
)
_UNCHECKED = "trap - ERR"
# Compares the copy of the code with its name, a hash (`files.digest_of`), when the job starts and has imported
# nothing from it. SLURM keeps this text since the submission.
_VERIFY = """\
import hashlib, os, sys
root, code = sys.argv[1:]
lines = []
for folder, below, names in os.walk(root):
    for path in (os.path.join(folder, name) for name in below + names):
        regular = os.path.isfile(path) and not os.path.islink(path)
        content = open(path, "rb").read() if regular else b""
        empty = regular and not content and os.path.basename(path) == "__pycache__"
        if not empty and (os.path.islink(path) or not os.path.isdir(path)):
            name = os.path.relpath(path, os.path.join(root, "gpas_cli"))
            lines.append((name, hashlib.sha256(content).hexdigest() if regular else "not a file"))
text = "".join("%s\\0%s\\n" % line for line in sorted(lines))
if hashlib.sha256(text.encode()).hexdigest()[:16] != code:
    sys.exit(root + " has been changed since the job was submitted; delete it, and the next `gpas run` copies it again")
"""
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
    resources = resources.first
    return {
        "partition": resources.chosen_partition or None,
        "account": resources.account or None,
        "qos": resources.qos or None,
        "constraint": resources.constraint or None,
        "mem": resources.mem or None,
        "time": resources.time or None,
        "nodes": resources.nodes,
        "ntasks_per_node": resources.processes // resources.nodes,
        "cpus_per_task": resources.cpus_per_task,
        "gpus_per_node": resources.gpus // resources.nodes or None,
        "signal_delay_s": resources.notice,
        "array_parallelism": resources.at_once or 10**6,
        "setup": list(resources.setup),
        "environment": list(resources.environment),
        "python": resources.python,
        "additional_parameters": dict(map(option, resources.sbatch)),
    }


def text(
    project: Project,
    place: Path,
    code: Snapshot,
    profile: Mapping[str, Any],
    array: str,
    dependency: str = "",
    exclude: str = "",
) -> str:
    """Return the sbatch script of the submission in `place`.

    `array` has the indices in sbatch's form (0-9%4); `exclude` lists the nodes not to use.
    """
    more: dict[str, Any] = {"array": array, "requeue": True, **profile["additional_parameters"]}
    if dependency:
        more |= {"dependency": dependency, "kill-on-invalid-dep": "yes"}
    if exclude:
        more["exclude"] = ",".join(filter(None, (str(more.get("exclude", "")), exclude)))
    log = f"{_literal(place)}/%A_%a_"
    inner = f'trap "" USR2 TERM; exec {_python(profile)} -u -P -m {_MODULE} {shlex.quote(str(place))}'
    # An empty entry of PYTHONPATH is the working directory, from which jobs import nothing.
    setup = [
        f"{_python(profile)} -I -c {shlex.quote(_VERIFY)} {shlex.quote(str(code.path))} {code.code} || exit 1",
        f'PYTHONPATH=$(printf %s:%s {shlex.quote(str(code.path))} "${{PYTHONPATH:-}}" | tr -s :)',
        'export PYTHONSAFEPATH=1 PYTHONPATH="${PYTHONPATH%:}"',
    ]
    chosen = {**profile, "additional_parameters": more, "comment": f"gpas {code.code}"}
    return _rendered(project, place.name, chosen, f"{log}0_log.out", setup, f"{log}%t_log.out", inner)


def single(project: Project, name: str, log: Path, resources: Resources, words: str) -> str:
    """Return the sbatch script of one short task: Python runs `words` (quoted) as it runs jobs of these resources."""
    profile = dict(parameters(resources.tiny("2G", "0:02:00")))  # enough to import torch
    options = profile["additional_parameters"].items()
    profile["additional_parameters"] = {option: value for option, value in options if not option.startswith("mail")}
    output = _literal(log)
    return _rendered(project, name, profile, output, [], output, f"exec {_python(profile)} -u -P {words}")


def _rendered(
    project: Project, name: str, profile: Mapping[str, Any], log: str, setup: Sequence[str], output: str, inner: str
) -> str:
    """Return the sbatch script that runs the shell command `inner` as the step of a job.

    `log` and `output` are SLURM's file name patterns. This is the only place that goes beyond submitit's public API:
    its `submit` pickles a Python function and calls sbatch itself, while we record the submission before sbatch, so
    that a submitter that dies loses nothing. `_make_submission_file_text` only renders the script; a test pins our use
    of it to submitit's newest release.
    """
    from submitit.slurm.slurm import SlurmExecutor

    class Script(SlurmExecutor):
        """An executor that only renders scripts, also on machines without srun."""

        @classmethod
        def affinity(cls) -> int:
            return 1

    chosen = {key: value for key, value in profile.items() if key not in ("environment", "python")}
    pairs = [variable.partition("=")[::2] for variable in profile["environment"]]
    chosen |= {
        "job_name": name,
        "wckey": None,  # a site that enforces wckeys would refuse submitit's default
        "additional_parameters": {
            "chdir": str(project.config.parent),
            "output": log,
            **profile["additional_parameters"],
        },
        "setup": [
            *([_CHECKED, *profile["setup"], _UNCHECKED] if profile["setup"] or profile["python"] else []),
            *[f"export {name}={shlex.quote(value)}" for name, value in (*pairs, *project.variables.items())],
            *setup,
        ],
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
        f"--cpus-per-task={profile['cpus_per_task']}",
        "--kill-on-bad-exit=1",
    ]
    return str(executor._make_submission_file_text(f"{shlex.join(step)} sh -c {shlex.quote(inner)}", ""))


def _python(profile: Mapping[str, Any]) -> str:
    return profile["python"] or shlex.quote(sys.executable)


def _literal(path: Path) -> str:
    """Return a path for use in a pattern, in which SLURM replaces percent signs."""
    return str(path).replace("%", "%%")


def overriding(script: str) -> set[str]:
    """Return the environment variables that would make sbatch override options of the script."""
    lines = (line for line in script.splitlines() if line.startswith("#SBATCH --"))
    options = {line.removeprefix("#SBATCH --").partition("=")[0] for line in lines}
    names = [_VARIABLES.get(option, (option.replace("-", "_").upper(),)) for option in options]
    return {*_NEVER, *(f"SBATCH_{name}" for each in names for name in each)}
