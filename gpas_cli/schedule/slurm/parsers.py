"""Jobs from the output of squeue, scontrol and sacct. Each query covers all jobs, and raises SlurmError."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate

from gpas_cli.schedule.slurm import client, job_states
from gpas_cli.schedule.slurm.array_task import Job

Jobs = dict[str, dict[int, Job]]  # array's name -> index -> job
Lines = dict[str, list[tuple[int, int, int]]]  # partition -> (-priority, array, index) of each job in line
WHOLE = -1  # stands for every index of an array that has no record of its own
# squeue pads and cuts every column to its width; no separator is safe to split at. scontrol prints the same by name.
COLUMNS = {
    "Name": 80, "State": 24, "Partition": 48, "PriorityLong": 24, "Reason": 48, "ArrayJobID": 20, "ArrayTaskID": 16,
    "NodeList": 200, "StartTime": 24, "EndTime": 24, "exit_code": 12, "RestartCnt": 12,
}  # fmt: skip
ENDS = list(accumulate(COLUMNS.values()))
HEAD = 7  # columns that are read for the jobs of all users
EXCLUDED = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")  # node lists have commas inside brackets as well
FIELD = re.compile(r"(?:^| )(\w+)=(\S*)")


def squeue(names: Collection[str], *, everyone: bool = False) -> Jobs:
    """Return the elements of the arrays of these names that the controller remembers, however they ended.

    They are found by name, whoever submitted them. With `everyone`, the jobs of all users are listed, which gives the
    positions of ours in line.
    """
    layout = ",".join(f"{name}:{width}" for name, width in COLUMNS.items())
    ours = f"--name={','.join(names)}" if names else f"--user={client.user()}"
    whose = () if everyone else (ours,)
    output = client.run("squeue", "-h", "-r", "-a", "-t", "all", *whose, "-O", layout)
    lines: Lines = {}
    jobs: Jobs = {}
    for text in output.splitlines():
        if not (mine := text[: ENDS[0]].rstrip() in names) and not (everyone and text.startswith("PENDING", ENDS[0])):
            continue
        name, state, partition, priority, reason, array, index = head = _cut(text, 0, HEAD)
        if everyone and job_states.in_line(state, reason):
            rank = (-_number(priority), _number(array), _number(index, WHOLE))
            lines.setdefault(_first(partition), []).append(rank)
        if mine:
            _add(jobs, name, index, [*head[1:], *_cut(text, HEAD, len(COLUMNS))])
    return _placed(jobs, lines)


def scontrol(names: Collection[str]) -> Jobs:
    """Return the same from `scontrol show job`, for sites where users may not run squeue; no positions in line."""
    jobs: Jobs = {}
    for text in client.run("scontrol", "-o", "-a", "show", "job").splitlines():
        shown = dict(FIELD.findall(text))
        if (name := shown.get("JobName", "")) in names:
            fields = ("JobState", "Partition", "Priority", "Reason", "ArrayJobId", "ArrayTaskId", "NodeList",
                      "StartTime", "EndTime", "ExitCode", "Restarts")  # fmt: skip
            words = [shown.get(field, "") for field in fields]
            for index in indices(f"_{words[5]}") if words[5] else ():
                _add(jobs, name, str(index), [*words[:5], str(index), *words[6:]])
            if words[5] in ("", "N/A"):
                _add(jobs, name, "", words)
    return jobs


def excluded(job: str) -> list[str]:
    """Return the nodes that a job excludes, in SLURM's notation (n1, n[3-5]). Raises SlurmError."""
    shown = dict(FIELD.findall(client.run("scontrol", "-o", "show", "job", job)))
    return [nodes for nodes in EXCLUDED.findall(shown.get("ExcNodeList", "")) if nodes != "(null)"]


def _cut(text: str, first: int, last: int) -> list[str]:
    begins = [0, *ENDS]
    return [text[begins[i] : ENDS[i]].strip() for i in range(first, last)]


def _add(jobs: Jobs, name: str, index: str, words: Iterable[str]) -> None:
    """Add one record. A record without an index is that of an array that ended as a whole, or is not ours."""
    shown, partition, _, reason, array, _, nodes, start, end, code, again = words
    state = job_states.plain(shown)
    if index.isdigit() or state in job_states.ENDED:
        jobs.setdefault(name, {})[int(index) if index.isdigit() else WHOLE] = Job(
            id=f"{array}_{index}" if index.isdigit() else array,
            state=state,
            reason=reason,
            nodes=nodes.replace("(null)", ""),
            # The start that SLURM expected before the job was held no longer applies.
            start=0.0 if job_states.is_held(state, reason) else _time(start),
            end=_time(end),
            exit=_exit_words(code) if state in job_states.ENDED else "",
            restarts=_number(again),
            partition=_first(partition),
        )


def _placed(jobs: Jobs, lines: Lines) -> Jobs:
    """Return `jobs` with the positions of those in line."""
    places = {
        f"{array}_{index}": (i, len(line))
        for line in lines.values()
        for i, (_, array, index) in enumerate(sorted(line), 1)
    }
    for elements in jobs.values():
        for index, job in elements.items():
            if job.id in places:
                place, waiting = places[job.id]
                elements[index] = replace(job, place=place, waiting=waiting)
    return jobs


def sacct(since: Mapping[str, float]) -> Iterator[tuple[str, int, Job]]:
    """Yield the ended array elements in accounting. `since` has the time of submission of each array by its name."""
    first = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(min(since.values()) - 60))
    fields = "JobID,JobName%300,State,ExitCode,NodeList%200,Start,End"
    # Without states and an end, sacct leaves out jobs that were cancelled while they waited for others.
    when = ("-S", first, "-E", "now", "-s", "CA,CD,F,TO,NF,PR,OOM,DL,BF")
    output = client.run("sacct", "-n", "-a", "-X", "-P", *when, f"--name={','.join(since)}", "-o", fields)
    for line in output.splitlines():
        parts = line.split("|")
        if len(parts) != 7:
            continue
        raw, name, state, code, nodes, start, end = parts
        # A user's cancellation is "CANCELLED by 1000"; plain CANCELLED is SLURM's, of a job that can never start.
        never = state == "CANCELLED" and not _time(start)
        base = Job(
            raw, job_states.plain(state), job_states.NEVER if never else "", nodes, _time(start), _time(end), code
        )
        if raw.isdigit():  # an array of one element that was cancelled before it started
            yield name, WHOLE, base
        for index in indices(raw):
            yield name, index, replace(base, id=f"{raw.split('_')[0]}_{index}")


def indices(job_id: str) -> Iterator[int]:
    """Yield the array indices of `12_3` or `12_[3,5-7%4]`; none for a job that is not an array."""
    _, _, tail = job_id.partition("_")
    for part in tail.strip("[]").split("%")[0].rstrip("]").split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            yield from range(int(first), int(last if last.isdigit() else first) + 1)


def _number(text: str, otherwise: int = 0) -> int:
    return int(text) if text.isdigit() else otherwise


def _first(partitions: str) -> str:
    return partitions.partition(",")[0]


def _exit_words(code: str) -> str:
    """Return squeue's exit status in sacct's form `code:signal`; squeue prints that or the status of wait()."""
    status = _number(code)
    return code if ":" in code else f"{status >> 8}:{status & 127}"


def _time(text: str) -> float:
    if text.isdigit():
        return float(text)
    if "T" not in text:  # N/A or Unknown, as for every pending job
        return 0.0
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return 0.0
