"""Whether jobs can be submitted to SLURM from here, and whether they are by default."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from gpas_cli.errors import GpasError
from gpas_cli.schedule.scheduler import Choice
from gpas_cli.schedule.slurm.client import present
from gpas_cli.state.claims import LOCAL, SLURM

PING_SECONDS = 20.0  # time limit of `scontrol ping`


def require(environ: Mapping[str, str]) -> None:
    """Raise GpasError if sbatch is not installed."""
    if not present("sbatch", environ):
        raise GpasError(
            "SLURM is not available: sbatch is not on the PATH; submit from a login node, or use --executor local"
        )


def automatic(environ: Mapping[str, str]) -> Choice | None:
    """Return SLURM if its controller answers, this machine in a job of it, None if it is not installed."""
    if not present("sbatch", environ):
        return None
    if "SLURM_JOB_ID" in environ:
        return Choice(LOCAL)
    if _controller_answers(environ):
        return Choice(SLURM)
    return Choice(LOCAL, "sbatch is here, but no SLURM controller answers: jobs run on this machine")


def _controller_answers(environ: Mapping[str, str]) -> bool:
    command = ["scontrol", "ping"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PING_SECONDS, env=dict(environ), check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0 and "is UP" in done.stdout
