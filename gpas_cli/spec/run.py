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

    `compile`: torch.compile for every layer; `auto` does so on GPUs, where it pays from the first minutes on.
    """

    gpus: int = setting(0, low=0, high=4096)
    cpus: int = setting(1, low=1, high=4096)
    mem: str = setting("")
    time: str = setting("")
    micro_batch: int = setting(0, low=0)
    compile: str = setting("auto", choices=("auto", "on", "off"))
    partition: str = setting("")
    account: str = setting("")
    qos: str = setting("")
    constraint: str = setting("")
