"""SLURM's command-line programs, run with a time limit: whether they can be used, what a refusal says, what squeue,
scontrol and sacct report about jobs, and the consequences of SLURM's job states.

Each query covers all jobs, and raises SlurmError.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.schedule.process import without_secrets
from gpas_cli.schedule.scheduler import ProfileUse
from gpas_cli.schedule.slurm import submission
from gpas_cli.state.status import SchedulerJob

_TIMEOUT_SECONDS = 30.0  # a controller that is down answers "cannot contact" after about ten
# Variables of a job must not leak into jobs submitted from inside it, and a user's defaults for these programs must
# not change their output; the two that select the cluster are kept. `script.overriding` handles defaults for sbatch.
_DROPPED = ("SLURM_", "SQUEUE_", "SCANCEL_", "SACCT_", "SINFO_", "SCONTROL_", "SRUN_")
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS")


class SlurmError(GpasError):
    """A SLURM command failed. `answered`: the scheduler itself refused, rather than being unreachable."""

    def __init__(self, message: str, *, answered: bool):
        super().__init__(message)
        self.answered = answered


_UNREACHED = (
    "unable to contact slurm controller",
    "socket timed out",
    "connection refused",
    "connection timed out",
    "transport endpoint is not connected",
    "communication",
    "temporarily unable",
    "zero bytes were transmitted",
    "protocol authentication error",
    "could not establish a configuration source",
    "no route to host",
    "unable to establish",
)


def _environment(
    environ: Mapping[str, str] = os.environ, drop: Collection[str] = (), times: str = "%s"
) -> dict[str, str]:
    """Return `environ` without the variables of a surrounding job, a user's defaults for SLURM's programs, and `drop`.

    The URL of the database is left out too: sbatch passes the environment on to jobs, which never open the database and
    need not know its password. `times` is the format in which the programs print times: by default unix seconds.
    """
    kept = {
        name: value
        for name, value in without_secrets(environ).items()
        if name in _KEPT or not (name.startswith(_DROPPED) or name in drop)
    }
    # By default, long lists of array indices are cut and cannot be parsed, and the format of times varies by site.
    return {**kept, "SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": times}


def run(
    *words: str, patience: float = _TIMEOUT_SECONDS, errors: bool = False, drop: Collection[str] = (), times: str = "%s"
) -> str:
    """Return the output of a command, with `errors` also its stderr. `drop` and `times`: as for `environment`.

    Raises SlurmError if the command is missing, fails or takes longer than `patience` seconds.
    """
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=patience,
            env=_environment(drop=drop, times=times), stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise SlurmError(f"{words[0]} is not on the PATH", answered=False) from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"{words[0]} did not answer within {patience:.0f} s", answered=False) from error
    if done.returncode:
        raise _failure(words[0], done.stderr or done.stdout)
    return done.stderr + done.stdout if errors else done.stdout


def _failure(program: str, said: str) -> SlurmError:
    """Return the error for a program that failed with the output `said`."""
    lines = [line.strip().removeprefix(f"{program}: ").removeprefix("error: ") for line in said.splitlines()]
    lines = [line for line in lines if line]
    # A command without output was killed, for instance by a time limit: its request may be carried out nevertheless.
    # The reason comes last; lines that a site's own filter printed before it may contain any text.
    reached = bool(lines) and not any(words in "; ".join(lines[-2:]).lower() for words in _UNREACHED)
    return SlurmError(f"{program}: {'; '.join(lines) or 'failed'}", answered=reached)


def answer(head: str | tuple[str, ...], *words: str) -> list[str]:
    """Return the lines that a command prints, from the first one that begins with `head`.

    Every answer has this line, with however few jobs: an output without it is no evidence that SLURM has no jobs. What
    a site prints before it is ignored. Raises SlurmError like `run`, and if there is no such line or the last is cut.
    """
    lines = run(*words).split("\n")
    first = next((i for i, line in enumerate(lines) if line.startswith(head)), None)
    if first is None or lines[-1]:
        what = repr((lines[-1] or lines[0])[:60].strip()) if any(lines) else "nothing"
        raise SlurmError(f"{words[0]} printed {what}, which is not the answer asked for", answered=False)
    return lines[first:-1]


def configuration() -> dict[str, str]:
    """Return the controller's settings by name, as text. Raises SlurmError."""
    lines = (line.partition("=") for line in run("scontrol", "show", "config").splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def require() -> None:
    """Raise GpasError if sbatch is not installed."""
    if shutil.which("sbatch") is None:
        raise GpasError(
            "SLURM is not available: sbatch is not on the PATH; submit from a login node, or use --executor local"
        )


def seconds(words: str) -> float:
    """Return a SLURM time in seconds: "15", "5 sec", "00:01:30", "1-00:00:00". Raises GpasError for other forms."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)(?: sec)?", words.strip())
    if match is None:
        raise GpasError(f"not a SLURM time: {words!r}")
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


# Yet to run, whatever happened before: SLURM starts these by itself, or once they are released.
_WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
_HELD = frozenset({"REQUEUE_HOLD", "SPECIAL_EXIT"})
# Pending reasons unrelated to queue position.
NEVER = "DependencyNeverSatisfied"
_NOT_IN_LINE = frozenset({"Dependency", NEVER, "BeginTime"})
# Has processes, or may have some. COMPLETING may become PENDING again.
_AT_WORK = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT"})
# Caused by the machine, not by the job, which is run again.
INTERRUPTED = frozenset({"TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED"})
# Caused by the node: the job is run again on another one.
NODE_FAULTS = frozenset({"NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED"})
MEMORY = "OUT_OF_MEMORY"
CANCELLED = "CANCELLED"
VANISHED = "VANISHED"  # not SLURM's: it no longer reports the job, and why is not certain
REMOVED = "removed from the queue before it started"
ENDED = INTERRUPTED | {"COMPLETED", "FAILED", CANCELLED, VANISHED, "DEADLINE", MEMORY}

# Signals from outside that end a job: USR2 or TERM before it has handlers, KILL at its time limit or by the kernel.
OUTSIDE_SIGNALS = frozenset({9, 12, 15})
NO_LOG = 53  # slurmstepd's exit signal if it could not open the job's output


def plain(state: str) -> str:
    """Return a state without additions: `CANCELLED by 1000` and `CANCELLED+` are CANCELLED."""
    return state.split(" ")[0].rstrip("+").upper()


def exit_words(code: str) -> tuple[int, int]:
    """Return sacct's `code:signal` as numbers, 0 for a part that is not a number. A shell's 128 + n is signal n."""
    head, _, tail = code.partition(":")
    status, signal = (int(part) if part.isdigit() else 0 for part in (head, tail))
    return (0, status - 128) if status > 128 and not signal else (status, signal)


def _is_held(state: str, reason: str) -> bool:
    """Return whether a job waits until a person releases it."""
    # JobHeldUser, "job requeued in held state", launch_failed_requeued_held
    lowered = reason.lower()
    held = lowered.startswith("jobheld") or ("requeued" in lowered and "held" in lowered)
    return state in _HELD or (state in _WAITING and held)


@dataclass(frozen=True)
class Job(SchedulerJob):
    """One array element. Times are unix times, 0 if SLURM reports none.

    `place` is its position among the jobs that this user may see, by the scheduler's priority; 0 if it is not in line
    or positions were not queried.
    """

    end: float = 0.0
    exit: str = ""
    restarts: int = 0

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def pending(self) -> bool:
        return self.state in _WAITING

    @property
    def held(self) -> str:
        """Who or which command releases a held job, as text; "" if the job is not held."""
        if not _is_held(self.state, self.reason):
            return ""
        if self.reason == "JobHeldAdmin":
            return "held until an administrator releases it"
        # JobHeldUser says no more than that it is held.
        why = "" if self.reason.startswith("JobHeld") or self.reason in ("", "None") else f": {self.reason}"
        return f"held{why}; `scontrol release {self.id}` releases it"

    def __str__(self) -> str:
        reason = self.reason if self.reason not in ("None", "", "NonZeroExitCode") else ""
        detail = self.held or ", ".join(filter(None, (reason, self.in_line)))
        where = f" on {self.nodes}" if self.nodes and self.state in _AT_WORK else ""
        return f"SLURM {self.id} {self.state}{where}{f' ({detail})' if detail else ''}"


Jobs = dict[str, dict[int, Job]]  # array's name -> index -> job
_Lines = dict[str, list[tuple[int, int, int]]]  # partition -> (-priority, array, index) of each job in line
WHOLE = -1  # stands for every index of an array without a separate record
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
        if everyone and state == "PENDING" and reason not in _NOT_IN_LINE and not _is_held(state, reason):
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
            for index in _indices(f"_{words[5]}") if words[5] else ():
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
        jobs.setdefault(name, {})[int(index) if index.isdigit() else WHOLE] = Job(
            id=f"{array}_{index}" if index.isdigit() else array,
            state=state,
            reason=reason,
            nodes=nodes.replace("(null)", ""),
            # The start that SLURM expected before the job was held no longer applies.
            start=0.0 if _is_held(state, reason) else _time(start),
            end=_time(end),
            exit=_exit_words(code) if state in ENDED else "",
            restarts=_number(again),
            partition=_first(partition),
        )


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


def sacct(since: Mapping[str, float]) -> Iterator[tuple[str, int, Job]]:
    """Yield the ended array elements in accounting. `since` has the time of submission of each array by its name."""
    fields = ("JobID", "JobName%300", "State", "ExitCode", "NodeList%200", "Start", "End")
    for raw, name, state, code, nodes, start, end in _accounted(since, fields, "-X"):
        # A user's cancellation is "CANCELLED by 1000"; plain CANCELLED is SLURM's, of a job that can never start.
        never = state == "CANCELLED" and not _time(start)
        base = Job(raw, plain(state), NEVER if never else "", nodes, _time(start), end=_time(end), exit=code)
        if raw.isdigit():  # an array of one element that was cancelled before it started
            yield name, WHOLE, base
        for index in _indices(raw):
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


def _indices(job_id: str) -> Iterator[int]:
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


_FIELDS = ("JobID", "JobName%300", "State", "ReqMem", "AllocCPUS", "TimelimitRaw", "ElapsedRaw", "TotalCPU", "MaxRSS")
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def used_by_profile(runs: Path, keys: Collection[str]) -> list[ProfileUse]:
    """Return the use of the ended jobs of these stages. Raises SlurmError if accounting does not answer."""
    made = [found for entry in submission.folder(runs).glob("gpas-*") if (found := submission.find(runs, entry.name))]
    ours = [one for one in made if any(key in keys for element in one.record.keys for key in element)]
    if not ours:
        return []
    since = {one.name: one.record.time for one in ours}
    rows = _accounted(since, _FIELDS)
    named = {row[1] for row in rows}
    if ids := [id for one in ours if one.name not in named and (id := one.job())]:  # renamed since, or still queued
        rows += _accounted(since, _FIELDS, f"--jobs={','.join(ids)}")
    jobs: dict[str, list[list[str]]] = {}
    for row in rows:
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
    return int(float(found[1]) * 2 ** _UNITS[found[2]]) if found else 0
