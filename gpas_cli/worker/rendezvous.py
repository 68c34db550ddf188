"""The rank of this process in its job, and where the processes meet, from the environment. Needs no torch.

`worker.ranks` and torchrun set RANK, WORLD_SIZE, LOCAL_RANK and the meeting point (GPAS_RENDEZVOUS, or MASTER_ADDR and
MASTER_PORT); a SLURM step sets SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID and its node list.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from gpas_cli.errors import GpasError

RENDEZVOUS = "GPAS_RENDEZVOUS"
PORTS = range(15000, 32000)  # ports for rendezvous, below the ephemeral ports of Linux


@dataclass(frozen=True)
class RankEnv:
    """Process `rank` of `size`, and `local_rank` on its machine.

    `meeting` is the init method by which the processes find each other in torch, "" for a single process.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    meeting: str = ""


ALONE = RankEnv()


def place(environ: Mapping[str, str]) -> RankEnv:
    """Return the place of this process in its job. Raises GpasError if variables are missing or contradictory."""
    names = _names(environ)
    try:
        rank, size, local_rank = (int(environ[name]) for name in names)
    except KeyError as error:
        raise GpasError(f"{error.args[0]} is not set: start ranks with torchrun, srun or `gpas run`") from error
    except ValueError as error:
        raise GpasError(f"{', '.join(names)}: {error}") from error
    if not 0 <= rank < size:
        raise GpasError(f"{names[0]}={rank} and {names[1]}={size}: a rank is at least 0 and below the number of ranks")
    return RankEnv(rank, size, local_rank, meeting(environ) if size > 1 else "")


def meeting(environ: Mapping[str, str]) -> str:
    """Return the init method for torch.distributed. Raises GpasError if the environment sets no address or port."""
    if method := environ.get(RENDEZVOUS):
        return method
    address, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if nodes := environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST"):
        address = address or first_host(nodes)
    if job := environ.get("SLURM_JOB_ID"):
        # This port is the same in every task of a step and after a requeue. Jobs of gpas choose a free port instead
        # (`schedule.slurm.allocation`).
        port = port or str(PORTS[zlib.crc32(f"{job}.{environ.get('SLURM_STEP_ID', '')}".encode()) % len(PORTS)])
    if not address or not port:
        raise GpasError("several processes need an address at which they connect; set MASTER_ADDR and MASTER_PORT")
    host = f"[{address}]" if ":" in address else address
    return f"tcp://{host}:{port}"


def first_host(nodes: str) -> str:
    """Return the first name in a SLURM node list: "n[007-010,12],m1" -> "n007"."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    assert first is not None
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first[0])


def _names(environ: Mapping[str, str]) -> tuple[str, str, str]:
    if "RANK" in environ or "SLURM_PROCID" not in environ:
        return "RANK", "WORLD_SIZE", "LOCAL_RANK"
    # The count of the step, because `srun -n` may start fewer tasks than the job has.
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    return "SLURM_PROCID", size, "SLURM_LOCALID"
