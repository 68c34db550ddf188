"""How a cell is run, as far as it cannot change a result: cadence, watch and resources. Not in the key."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpas_cli.spec.parse import setting
from gpas_cli.spec.sbatch import (
    asks_for_gpus,
    memory_fault,
    notice_fault,
    option_fault,
    spread_fault,
    time_fault,
    variable_fault,
)


@dataclass(frozen=True, kw_only=True)
class Cadence:
    """Updates between two log lines, two records of per-layer statistics, two evaluations, two checkpoints."""

    log_every: int = setting(10, low=1)
    stats_every: int = setting(100, low=1)
    eval_every: int = setting(1000, low=1)
    checkpoint_every: int = setting(500, low=1)


@dataclass(frozen=True, kw_only=True)
class Monitoring:
    """What counts as a spike and as divergence, and who else is told of a run's events.

    window, spike: a value is a spike if it exceeds the median of the `window` updates before it by `spike` robust
    standard deviations (`train.health`); 0 looks for none. margin, patience: a loss that stays `margin` nats above both
    its first value and that of guessing for `patience` updates in a row has diverged and ends the run. A network that
    has merely stopped learning stays below that for ever: at worst it guesses by frequency.
    tensorboard: a folder, relative to the experiments file; wandb: a project of Weights & Biases. profile: so many
    updates after the first few are profiled.
    """

    window: int = setting(128, low=16, high=4096)
    spike: float = setting(6.0, low=0)
    margin: float = setting(1.0, above=0)
    patience: int = setting(500, low=1)
    tensorboard: str = setting("")
    wandb: str = setting("")
    profile: int = setting(0, low=0, high=1000)


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one job asks for. `micro_batch` 0 lets the trainer choose; `time` is a SLURM time, D-HH:MM:SS.

    `compile`: torch.compile for every layer; `auto` does so on GPUs, where it pays from the first minutes on, and on a
    CPU for trainings of hours; both only if a C++ compiler is there.
    `ranks` processes share the work, 0: one for each GPU. They keep whole copies of the network (`ddp`) or shards of
    it (`fsdp`); `auto` shards what is large for the GPU, and recomputes its activations layer by layer (`blocks`).

    `resume`: whether a run may go on from a checkpoint that another version of the code made (`any-code`: with a
    warning, and a note in tables) or is refused (`same-code`).

    The rest is for SLURM only. gpus and cpus count over all `nodes`, with one task per GPU. `sbatch` has further
    options as they are given to sbatch, `setup` lines of shell that run before the job, `environment` NAME=VALUE,
    `python` the command that starts Python there. `pack` small cells share one job; at most `at_once` jobs of an array
    run at a time (0: as many as the scheduler lets); the warning signal comes `notice` seconds before the time limit;
    `retries` attempts in a row may come no further than those before them.
    """

    gpus: int = setting(0, low=0, high=4096)
    cpus: int = setting(1, low=1, high=4096)
    mem: str = setting("", check=memory_fault)
    time: str = setting("", check=time_fault)
    micro_batch: int = setting(0, low=0)
    compile: str = setting("auto", choices=("auto", "on", "off"))
    ranks: int = setting(0, low=0, high=4096)
    strategy: str = setting("auto", choices=("auto", "ddp", "fsdp"))
    activation_checkpointing: str = setting("auto", choices=("auto", "blocks", "none"))
    partition: str = setting("")
    account: str = setting("")
    qos: str = setting("")
    constraint: str = setting("")
    nodes: int = setting(1, low=1, high=4096, omit_default_from_key=True)
    sbatch: tuple[str, ...] = setting((), omit_default_from_key=True, check=option_fault)
    setup: tuple[str, ...] = setting((), omit_default_from_key=True, lines=True)
    environment: tuple[str, ...] = setting((), omit_default_from_key=True, check=variable_fault)
    python: str = setting("", omit_default_from_key=True)
    pack: int = setting(1, low=1, high=256, omit_default_from_key=True)
    at_once: int = setting(0, low=0, omit_default_from_key=True)
    notice: int = setting(120, low=1, high=3600, omit_default_from_key=True)
    retries: int = setting(3, low=1, high=1000, omit_default_from_key=True)
    resume: str = setting("any-code", choices=("any-code", "same-code"), omit_default_from_key=True)

    @property
    def processes(self) -> int:
        """How many processes one job has."""
        return self.ranks or max(1, self.gpus)

    @property
    def gpus_in_slurm(self) -> int:
        """How many GPUs a job has in SLURM; at least 1 where it is an option of sbatch that asks for them."""
        return self.gpus or int(any(asks_for_gpus(word) for word in self.sbatch))

    @property
    def cpus_per_task(self) -> int:
        """Cores of each of them."""
        return max(1, self.cpus // self.processes)

    @property
    def threads(self) -> int:
        """Cores of all of them, as many as are asked for in fact."""
        return self.cpus_per_task * self.processes

    @property
    def faults(self) -> dict[str, str]:
        """What is wrong with settings together, by the name of the one to blame; {} when nothing is."""
        found = {"nodes": spread_fault(self.processes, self.nodes), "notice": notice_fault(self.notice, self.time)}
        return {name: fault for name, fault in found.items() if fault}

    def single_process(self) -> Resources:
        """Return the resources of a job with only one of these processes."""
        return replace(self, gpus=min(1, self.gpus), cpus=self.cpus_per_task, ranks=1, nodes=1)

    def for_text(self) -> Resources:
        """What a job asks for that tokenises on the cores of one node, where nothing else is said."""
        cores = max(1, self.cpus // self.nodes)
        return replace(self, gpus=0, cpus=cores, ranks=1, nodes=1, pack=1, at_once=0, micro_batch=0)
