"""Which of a job's processes this one is, by the variables that started it. Needs no torch.

`worker.ranks` and torchrun set RANK, WORLD_SIZE, LOCAL_RANK and where to meet (GPAS_RENDEZVOUS, or MASTER_ADDR and
MASTER_PORT); a SLURM step sets SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID and its node list.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from gpas_cli.errors import GpasError

RENDEZVOUS = "GPAS_RENDEZVOUS"
PORTS = range(15000, 32000)  # where processes meet: below those that Linux hands out itself


@dataclass(frozen=True)
class RankEnv:
    """Process `rank` of `size`, the `local_rank`-th on its machine; `meeting` is where torch lets them find each other,
    "" for a process of its own."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    meeting: str = ""


ALONE = RankEnv()


def place(environ: Mapping[str, str]) -> RankEnv:
    """This process's place. Raises GpasError for variables that are missing or contradict each other."""
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
    """Where the processes of one job meet, as torch wants it. Raises GpasError when nothing says where."""
    if method := environ.get(RENDEZVOUS):
        return method
    address, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if nodes := environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST"):
        address = address or first_host(nodes)
    if job := environ.get("SLURM_JOB_ID"):
        # The same in every task of a step and after a requeue. Our own jobs choose a free port
        # (`schedule.slurm.allocation`).
        port = port or str(PORTS[zlib.crc32(f"{job}.{environ.get('SLURM_STEP_ID', '')}".encode()) % len(PORTS)])
    if not address or not port:
        raise GpasError("several processes, and nothing says where they meet; set MASTER_ADDR and MASTER_PORT")
    host = f"[{address}]" if ":" in address else address
    return f"tcp://{host}:{port}"


def first_host(nodes: str) -> str:
    """The first name in a SLURM node list: "n[007-010,12],m1" -> "n007"."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    assert first is not None
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first[0])


def _names(environ: Mapping[str, str]) -> tuple[str, str, str]:
    if "RANK" in environ or "SLURM_PROCID" not in environ:
        return "RANK", "WORLD_SIZE", "LOCAL_RANK"
    # The step's own count: `srun -n` may start fewer tasks than the job was given.
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    return "SLURM_PROCID", size, "SLURM_LOCALID"
