"""How long jobs have between SLURM's warning and their end, and whether they can save in that time.

A job that is preempted is warned at once, by our signal where SlurmctldParameters has preempt_send_user_signal and by
TERM otherwise, and killed KillWait seconds after GraceTime is over. Before a time limit the warning comes `notice`
seconds ahead. https://slurm.schedmd.com/preempt.html
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from gpas_cli.doctor.finding import Finding
from gpas_cli.errors import GpasError
from gpas_cli.schedule.slurm import client
from gpas_cli.schedule.slurm.client import SlurmError
from gpas_cli.state.progress import number
from gpas_cli.store.journal import tail
from gpas_cli.store.rundir import all_attempts

SLACK = 2.0  # seconds from a warning to the job's hearing of it, and from its end to SLURM's seeing that


def findings(config: Mapping[str, str], runs: Path, notices: Collection[int]) -> Iterator[Finding]:
    """What the site gives jobs, compared with what saving takes here. `notices`: those that the cells ask for."""
    save = slowest_save(runs)
    took = "no checkpoint measured yet" if save is None else f"an update and a checkpoint took up to {save:.1f} s here"
    need = 0.0 if save is None else save + SLACK
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
        return Finding("SLURM preemption", "note", f"{kind}; how long jobs have is not to be seen: {error}", "")
    wait = seconds(config.get("KillWait", "30"))
    told = ", ".join(f"{grace + wait:.0f} s in {name}" for name, grace in graces.items())
    detail = f"{kind}; warned by {'USR2' if signal else 'TERM'} at once, jobs have {told or 'no such place'}; {took}"
    short = sorted(name for name, grace in graces.items() if grace + wait < need)
    if short:
        remedy = f"keep checkpoint_every short: jobs in {', '.join(short)} cannot save before they are killed"
        return Finding("SLURM preemption", "problem", detail, f"{remedy}; or ask for a GraceTime of {2 * need:.0f} s")
    return Finding("SLURM preemption", "ok", detail)


def slowest_save(runs: Path) -> float | None:
    """Seconds that one update and one checkpoint took at most, by the ends of all journals; None without any."""
    found = list[float]()
    for attempt in all_attempts(runs):
        with suppress(OSError):
            events = tail(attempt.journal_path)
            saves = [number(event.get("seconds")) or 0.0 for event in events if event.get("kind") == "checkpoint"]
            updates = [number(event.get("seconds_per_step")) or 0.0 for event in events if event.get("kind") == "step"]
            found += [max(saves) + max(updates, default=0.0)] if saves else []
    return max(found, default=None)


def _of_partitions() -> dict[str, float]:
    """GraceTime by partition, for those whose jobs others may preempt."""
    lines = client.run("scontrol", "show", "partition", "-o").splitlines()
    told = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in lines]
    highest = max((int(each.get("PriorityTier", 1)) for each in told), default=1)
    return {
        each["PartitionName"]: seconds(each.get("GraceTime", "0"))
        for each in told
        if each and each.get("PreemptMode", "OFF") != "OFF" and int(each.get("PriorityTier", 1)) < highest
    }


def _of_qos() -> dict[str, float]:
    """GraceTime by quality of service, for those that others may preempt."""
    lines = client.run("sacctmgr", "-n", "-P", "show", "qos", "format=name,gracetime,preempt").splitlines()
    told = [line.split("|") for line in lines if line.count("|") >= 2]
    victims = {name for _, _, others, *_ in told for name in others.split(",")}
    return {name: seconds(grace) for name, grace, *_ in told if name in victims}


def seconds(words: str) -> float:
    """SLURM's times as seconds: "15", "5 sec", "00:01:30", "1-00:00:00". Raises GpasError for others."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)(?: sec)?", words.strip())
    if match is None:
        raise GpasError(f"not a time of SLURM's: {words!r}")
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)
