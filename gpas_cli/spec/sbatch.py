"""What SLURM takes as a value: each function says what is wrong with a word, "" when nothing is."""

from __future__ import annotations

import re

_MEMORY = re.compile(r"\d+([KMGT]B?)?", re.IGNORECASE)
_TIME = re.compile(r"\d+|\d+:\d+(:\d+)?|\d+-\d+(:\d+){0,2}|infinite|unlimited", re.IGNORECASE)
# Options that gpas sets itself, and the setting to use instead where there is one.
OURS = {
    **dict.fromkeys(
        ("chdir", "dependency", "error", "kill-on-invalid-dep", "no-requeue", "open-mode", "output", "parsable",
         "requeue", "test-only", "wait", "wrap"), "",
    ),
    "job-name": "", "array": "at_once", "ntasks": "ranks", "ntasks-per-node": "ranks", "signal": "notice",
    "partition": "partition", "account": "account", "qos": "qos", "constraint": "constraint", "mem": "mem",
    "time": "time", "nodes": "nodes", "cpus-per-task": "cpus", "gpus": "gpus", "gpus-per-node": "gpus",
}  # fmt: skip


def memory_fault(word: str) -> str:
    """Memory of a node: 48G, 500M."""
    if not word or _MEMORY.fullmatch(word):
        return ""
    digits = re.match(r"\d+", word)
    return f"'{word}' is not an amount of memory; write {digits[0] if digits else 48}G: a number with K, M, G or T"


def time_fault(word: str) -> str:
    """A time limit: 90, 1:30:00, 2-12:00:00."""
    if not word or _TIME.fullmatch(word):
        return ""
    return f"'{word}' is not a time limit; write minutes, H:MM:SS or D-HH:MM:SS, such as 1-00:00:00"


def time_seconds(word: str) -> int | None:
    """A time limit as sbatch reads it, in seconds: 90 and 1:30:00 are 5400; None for none, or what is no time limit."""
    if not re.fullmatch(r"[\d:-]+", word) or time_fault(word):
        return None
    days, dash, clock = word.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if dash:  # D-HH, D-HH:MM, D-HH:MM:SS
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 1:
        hours, minutes, seconds = 0, parts[0], 0
    else:  # MM:SS, HH:MM:SS
        hours, minutes, seconds = [0, *parts][-3:]
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds


def notice_fault(notice: int, time: str) -> str:
    """A warning `notice` seconds before the end of jobs that have the time limit `time`."""
    limit = time_seconds(time)
    if limit is None or notice < limit:
        return ""
    return f"jobs are to be warned {notice} s before their time limit of {time}; notice must be shorter than time"


def option(word: str) -> tuple[str, str | bool]:
    """`--mail-type=END` as (mail-type, END), `--exclusive` as (exclusive, True)."""
    name, equals, value = word.strip().removeprefix("--").partition("=")
    return name.strip().replace("_", "-"), value if equals else True


def asks_for_gpus(word: str) -> bool:
    """Whether an option of sbatch asks for GPUs: --gres=gpu:a100:2, --gpus-per-task=1."""
    name, value = option(word)
    return name.startswith("gpus") or (name == "gres" and str(value).partition(":")[0] == "gpu")


def option_fault(word: str) -> str:
    """A further option of sbatch, none of those that gpas sets."""
    name, _ = option(word)
    if not word.strip().startswith("--") or not name.replace("-", "").isalnum():
        return f"'{word}' is not an option; write it as --name=value or --name"
    if name not in OURS:
        return ""
    return f"--{name} is set by gpas itself" + (f"; use resources.{OURS[name]}" if OURS[name] else "; leave it out")


def variable_fault(word: str) -> str:
    """An environment variable: NCCL_DEBUG=WARN."""
    name, equals, _ = word.partition("=")
    return "" if equals and name.isidentifier() else f"'{word}' is not NAME=VALUE"


def spread_fault(processes: int, nodes: int) -> str:
    """So many processes on so many nodes, equally many on each."""
    if processes % nodes == 0:
        return ""
    fitting = " or ".join(str(n) for n in range(1, processes + 1) if processes % n == 0)
    return f"{processes} processes cannot be spread evenly over {nodes} nodes; nodes may be {fitting}"
