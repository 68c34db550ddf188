"""Check values for SLURM: each `..._fault` returns what is wrong with a value, or ""."""

from __future__ import annotations

import re

_MEMORY = re.compile(r"\d+([KMGT]B?)?", re.IGNORECASE)
_TIME = re.compile(r"\d+|\d+:\d+(:\d+)?|\d+-\d+(:\d+){0,2}|infinite|unlimited", re.IGNORECASE)
# Options of sbatch that gpas sets itself -> the setting to use instead, or "".
SET_BY_GPAS = {
    **dict.fromkeys(
        ("chdir", "dependency", "error", "kill-on-invalid-dep", "no-requeue", "open-mode", "output", "parsable",
         "requeue", "test-only", "wait", "wrap"), "",
    ),
    "job-name": "", "array": "at_once", "ntasks": "ranks", "ntasks-per-node": "ranks", "signal": "notice",
    "partition": "partition", "account": "account", "qos": "qos", "constraint": "constraint", "mem": "mem",
    "time": "time", "nodes": "nodes", "cpus-per-task": "cpus", "gpus": "gpus", "gpus-per-node": "gpus",
}  # fmt: skip


def memory_fault(text: str) -> str:
    """Check the memory of a node: 48G, 500M."""
    if not text or _MEMORY.fullmatch(text):
        return ""
    digits = re.match(r"\d+", text)
    return f"'{text}' is not an amount of memory; write {digits[0] if digits else 48}G: a number with K, M, G or T"


def time_fault(text: str) -> str:
    """Check a time limit: 90, 1:30:00, 2-12:00:00."""
    if not text or _TIME.fullmatch(text):
        return ""
    return f"'{text}' is not a time limit; write minutes, H:MM:SS or D-HH:MM:SS, such as 1-00:00:00"


def time_seconds(text: str) -> int | None:
    """Return a time limit as sbatch reads it, in seconds: 90 and 1:30:00 are 5400. None without a valid limit."""
    if not re.fullmatch(r"[\d:-]+", text) or time_fault(text):
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


def notice_fault(notice: int, time: str) -> str:
    """Check a warning `notice` seconds before the time limit `time`."""
    limit = time_seconds(time)
    if limit is None or notice < limit:
        return ""
    return f"{notice} s is not shorter than the time limit of {time}"


def growth_fault(name: str, value: str | tuple[str, ...], other: str | tuple[str, ...], retries: int) -> str:
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


def requests_gpus(text: str) -> bool:
    """Return whether an option of sbatch requests GPUs: --gres=gpu:a100:2, --gpus-per-task=1."""
    name, value = option(text)
    return name.startswith("gpus") or (name == "gres" and str(value).partition(":")[0] == "gpu")


def option_fault(text: str) -> str:
    """Check a further option of sbatch, which must not be one that gpas sets."""
    name, _ = option(text)
    if not text.strip().startswith("--") or not name.replace("-", "").isalnum():
        return f"'{text}' is not an option; write it as --name=value or --name"
    if name not in SET_BY_GPAS:
        return ""
    setting = SET_BY_GPAS[name]
    return f"--{name} is set by gpas itself; {f'use resources.{setting}' if setting else 'remove it'}"


def variable_fault(text: str) -> str:
    """Check an environment variable: NCCL_DEBUG=WARN."""
    name, equals, _ = text.partition("=")
    return "" if equals and name.isidentifier() else f"'{text}' is not NAME=VALUE"


def spread_fault(processes: int, nodes: int) -> str:
    """Check that every node gets the same number of processes."""
    if processes % nodes == 0:
        return ""
    fitting = " or ".join(str(n) for n in range(1, processes + 1) if processes % n == 0)
    return f"{processes} processes cannot be spread evenly over {nodes} nodes; nodes may be {fitting}"
