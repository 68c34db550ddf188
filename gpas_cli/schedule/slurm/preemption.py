"""The time between SLURM's warning and the end of a job, and whether a checkpoint can be saved in it.

A preempted job is warned at once: with the signal that it asked for if SlurmctldParameters has
preempt_send_user_signal, else with TERM. It is killed KillWait seconds after GraceTime. Before its time limit, a job is
warned `notice` seconds ahead.
https://slurm.schedmd.com/preempt.html
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.events import Checkpoint, Step
from gpas_cli.schedule.scheduler import Finding
from gpas_cli.schedule.slurm import client
from gpas_cli.schedule.slurm.client import SlurmError
from gpas_cli.store.journal import tail
from gpas_cli.store.rundir import all_attempts

SLACK_SECONDS = 2.0  # for a job to react to its warning, and for SLURM to notice its end


def findings(config: Mapping[str, str], runs: Path, notices: Collection[int]) -> Iterator[Finding]:
    """Yield findings that compare the time jobs have after a warning with the time a checkpoint takes.

    `notices` has the values of `resources.notice` among the cells, in seconds.
    """
    save = slowest_save(runs)
    took = "no checkpoint measured yet" if save is None else f"an update and a checkpoint took up to {save:.1f} s here"
    need = 0.0 if save is None else save + SLACK_SECONDS
    yield _preemption(config, took, need)
    if notices:
        least, most = min(notices), max(notices)
        asked = f"{least}" if least == most else f"{least} to {most}"
        detail = f"jobs are warned {asked} s before their time limit (resources.notice); {took}"
        remedy = f"set resources.notice to at least {2 * need:.0f}" if least < need else ""
        yield Finding("SLURM time limits", "problem" if remedy else "ok", detail, remedy)


def _preemption(config: Mapping[str, str], took: str, need: float) -> Finding:
    kind = config.get("PreemptType", "").rpartition("/")[2]
    if kind in ("none", ""):
        return Finding("SLURM preemption", "ok", "none")
    signal = "preempt_send_user_signal" in config.get("SlurmctldParameters", "").lower()
    try:
        graces = _of_qos() if kind == "qos" else _of_partitions()
    except SlurmError as error:
        return Finding("SLURM preemption", "note", f"{kind}; the grace time is unknown: {error}", "")
    wait = seconds(config.get("KillWait", "30"))
    times = ", ".join(f"{grace + wait:.0f} s in {name}" for name, grace in graces.items())
    detail = f"{kind}; no job can be preempted; {took}"
    if times:
        detail = f"{kind}; warned by {'USR2' if signal else 'TERM'} at once, jobs have {times}; {took}"
    short = sorted(name for name, grace in graces.items() if grace + wait < need)
    if short:
        remedy = f"keep checkpoint_every short: jobs in {', '.join(short)} cannot save before they are killed"
        return Finding("SLURM preemption", "problem", detail, f"{remedy}; or ask for a GraceTime of {2 * need:.0f} s")
    return Finding("SLURM preemption", "ok", detail)


def slowest_save(runs: Path) -> float | None:
    """Return the longest time that an update and a checkpoint took together, in seconds; None if none is recorded.

    Reads only the end of each journal.
    """
    found = list[float]()
    for attempt in all_attempts(runs):
        with suppress(OSError):
            events = [line.event for line in tail(attempt.journal_path)]
            saves = [event.seconds or 0.0 for event in events if isinstance(event, Checkpoint)]
            updates = [event.seconds_per_step or 0.0 for event in events if isinstance(event, Step)]
            found += [max(saves) + max(updates, default=0.0)] if saves else []
    return max(found, default=None)


def _of_partitions() -> dict[str, float]:
    """Return the GraceTime of each partition whose jobs can be preempted."""
    lines = client.run("scontrol", "show", "partition", "-o").splitlines()
    partitions = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in lines]
    highest = max((int(each.get("PriorityTier", 1)) for each in partitions), default=1)
    return {
        each["PartitionName"]: seconds(each.get("GraceTime", "0"))
        for each in partitions
        if each and each.get("PreemptMode", "OFF") != "OFF" and int(each.get("PriorityTier", 1)) < highest
    }


def _of_qos() -> dict[str, float]:
    """Return the GraceTime of each quality of service that another one can preempt."""
    lines = client.run("sacctmgr", "-n", "-P", "show", "qos", "format=name,gracetime,preempt").splitlines()
    rows = [line.split("|") for line in lines if line.count("|") >= 2]
    victims = {name for _, _, others, *_ in rows for name in others.split(",")}
    return {name: seconds(grace) for name, grace, *_ in rows if name in victims}


def seconds(words: str) -> float:
    """Return a SLURM time in seconds: "15", "5 sec", "00:01:30", "1-00:00:00". Raises GpasError for other forms."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)(?: sec)?", words.strip())
    if match is None:
        raise GpasError(f"not a SLURM time: {words!r}")
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)
