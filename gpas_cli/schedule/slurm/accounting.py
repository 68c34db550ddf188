"""What SLURM's accounting, sacct, reports about ended jobs. Each query covers all jobs, and raises SlurmError."""

import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpas_cli.schedule.batch import submission
from gpas_cli.schedule.batch.view import WHOLE
from gpas_cli.schedule.scheduler import ProfileUse
from gpas_cli.schedule.slurm.client import answer, seconds
from gpas_cli.schedule.slurm.job import NEVER, Job, indices, moment, plain
from gpas_cli.words import grouped

_FIELDS = ("JobID", "JobName%300", "State", "ReqMem", "AllocCPUS", "TimelimitRaw", "ElapsedRaw", "TotalCPU", "MaxRSS")
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def sacct(since: Mapping[str, float]) -> Iterator[tuple[str, int, Job]]:
    """Yield the ended array elements in accounting. `since` has the time of submission of each array by its name."""
    fields = ("JobID", "JobName%300", "State", "ExitCode", "NodeList%200", "Start", "End")
    for raw, name, state, code, nodes, start, end in _accounted(since, fields, "-X"):
        # A user's cancellation is "CANCELLED by 1000"; plain CANCELLED is SLURM's, of a job that can never start.
        never = state == "CANCELLED" and not moment(start)
        base = Job(raw, plain(state), NEVER if never else "", nodes, moment(start), end=moment(end), exit=code)
        if raw.isdigit():  # an array of one element that was cancelled before it started
            yield name, WHOLE, base
        for index in indices(raw):
            yield name, index, replace(base, id=f"{raw.split('_')[0]}_{index}")


def _accounted(since: Mapping[str, float], fields: Sequence[str], *options: str) -> list[list[str]]:
    """Return the rows of accounting about ended jobs with the names in `since`, submitted at these times or later."""
    first = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(min(since.values()) - 60))
    # Without states and an end, sacct leaves out jobs that were cancelled while they waited for others.
    when = ("-S", first, "-E", "now", "-s", "CA,CD,F,TO,NF,PR,OOM,DL,BF")
    which = () if any(word.startswith("--jobs") for word in options) else (f"--name={','.join(since)}",)
    words = ("-a", "-P", *options, *when, *which, "-o", ",".join(fields))
    rows = (line.split("|") for line in answer("JobID|", "sacct", *words)[1:])
    return [row for row in rows if len(row) == len(fields)]


def used_by_profile(place: Path, keys: Collection[str]) -> list[ProfileUse]:
    """Return the use of the ended jobs of these stages, given the folder of all submissions. Raises SlurmError."""
    made = [found for folder in place.glob("gpas-*") if (found := submission.find(folder))]
    ours = [one for one in made if any(key in keys for element in one.record.keys for key in element)]
    if not ours:
        return []
    since = {one.name: one.record.time for one in ours}
    rows = _accounted(since, _FIELDS)
    named = {row[1] for row in rows}
    if ids := [id for one in ours if one.name not in named and (id := one.job())]:  # renamed since, or still queued
        rows += _accounted(since, _FIELDS, f"--jobs={','.join(ids)}")
    jobs = grouped((row[0].partition(".")[0], row) for row in rows)
    groups: dict[tuple[int, int, int], list[tuple[int, float, float]]] = {}
    for whole, *steps in jobs.values():
        elapsed = float(whole[6] or 0)
        if elapsed:
            asked = (_bytes(whole[3]), int(whole[4] or 0), 60 * int(whole[5]) if whole[5].isdigit() else 0)
            cpu = seconds(whole[7].partition(".")[0]) if whole[7] else 0.0
            peak = max((_bytes(step[8]) for step in steps), default=0)
            groups.setdefault(asked, []).append((peak, cpu, elapsed))
    return [
        ProfileUse(*asked, len(used), max(u[0] for u in used), sum(u[1] for u in used) / sum(u[2] for u in used),
                   max(u[2] for u in used))
        for asked, used in groups.items()
    ]  # fmt: skip


def _bytes(text: str) -> int:
    found = re.fullmatch(r"([\d.]+)([KMGT]?)\w?", text)
    return int(float(found[1]) * 2 ** _UNITS[found[2]]) if found else 0
