"""What squeue reports about jobs, and scontrol at sites where users may not run squeue.

Each query covers all jobs, and raises SlurmError.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import accumulate

from gpas_cli.schedule.batch.view import WHOLE
from gpas_cli.schedule.slurm.client import answer
from gpas_cli.schedule.slurm.job import ENDED, NEVER, Job, Jobs, indices, is_held, moment, plain

# Pending reasons unrelated to queue position.
_NOT_IN_LINE = frozenset({"Dependency", NEVER, "BeginTime"})
_Lines = dict[str, list[tuple[int, int, int]]]  # partition -> (-priority, array, index) of each job in line
# squeue pads and cuts every column to its width; no separator is safe to split at. scontrol prints the same by name.
_COLUMNS = {
    "Name": 80, "State": 24, "Partition": 48, "PriorityLong": 24, "Reason": 48, "ArrayJobID": 20, "ArrayTaskID": 16,
    "NodeList": 200, "StartTime": 24, "EndTime": 24, "exit_code": 12, "RestartCnt": 12,
}  # fmt: skip
_ENDS = list(accumulate(_COLUMNS.values()))
_LAYOUT = ",".join(f"{name}:{width}" for name, width in _COLUMNS.items())
_TITLES = "".join(name.upper().ljust(_COLUMNS[name]) for name in ("Name", "State", "Partition")).rstrip()
_HEAD = 7  # columns that are read for the jobs of all users
_EXCLUDED = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")  # node lists have commas inside brackets as well
_FIELD = re.compile(r"(?:^| )(\w+)=(\S*)")


def squeue(names: Collection[str], *, everyone: bool = False) -> Jobs:
    """Return the elements of the arrays of these names that the controller remembers, however they ended.

    They are found by name, whoever submitted them. With `everyone`, the jobs of all users are listed, which gives the
    positions of ours in line.
    """
    ours = f"--name={','.join(names)}" if names else f"--user={os.getuid()}"
    whose = () if everyone else (ours,)
    lines: _Lines = {}
    jobs: Jobs = {}
    for text in answer(_TITLES, "squeue", "-r", "-a", "-t", "all", *whose, "-O", _LAYOUT):
        if not (mine := text[: _ENDS[0]].rstrip() in names) and not (everyone and text.startswith("PENDING", _ENDS[0])):
            continue
        name, state, partition, priority, reason, array, index = head = _cut(text, 0, _HEAD)
        if everyone and state == "PENDING" and reason not in _NOT_IN_LINE and not is_held(state, reason):
            rank = (-_number(priority), _number(array), _number(index, WHOLE))
            lines.setdefault(_first(partition), []).append(rank)
        if mine:
            _add(jobs, name, index, [*head[1:], *_cut(text, _HEAD, len(_COLUMNS))])
    return _placed(jobs, lines)


def renamed(ids: Mapping[str, str]) -> Jobs:
    """Return the elements of arrays that have another name by now, or that an answer left out. `ids`: the recorded
    name -> the job id.

    Ids are reused after a crash of the controller, but the path of an array's script has its name.
    """
    layout = f"{_LAYOUT},Command:400"
    which = f"--jobs={','.join(ids.values())}"
    jobs: Jobs = {}
    for text in answer(_TITLES, "squeue", "-r", "-a", "-t", "all", which, "-O", layout):
        for name in (name for name in ids if f"/{name}/" in text[_ENDS[-1] :]):
            head = _cut(text, 0, _HEAD)
            _add(jobs, name, head[-1], [*head[1:], *_cut(text, _HEAD, len(_COLUMNS))])
    return jobs


def scontrol(names: Collection[str]) -> Jobs:
    """Return the same from `scontrol show job`, for sites where users may not run squeue; no positions in line."""
    jobs: Jobs = {}
    for text in answer(("JobId=", "No jobs in the system"), "scontrol", "-o", "-a", "show", "job"):
        shown = dict(_FIELD.findall(text))
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
    shown = dict(_FIELD.findall(answer("JobId=", "scontrol", "-o", "show", "job", job)[0]))
    return [nodes for nodes in _EXCLUDED.findall(shown.get("ExcNodeList", "")) if nodes != "(null)"]


def _cut(text: str, first: int, last: int) -> list[str]:
    begins = [0, *_ENDS]
    return [text[begins[i] : _ENDS[i]].strip() for i in range(first, last)]


def _add(jobs: Jobs, name: str, index: str, words: Iterable[str]) -> None:
    """Add one record. A record without an index belongs to an array that ended as a whole, or is not ours."""
    shown, partition, _, reason, array, _, nodes, start, end, code, again = words
    state = plain(shown)
    if index.isdigit() or state in ENDED:
        # The start that SLURM expected before the job was held no longer applies.
        begin = 0.0 if is_held(state, reason) else moment(start)
        jobs.setdefault(name, {})[int(index) if index.isdigit() else WHOLE] = Job(
            id=f"{array}_{index}" if index.isdigit() else array, state=state, reason=reason,
            nodes=nodes.replace("(null)", ""), start=begin, end=moment(end),
            exit=_exit_words(code) if state in ENDED else "", restarts=_number(again), partition=_first(partition),
        )  # fmt: skip


def _placed(jobs: Jobs, lines: _Lines) -> Jobs:
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


def _number(text: str, otherwise: int = 0) -> int:
    return int(text) if text.isdigit() else otherwise


def _first(partitions: str) -> str:
    return partitions.partition(",")[0]


def _exit_words(code: str) -> str:
    """Return squeue's exit status in sacct's form `code:signal`; squeue prints that or the status of wait()."""
    status = _number(code)
    return code if ":" in code else f"{status >> 8}:{status & 127}"
