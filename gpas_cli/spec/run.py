"""How a cell is run, as far as it cannot change the result: cadence of observation and resources. Not in the key."""

from __future__ import annotations

from dataclasses import dataclass

from gpas_cli.spec.parse import setting


@dataclass(frozen=True, kw_only=True)
class Cadence:
    """Updates between two log lines, two records of per-layer statistics, two evaluations, two checkpoints."""

    log_every: int = setting(10, low=1)
    stats_every: int = setting(100, low=1)
    eval_every: int = setting(1000, low=1)
    checkpoint_every: int = setting(500, low=1)


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one job asks for. `micro_batch` 0 lets the trainer choose; `time` is a SLURM time, D-HH:MM:SS.

    The rest is for SLURM only. gpus and cpus count over all `nodes`, with one task per GPU. `sbatch` has further
    options as they are given to sbatch, `setup` lines of shell that run before the job, `environment` NAME=VALUE,
    `python` the command that starts Python there. `pack` small cells share one job; at most `at_once` jobs of an array
    run at a time (0: as many as the scheduler lets); the warning signal comes `notice` seconds before the time limit;
    `retries` attempts in a row may come no further than those before them.
    """

    gpus: int = setting(0, low=0, high=4096)
    cpus: int = setting(1, low=1, high=4096)
    mem: str = setting("")
    time: str = setting("")
    micro_batch: int = setting(0, low=0)
    partition: str = setting("")
    account: str = setting("")
    qos: str = setting("")
    constraint: str = setting("")
    nodes: int = setting(1, low=1, high=4096, late=True)
    sbatch: tuple[str, ...] = setting((), late=True)
    setup: tuple[str, ...] = setting((), late=True)
    environment: tuple[str, ...] = setting((), late=True)
    python: str = setting("", late=True)
    pack: int = setting(1, low=1, high=256, late=True)
    at_once: int = setting(0, low=0, late=True)
    notice: int = setting(120, low=1, high=3600, late=True)
    retries: int = setting(3, low=1, high=1000, late=True)

    @property
    def tasks(self) -> int:
        """Processes of one job: one for each GPU."""
        return max(1, self.gpus)

    @property
    def cpus_per_task(self) -> int:
        return max(1, self.cpus // self.tasks)
