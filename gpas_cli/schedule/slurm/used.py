"""What jobs asked for and what they used, by profile, from SLURM's accounting (sacct)."""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from pathlib import Path

from gpas_cli.schedule.scheduler import ProfileUse
from gpas_cli.schedule.slurm import client, submission
from gpas_cli.schedule.slurm.preemption import seconds

FIELDS = ("JobID", "JobName%300", "State", "ReqMem", "AllocCPUS", "TimelimitRaw", "ElapsedRaw", "TotalCPU", "MaxRSS")
UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def used_by_profile(runs: Path, keys: Collection[str]) -> list[ProfileUse]:
    """Return the use of the ended jobs of these stages. Raises SlurmError if accounting does not answer."""
    made = [found for entry in submission.folder(runs).glob("gpas-*") if (found := submission.find(runs, entry.name))]
    ours = {one.name: one for one in made if any(key in keys for element in one.keys for key in element)}
    if not ours:
        return []
    first = time.localtime(min(one.since for one in ours.values()) - 60)
    when = ("-S", time.strftime("%Y-%m-%dT%H:%M:%S", first), "-E", "now", "-s", "CA,CD,F,TO,NF,PR,OOM,DL")
    output = client.run("sacct", "-n", "-a", "-P", *when, f"--name={','.join(ours)}", "-o", ",".join(FIELDS))
    jobs: dict[str, list[list[str]]] = {}
    for line in output.splitlines():
        if len(row := line.split("|")) == len(FIELDS):
            jobs.setdefault(row[0].partition(".")[0], []).append(row)
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
    return int(float(found[1]) * 2 ** UNITS[found[2]]) if found else 0
