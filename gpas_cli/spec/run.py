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
    `ranks` processes share the work, 0: one for each GPU. They keep whole copies of the network (`ddp`) or shards of
    it (`fsdp`); `auto` shards what is large for the GPU, and recomputes its activations layer by layer (`blocks`).
    """

    gpus: int = setting(0, low=0, high=4096)
    cpus: int = setting(1, low=1, high=4096)
    mem: str = setting("")
    time: str = setting("")
    micro_batch: int = setting(0, low=0)
    compile: str = setting("auto", choices=("auto", "on", "off"))
    ranks: int = setting(0, low=0, high=4096)
    strategy: str = setting("auto", choices=("auto", "ddp", "fsdp"))
    activation_checkpointing: str = setting("auto", choices=("auto", "blocks", "none"))
    partition: str = setting("")
    account: str = setting("")
    qos: str = setting("")
    constraint: str = setting("")

    @property
    def processes(self) -> int:
        """How many processes one job has."""
        return self.ranks or max(1, self.gpus)
