"""SLURM's own programs, run with a time limit. What they print is text; what they fail with is told apart."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Mapping

from gpas_cli.errors import GpasError
from gpas_cli.schedule.process import without_secrets

PATIENCE = 30.0  # seconds; a controller that is down answers "cannot contact" after about ten
# Variables of a job must not leak into jobs submitted from inside it, and a user's defaults for these programs must
# not change what they answer; two say which cluster is meant. Defaults for sbatch are left to `script.overriding`.
DROPPED = ("SLURM_", "SQUEUE_", "SCANCEL_", "SACCT_", "SINFO_", "SCONTROL_", "SRUN_")
KEPT = ("SLURM_CONF", "SLURM_CLUSTERS")


class SlurmError(GpasError):
    """A SLURM command failed. `answered` is whether the scheduler itself refused, rather than not being reached."""

    def __init__(self, message: str, *, answered: bool):
        super().__init__(message)
        self.answered = answered


UNREACHED = (
    "unable to contact slurm controller",
    "socket timed out",
    "connection refused",
    "connection timed out",
    "transport endpoint is not connected",
    "communication",
    "temporarily unable",
    "zero bytes were transmitted",
    "protocol authentication error",
    "could not establish a configuration source",
    "no route to host",
    "unable to establish",
)


def present(program: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `program` is on the PATH."""
    return shutil.which(program, path=environ.get("PATH")) is not None


def environment(
    environ: Mapping[str, str] = os.environ, drop: Collection[str] = (), times: str = "%s"
) -> dict[str, str]:
    """`environ` without what a surrounding job has put there, a user's defaults for SLURM's programs, and `drop`; and
    without the database: sbatch hands all of it to jobs, which never open the database and need not know its password.

    `times` is the form in which the programs print times: by default unix seconds.
    """
    kept = {
        name: value
        for name, value in without_secrets(environ).items()
        if name in KEPT or not (name.startswith(DROPPED) or name in drop)
    }
    # Long lists of array indices are cut by default, and a cut list cannot be read; times without this vary by site.
    return {**kept, "SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": times}


def run(
    *words: str, patience: float = PATIENCE, errors: bool = False, drop: Collection[str] = (), times: str = "%s"
) -> str:
    """What a command prints, with `errors` also to stderr. `drop` and `times` are those of `environment`.

    Raises SlurmError when it is absent, fails or takes longer than `patience` seconds.
    """
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=patience,
            env=environment(drop=drop, times=times), stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise SlurmError(f"{words[0]} is not on the PATH", answered=False) from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"{words[0]} did not answer within {patience:.0f} s", answered=False) from error
    if done.returncode:
        raise failure(words[0], done.stderr or done.stdout)
    return done.stderr + done.stdout if errors else done.stdout


def failure(program: str, said: str) -> SlurmError:
    """The error for what a program said as it failed."""
    lines = [line.strip().removeprefix(f"{program}: ").removeprefix("error: ") for line in said.splitlines()]
    lines = [line for line in lines if line]
    # A command that says nothing was killed, by a time limit for instance: what it asked for may happen all the same.
    # The reason comes last; what a site's own filter said before it may have any words.
    reached = bool(lines) and not any(words in "; ".join(lines[-2:]).lower() for words in UNREACHED)
    return SlurmError(f"{program}: {'; '.join(lines) or 'failed'}", answered=reached)


def configuration() -> dict[str, str]:
    """The controller's settings by name, as text. Raises SlurmError."""
    lines = (line.partition("=") for line in run("scontrol", "show", "config").splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def user() -> str:
    """The number of this user, as SLURM's filters take it."""
    return str(os.getuid())
