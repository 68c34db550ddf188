"""How a cell is run: cadence, monitoring and resources. None of it changes a result or is part of the key."""

from __future__ import annotations

import re
from dataclasses import field, replace
from functools import cached_property
from typing import Any

from gpas_cli.spec.parse import setting
from gpas_cli.structure import Frozen

# 0 is all memory of a node, and no time limit. What else sbatch reads has no unit: 32 is MB, 60 and 1:30 are minutes.
_MEMORY = re.compile(r"0|\d+[KMGT]B?", re.IGNORECASE)
_TIME = re.compile(r"0|\d+:\d+:\d+|\d+-\d+(:\d+){0,2}|infinite|unlimited", re.IGNORECASE)
_TIME_OF_SBATCH = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}")  # of records of earlier versions, too
# Options of sbatch that gpas sets itself -> the setting to use instead, or "".
_SET_BY_GPAS = {
    **dict.fromkeys(
        ("chdir", "dependency", "error", "kill-on-invalid-dep", "no-requeue", "open-mode", "output", "parsable",
         "requeue", "test-only", "wait", "wrap"), "",
    ),
    "job-name": "", "array": "at_once", "ntasks": "ranks", "ntasks-per-node": "ranks", "signal": "notice",
    "partition": "partition", "account": "account", "qos": "qos", "constraint": "constraint", "mem": "mem",
    "time": "time", "nodes": "nodes", "cpus-per-task": "cpus", "gpus": "gpus", "gpus-per-node": "gpus",
}  # fmt: skip

_LIMIT = re.compile(r"(gpus|cpus|nodes|mem|time)(<=|=)(\S+)")
_NO_PARTITION = "the job keeps the limits of none of them; write a last one without limits"
# Settings whose values may be secrets, such as a token, and HIDDEN, which stands for these values in records.
PRIVATE = ("environment", "setup", "python", "sbatch")
HIDDEN = "***"
SHARDED = ("fsdp", "hsdp")  # the strategies that leave each process a part of the network
_PERIOD = re.compile(r"(\d+(?:\.\d+)?) ?(s|min|h)")
_UNIT_SECONDS = {"s": 1, "min": 60, "h": 3600}


def _memory_fault(text: str) -> str:
    """Check the memory of a node: 48G, 500M."""
    if not text or _MEMORY.fullmatch(text):
        return ""
    if text.isdecimal():
        return f"'{text}' has no unit; write {text}G, or {text}M for megabytes"
    digits = re.match(r"\d+", text)
    return f"'{text}' is not an amount of memory; write {digits[0] if digits else 48}G: a number with K, M, G or T"


def _time_fault(text: str) -> str:
    """Check a time limit: 1:30:00, 2-12, 2-12:00:00."""
    if not text or _TIME.fullmatch(text):
        return ""
    if _TIME_OF_SBATCH.fullmatch(text):
        clock = text if ":" in text else f"{text}:00"
        return f"'{text}' has no unit; write {clock}:00 for hours, or 0:{clock} for minutes"
    return f"'{text}' is not a time limit; write H:MM:SS or D-HH:MM:SS, such as 1-00:00:00"


def time_seconds(text: str) -> int | None:
    """Return a time limit as sbatch reads it, in seconds: 90 and 1:30:00 are 5400. None without a valid limit."""
    if not _TIME_OF_SBATCH.fullmatch(text):
        return None
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if dash:  # D-HH, D-HH:MM, D-HH:MM:SS
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 1:
        hours, minutes, seconds = 0, parts[0], 0
    else:  # MM:SS, HH:MM:SS
        hours, minutes, seconds = [0, *parts][-3:]
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds


def _notice_fault(notice: int, time: str) -> str:
    """Check a warning `notice` seconds before the time limit `time`."""
    limit = time_seconds(time)
    if limit is None or notice < limit:
        return ""
    return f"{notice} s is not shorter than the time limit of {time}"


def _amount(name: str, text: str) -> float | None:
    """Return the amount of a resource: a number, bytes or seconds; None for another text, and for no limit."""
    if name == "mem":
        found = re.fullmatch(r"(\d+)([KMGT])B?", text, re.IGNORECASE)
        return int(found[1]) * 1024.0 ** " KMGT".index(found[2].upper()) if found else None
    return time_seconds(text) if name == "time" else float(text) if text.isdecimal() else None


def _partition_fault(text: str) -> str:
    """Check a partition with the limits of its jobs: `short gpus<=4 time<=4:00:00`."""
    for word in text.split()[1:]:
        limit = _LIMIT.fullmatch(word)
        if limit is None or _amount(limit[1], limit[3]) is None:
            return (
                f"'{word}' is no limit of a partition; write gpus=0, gpus<=4, cpus<=64, mem<=200G or time<=1-00:00:00"
            )
    return ""


def _growth_fault(name: str, value: str | tuple[str, ...], other: str | tuple[str, ...], retries: int) -> str:
    """Check a list with an entry for each attempt. `other` is the other setting that may be a list."""
    if isinstance(value, str):
        return ""
    if len(value) < 2 or not all(value):
        return f"a list has an entry for each attempt; write at least two, or one value: {name}: {(*value, '48G')[0]}"
    if isinstance(other, tuple) and len(other) > len(value):
        return f"has {len(value)} entries, and the other list has {len(other)}; write as many"
    if len(value) > retries:
        return f"has {len(value)} entries, but a job is given up after {retries}; write retries: {len(value)}"
    return ""


def option(text: str) -> tuple[str, str | bool]:
    """Return ("mail-type", "END") for `--mail-type=END`, ("exclusive", True) for `--exclusive`."""
    name, equals, value = text.strip().removeprefix("--").partition("=")
    return name.strip().replace("_", "-"), value if equals else True


def _requests_gpus(text: str) -> bool:
    """Return whether an option of sbatch requests GPUs: --gres=gpu:a100:2, --gpus-per-task=1."""
    name, value = option(text)
    return name.startswith("gpus") or (name == "gres" and str(value).partition(":")[0] == "gpu")


_UNITS = {**dict.fromkeys(("mem-per-cpu", "mem-per-gpu", "tmp"), _memory_fault), "time-min": _time_fault}


def _option_fault(text: str) -> str:
    """Check a further option of sbatch, which must not be one that gpas sets."""
    name, value = option(text)
    if not text.strip().startswith("--") or not name.replace("-", "").isalnum():
        return f"'{text}' is not an option; write it as --name=value or --name"
    if name not in _SET_BY_GPAS:
        fault = _UNITS[name](str(value)) if name in _UNITS else ""
        return fault and f"--{name}: {fault}"
    setting = _SET_BY_GPAS[name]
    return f"--{name} is set by gpas itself; {f'use resources.{setting}' if setting else 'remove it'}"


def _variable_fault(text: str) -> str:
    """Check an environment variable: NCCL_DEBUG=WARN."""
    name, equals, _ = text.partition("=")  # the message does not quote the value, which may be a secret
    return "" if equals and name.isidentifier() else f"'{name}' is not NAME=VALUE"


def hidden(name: str, text: str) -> str:
    """Return an entry of a setting of PRIVATE without its value: HF_TOKEN=***, --mail-user=***, --exclusive, ***."""
    if name in ("setup", "python"):
        return text and HIDDEN
    before, equals, _ = text.partition("=")
    kind = "gpu:" if before.endswith("gres") and _requests_gpus(text) else ""  # which `gpus_in_slurm` reads
    return f"{before}={kind}{HIDDEN}" if equals else text


def _spread_fault(processes: int, nodes: int) -> str:
    """Check that every node gets the same number of processes."""
    if processes % nodes == 0:
        return ""
    fitting = " or ".join(str(n) for n in range(1, processes + 1) if processes % n == 0)
    return f"{processes} processes cannot be spread evenly over {nodes} nodes; nodes may be {fitting}"


def _strategy_fault(strategy: str, processes: int, nodes: int) -> str:
    """Check that hsdp has processes to shard over in a node, and nodes to replicate over."""
    if strategy != "hsdp" or 1 < nodes < processes:
        return ""
    where = "the job has one node; set nodes" if nodes == 1 else "each node has one process; set gpus"
    return f"hsdp shards a network within a node and replicates it over nodes, but {where}, or write strategy: fsdp"


def _period_seconds(text: str) -> float | None:
    """Return a period such as 90s, 10min or 1.5h in seconds, None for another text or a period of 0."""
    found = _PERIOD.fullmatch(text)
    return float(found[1]) * _UNIT_SECONDS[found[2]] or None if found else None


def _period_fault(text: str) -> str:
    if _period_seconds(text) is not None:
        return ""
    return f"'{text}' is neither a number of updates nor a period; write 500, 90s, 10min or 1h"


def _listed(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else (value,)


class Cadence(Frozen, kw_only=True):
    """The number of updates between log lines, records of per-layer statistics, evaluations and checkpoints.

    checkpoint_every: a number of updates, or a period: 90s, 10min, 1h. The last update is always saved. keep: updates
    after which a checkpoint is written too and kept, while of the others the newest two are; a stage that averages
    checkpoints (`translation.average`) adds its own.
    """

    log_every: int = setting(10, low=1)
    stats_every: int = setting(100, low=1)
    eval_every: int = setting(1000, low=1)
    checkpoint_every: int | str = setting(500, low=1, check=_period_fault)
    keep: tuple[int, ...] = field(default=(), metadata={"low": 1, "absent": True})  # records omit an empty one

    def checkpoint_due(self, step: int, seconds: float) -> bool:
        """Return whether to write a checkpoint after update `step`, `seconds` after the last checkpoint."""
        if step in self.keep:
            return True
        if isinstance(self.checkpoint_every, int):
            return step % self.checkpoint_every == 0
        period = _period_seconds(self.checkpoint_every)
        assert period is not None
        return seconds >= period

    def checkpoints(self, updates: int) -> tuple[int, int]:
        """Return how many checkpoints a training of so many updates leaves, and how many there are while it writes the
        last one.

        With a period, a training is assumed to last for many of them.
        """
        every = self.checkpoint_every if isinstance(self.checkpoint_every, int) else 1
        keep = [step for step in self.keep if step < updates]
        before = sorted({*range(every, updates, every)[-2:], *keep})
        return len({*[*before, updates][-2:], *keep}), len({*before[-2:], *keep}) + 1


class Monitoring(Frozen, kw_only=True):
    """The detection of spikes and divergence, and further receivers of a run's events.

    window, spike: a value is a spike if it exceeds the median of the `window` updates before it by `spike` robust
    standard deviations (`train.observe`); 0 turns detection off. margin, patience: a training has diverged, and ends,
    if its loss stays `margin` nats above both its first value and the loss of guessing for `patience` updates in a row.
    A network that merely stops learning stays below that bound: at worst it guesses by frequency.
    tensorboard: a folder, relative to the experiments file. wandb: a project of Weights & Biases. profile: how many
    updates to profile, after the first few.
    """

    window: int = setting(128, low=16, high=4096)
    spike: float = setting(6.0, low=0)
    margin: float = setting(1.0, above=0)
    patience: int = setting(500, low=1)
    tensorboard: str = setting("")
    wandb: str = setting("")
    profile: int = setting(0, low=0, high=1000)


class Resources(Frozen, kw_only=True):
    """The resources of one job. With `micro_batch` 0 the trainer chooses; `time` is H:MM:SS or D-HH:MM:SS.

    `compile`: torch.compile for every layer. `auto` compiles on GPUs, where it pays off within minutes, and on CPUs for
    trainings that take hours, if a C++ compiler is installed.
    `ranks`: the number of processes, 0 for one per GPU. Each has a copy (`ddp`) or a shard (`fsdp`) of the network, or
    a shard of the copy of its node (`hsdp`; process r is on node r // (processes / nodes)). `auto` shards networks
    whose state is large for the GPU, within nodes if it is not for those of one, and recomputes activations layer by
    layer (`blocks`) where too few tokens would fit at once.

    `deterministic`: whether trainings use deterministic kernels alone. Without them updates on a GPU take 2 to 3 % less
    time, and a run that resumes does not end in the bits of an uninterrupted one.

    `resume`: whether a run may resume from a checkpoint of another version of the code or of torch (`any-code`, with a
    warning, and a note in tables about the code) or not (`same-code`).

    `share`: whether updates that this training has in common with others are trained once (`auto`), or all of its
    updates alone (`off`); docs/explanation/trunks.md.

    The other settings are for SLURM only. partition: its name, or a list such as [short gpus<=4 time<=4:00:00, long],
    of which the first counts whose limits the job keeps. mem: a number with K, M, G or T, or '0', all memory of the
    node. mem, time: a list such as [32G, 64G] has an entry for the first attempt, and one for each that follows an
    attempt which ran out of memory, or reached its time limit. gpus and cpus count over all `nodes`, with one task per
    GPU. `sbatch`: more options of sbatch; `setup`: lines of shell to run before the job; `environment`: NAME=VALUE;
    `python`: the command that starts Python there. `pack`: the number of small cells in one job. `at_once`: the largest
    number of an array's jobs that run at a time (0: no limit). `notice`: seconds from the warning signal to the time
    limit. `retries`: the number of attempts in a row without progress after which a job is not requeued.
    """

    gpus: int = setting(0, low=0, high=4096)
    cpus: int = setting(1, low=1, high=4096)
    mem: str | tuple[str, ...] = setting("", check=_memory_fault)
    time: str | tuple[str, ...] = setting("", check=_time_fault)
    micro_batch: int = setting(0, low=0)
    compile: str = setting("auto", choices=("auto", "on", "off"))
    ranks: int = setting(0, low=0, high=4096)
    strategy: str = setting("auto", choices=("auto", "ddp", *SHARDED))
    activation_checkpointing: str = setting("auto", choices=("auto", "blocks", "none"))
    deterministic: bool = field(default=True, metadata={"absent": True})  # records omit true
    share: str = field(default="auto", metadata={"choices": ("auto", "off"), "absent": True})  # records omit auto
    partition: str | tuple[str, ...] = setting("", check=_partition_fault)
    account: str = setting("")
    qos: str = setting("")
    constraint: str = setting("")
    nodes: int = setting(1, low=1, high=4096, omit_default_from_key=True)
    sbatch: tuple[str, ...] = setting((), omit_default_from_key=True, check=_option_fault)
    setup: tuple[str, ...] = setting((), omit_default_from_key=True, lines=True)
    environment: tuple[str, ...] = setting((), omit_default_from_key=True, check=_variable_fault)
    python: str = setting("", omit_default_from_key=True)
    pack: int = setting(1, low=1, high=256, omit_default_from_key=True)
    at_once: int = setting(0, low=0, omit_default_from_key=True)
    notice: int = setting(120, low=1, high=3600, omit_default_from_key=True)
    retries: int = setting(3, low=1, high=1000, omit_default_from_key=True)
    resume: str = setting("any-code", choices=("any-code", "same-code"), omit_default_from_key=True)

    @property
    def processes(self) -> int:
        """The number of processes of one job."""
        return self.ranks or max(1, self.gpus)

    @property
    def gpus_in_slurm(self) -> int:
        """The number of GPUs of a SLURM job; at least 1 if an option of sbatch requests GPUs."""
        return self.gpus or int(any(map(_requests_gpus, self.sbatch)))

    @property
    def cpus_per_task(self) -> int:
        """The number of cores of each process."""
        return max(1, self.cpus // self.processes)

    @property
    def threads(self) -> int:
        """The number of cores that a job requests: the same number for every process."""
        return self.cpus_per_task * self.processes

    @property
    def chosen_partition(self) -> str:
        """The partition of the job, "" without one."""
        if isinstance(self.partition, str):
            return self.partition
        named = [text.split() for text in self.partition if text]
        return next((name for name, *limits in named if all(map(self._keeps, limits))), "")

    def _keeps(self, limit: str) -> bool:
        """Return whether a job keeps the limit of a partition; one without an amount of its own does."""
        name, relation, text = re.split("(<=|=)", limit)
        most = _amount(name, text)
        asked = [_amount(name, str(own)) for own in _listed(getattr(self, name))]
        return all(own is None or own == most or (relation == "<=" and own < (most or 0)) for own in asked)

    @property
    def faults(self) -> dict[str, str]:
        """Contradictions between settings: name of the setting to change -> message."""
        found = {
            "nodes": _spread_fault(self.processes, self.nodes),
            "strategy": _strategy_fault(self.strategy, self.processes, self.nodes),
            "notice": next(filter(None, (_notice_fault(self.notice, each) for each in _listed(self.time))), ""),
            "mem": _growth_fault("mem", self.mem, self.time, self.retries),
            "time": _growth_fault("time", self.time, self.mem, self.retries),
            "partition": "" if self.chosen_partition or not self.partition else _NO_PARTITION,
        }
        return {name: fault for name, fault in found.items() if fault}

    @cached_property
    def recorded(self) -> Resources:
        """The resources as records have them, which other users may read: without the values of PRIVATE settings."""
        own = {name: value for name in PRIVATE if (value := getattr(self, name))}
        made: dict[str, Any] = {n: tuple(hidden(n, text) for text in _listed(value)) for n, value in own.items()}
        made |= {"python": HIDDEN} if self.python else {}
        return replace(self, **made) if made else self

    @property
    def unrecorded(self) -> dict[str, str]:
        """The settings of which only a record without their values is known, with what to do before they are used."""
        remedy = "records do not have its values; write them in experiments.yaml, or with `gpas retry --set`"
        return {n: remedy for n in PRIVATE if any(text.endswith(HIDDEN) for text in _listed(getattr(self, n)))}

    @property
    def growing(self) -> tuple[str, ...]:
        """The settings that are lists, of an entry for each attempt."""
        return tuple(name for name in ("mem", "time") if isinstance(getattr(self, name), tuple))

    @property
    def first(self) -> Resources:
        """The resources of the first attempt."""
        if not self.growing:
            return self
        return replace(self, mem=(*_listed(self.mem), "")[0], time=(*_listed(self.time), "")[0])

    @cached_property
    def single_process(self) -> Resources:
        """The resources of a job with only one of these processes."""
        return replace(self, gpus=min(1, self.gpus), cpus=self.cpus_per_task, ranks=1, nodes=1)

    def tiny(self, mem: str, time: str) -> Resources:
        """Return the resources of a short job of one core, with a GPU if these have any, on the same nodes."""
        alone = replace(self.single_process, cpus=1, mem=mem if self.mem else "", time=time, notice=10, pack=1)
        return replace(alone, micro_batch=0, compile="off", strategy="auto", activation_checkpointing="auto")

    @cached_property
    def for_tokenising(self) -> Resources:
        """The default resources of a job that tokenises: the cores of one node and no GPU."""
        cores = max(1, self.cpus // self.nodes)
        return replace(self, gpus=0, cpus=cores, ranks=1, nodes=1, pack=1, at_once=0, micro_batch=0)
