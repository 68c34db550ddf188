"""SLURM's command-line programs, run with a time limit: whether they can be used, and what a refusal says."""

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping

from gpas_cli.errors import GpasError
from gpas_cli.schedule.batch.submission import BatchError
from gpas_cli.schedule.process import without_secrets

_TIMEOUT_SECONDS = 30.0  # a controller that is down answers "cannot contact" after about ten
# Variables of a job must not leak into jobs submitted from inside it, and a user's defaults for these programs must
# not change their output; the two that select the cluster are kept. `script.overriding` handles defaults for sbatch.
_DROPPED = ("SLURM_", "SQUEUE_", "SCANCEL_", "SACCT_", "SINFO_", "SCONTROL_", "SRUN_")
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS")
# In what a program says, if it could not reach the controller.
_UNREACHED = (
    "unable to contact slurm controller", "socket timed out", "connection refused", "connection timed out",
    "transport endpoint is not connected", "communication", "temporarily unable", "zero bytes were transmitted",
    "protocol authentication error", "could not establish a configuration source", "no route to host",
    "unable to establish",
)  # fmt: skip


class SlurmError(BatchError):
    """A SLURM command failed."""


def _environment(environ: Mapping[str, str] = os.environ, drop: Collection[str] = ()) -> dict[str, str]:
    """Return `environ` without the variables of a surrounding job, a user's defaults for SLURM's programs, and `drop`.

    The URL of the database is left out too: sbatch passes the environment on to jobs, which never open the database and
    need not know its password. Times are printed as unix seconds.
    """
    kept = {
        name: value
        for name, value in without_secrets(environ).items()
        if name in _KEPT or not (name.startswith(_DROPPED) or name in drop)
    }
    # By default, long lists of array indices are cut and cannot be parsed, and the format of times varies by site.
    return {**kept, "SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "%s"}


def run(*words: str, patience: float = _TIMEOUT_SECONDS, drop: Collection[str] = ()) -> str:
    """Return the output of a command. `drop`: variables that it does not get.

    Raises SlurmError if the command is missing, fails or takes longer than `patience` seconds.
    """
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=patience,
            env=_environment(drop=drop), stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise SlurmError(f"{words[0]} is not on the PATH", answered=False) from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"{words[0]} did not answer within {patience:.0f} s", answered=False) from error
    if done.returncode:
        raise _failure(words[0], done.stderr or done.stdout)
    return done.stdout


def _failure(program: str, said: str) -> SlurmError:
    """Return the error for a program that failed with the output `said`."""
    lines = [line.strip().removeprefix(f"{program}: ").removeprefix("error: ") for line in said.splitlines()]
    lines = [line for line in lines if line]
    # A command without output was killed, for instance by a time limit: its request may be carried out nevertheless.
    # The reason comes last; lines that a site's own filter printed before it may contain any text.
    reached = bool(lines) and not any(words in "; ".join(lines[-2:]).lower() for words in _UNREACHED)
    return SlurmError(f"{program}: {'; '.join(lines) or 'failed'}", answered=reached)


def answer(head: str | tuple[str, ...], *words: str) -> list[str]:
    """Return the lines that a command prints, from the first one that begins with `head`.

    Every answer has this line, with however few jobs: an output without it is no evidence that SLURM has no jobs. What
    a site prints before it is ignored. Raises SlurmError like `run`, and if there is no such line or the last is cut.
    """
    lines = run(*words).split("\n")
    first = next((i for i, line in enumerate(lines) if line.startswith(head)), None)
    if first is None or lines[-1]:
        what = repr((lines[-1] or lines[0])[:60].strip()) if any(lines) else "nothing"
        raise SlurmError(f"{words[0]} printed {what}, which is not the answer asked for", answered=False)
    return lines[first:-1]


def configuration() -> dict[str, str]:
    """Return the controller's settings by name, as text. Raises SlurmError."""
    lines = (line.partition("=") for line in run("scontrol", "show", "config").splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def require() -> None:
    """Raise GpasError if sbatch is not installed."""
    if shutil.which("sbatch") is None:
        raise GpasError(
            "SLURM is not available: sbatch is not on the PATH; submit from a login node, or use --executor local"
        )


def seconds(words: str) -> float:
    """Return a SLURM time in seconds: "15", "5 sec", "00:01:30", "1-00:00:00". Raises GpasError for other forms."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)(?: sec)?", words.strip())
    if match is None:
        raise GpasError(f"not a SLURM time: {words!r}")
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)
