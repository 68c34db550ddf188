"""The findings of `gpas doctor` about a cluster: its configuration, the time that jobs have after a warning, its nodes.

A preempted job is warned at once: with the signal that it asked for if SlurmctldParameters has
preempt_send_user_signal, else with TERM. It is killed KillWait seconds after GraceTime. Before its time limit, a job is
warned `notice` seconds ahead. https://slurm.schedmd.com/preempt.html

With --nodes, short jobs report what compute nodes see, one for each set of resources among the cells. Such a probe is
submitted like the job of a cell, with the partition, account, options, setup, environment and Python of its resources.
Probes that are still queued after the wait, or when this process ends, are cancelled.
"""

import json
import os
import re
import secrets
import shlex
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpas_cli.events import Checkpoint, Step
from gpas_cli.project import Project
from gpas_cli.schedule.scheduler import Finding
from gpas_cli.schedule.slurm import client, probe, script
from gpas_cli.schedule.slurm.client import SlurmError, seconds
from gpas_cli.schedule.slurm.job import ENDED, plain
from gpas_cli.schedule.slurm.queue import last_log_line
from gpas_cli.spec.run import Resources
from gpas_cli.state import locks
from gpas_cli.state.attempt import end_of
from gpas_cli.store.journal import tail
from gpas_cli.store.rundir import all_attempts
from gpas_cli.words import listed

_PATIENCE_SECONDS = 120.0  # for a node to become available
_POLL_SECONDS = 1.0
_LATE_SECONDS = 5.0  # grace period for the answer of an ended job: files written on other nodes appear late
# Pending reasons that only an administrator, or another request, can resolve.
_PERMANENT_REASONS = (
    *("PartitionDown", "PartitionInactive", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints"),
    *("InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed"),
)
_SLACK_SECONDS = 2.0  # for a job to react to its warning, and for SLURM to notice its end
_MAX_SKEW_SECONDS = 5.0  # largest difference between clocks at which ages in `gpas status` are useful


@dataclass
class _NodeProbe:
    """A probe: the cells whose resources it has, the name and log of its job, and its answer or its problem."""

    label: str
    name: str
    log: Path
    answer: Mapping[str, Any] | None = None
    problem: str = ""
    reason: str = ""  # why it is pending, by SLURM's last report
    ended: float = 0.0

    @property
    def open(self) -> bool:
        return self.answer is None and not self.problem


def _ask(
    project: Project, profiles: Mapping[str, Resources], lock: Path, patience: float = _PATIENCE_SECONDS
) -> list[_NodeProbe]:
    """Submit one probe per profile, all at once, and wait at most `patience` seconds for their answers.

    `lock` is a file that this process holds locked, in a folder that nodes should see; the logs are written beside it.
    """
    name = f"gpas-doctor-{secrets.token_hex(4)}"
    probes = [_NodeProbe(label, f"{name}-{i}", lock.parent / f"{i}.out") for i, label in enumerate(profiles)]
    try:
        for asked, resources in zip(probes, profiles.values(), strict=True):
            _submit(project, asked, resources, lock)
        until = time.monotonic() + patience
        while any(asked.open for asked in probes) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
            _look([asked for asked in probes if asked.open])
    finally:
        for asked in probes:
            with suppress(SlurmError):
                client.run("scancel", f"--name={asked.name}")
    for asked in probes:
        if asked.open:
            asked.problem = f"no node within {patience:.0f} s{f' ({asked.reason})' if asked.reason else ''}"
    return probes


def _submit(project: Project, asked: _NodeProbe, resources: Resources, lock: Path) -> None:
    words = [probe.__file__, str(lock), str(min(1, resources.gpus))]
    path = asked.log.with_suffix(".sh")
    path.write_text(script.single(project, asked.name, asked.log, resources, shlex.join(words)))
    try:
        client.run("sbatch", f"--job-name={asked.name}", str(path), drop=script.overriding(path.read_text()))
    except SlurmError as error:
        asked.problem = str(error)


def _look(probes: Sequence[_NodeProbe]) -> None:
    for asked in probes:
        answers = [line for line in end_of(asked.log).splitlines() if line.startswith("{")]
        with suppress(ValueError, IndexError):
            asked.answer = json.loads(answers[-1])
    with suppress(SlurmError):
        names = ",".join(asked.name for asked in probes)
        queue = client.answer("NAME|", "squeue", "-a", "-t", "all", f"--name={names}", "-o", "%j|%T|%r")
        rows = {line.split("|")[0]: line.split("|")[1:] for line in queue if line.count("|") == 2}
        for asked in (asked for asked in probes if asked.open):
            _record_state(asked, *rows.get(asked.name, ("COMPLETED", "")))


def _record_state(asked: _NodeProbe, state: str, reason: str) -> None:
    """Record the state of a probe's job: pending for a reason, or ended."""
    asked.reason = "" if reason == "None" else reason
    if state == "PENDING" and reason.startswith(_PERMANENT_REASONS):
        asked.problem = f"its job cannot start: {reason}"
    elif plain(state) in ENDED:
        asked.ended = asked.ended or time.monotonic()
        if time.monotonic() - asked.ended > _LATE_SECONDS:
            asked.problem = f"its job ended without an answer: {last_log_line(asked.log) or state.lower()}"


def _warning_findings(config: Mapping[str, str], runs: Path, notices: Collection[int]) -> Iterator[Finding]:
    """Yield findings that compare the time jobs have after a warning with the time a checkpoint takes.

    `notices` has the values of `resources.notice` among the cells, in seconds.
    """
    save = _slowest_save(runs)
    took = "no checkpoint measured yet" if save is None else f"an update and a checkpoint took up to {save:.1f} s here"
    need = 0.0 if save is None else save + _SLACK_SECONDS
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


def _slowest_save(runs: Path) -> float | None:
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


def findings(project: Project, resources: Mapping[str, Resources], *, nodes: bool) -> Iterator[Finding]:
    """Yield the findings, only a note if there is no cluster; with `nodes`, also those about compute nodes.

    `resources` has the resources of each stage of a cell by its name.
    """
    if shutil.which("sbatch") is None:
        yield Finding("SLURM", "note", "no sbatch here: jobs run on this machine")
        return
    try:
        version = client.run("sbatch", "--version").strip()
    except SlurmError as error:  # the programs are installed, but no cluster is configured
        yield Finding("SLURM", "note", f"jobs run on this machine: {str(error).splitlines()[0]}")
        return
    yield from _configuration(version, project.runs, {asked.notice for asked in resources.values()})
    if nodes:
        yield from _nodes(project, resources)


def _configuration(version: str, runs: Path, notices: Collection[int]) -> Iterator[Finding]:
    """Yield findings about the controller's configuration. `notices` has the values of `resources.notice`."""
    try:
        config = client.configuration()
    except SlurmError as error:
        if "configuration source" in str(error):
            yield Finding("SLURM", "note", f"{version} is installed, but no cluster is configured: jobs run here")
        else:
            remedy = "check that this is a login node and that the controller is up"
            yield Finding("SLURM", "problem", f"{version}: {error}", remedy)
        return
    yield Finding("SLURM", "ok", f"{version}, cluster {config.get('ClusterName', '?')}")
    yield from _limits(config)
    yield from _warning_findings(config, runs, notices)
    yield _accounting(config)


def _limits(config: Mapping[str, str]) -> Iterator[Finding]:
    largest, most = config.get("MaxArraySize", "?"), config.get("MaxJobCount", "?")
    detail = f"arrays of up to {largest} elements, {most} jobs in the queue; larger grids are spread over several"
    if largest == "0":
        yield Finding("SLURM arrays", "problem", "MaxArraySize is 0: no job arrays", "use --executor local in salloc")
    else:
        yield Finding("SLURM arrays", "ok", detail)
    if config.get("JobRequeue", "1") == "0":
        remedy = "jobs ask for it themselves (--requeue); where that is refused, use gpas run --wait"
        yield Finding("SLURM requeue", "note", "JobRequeue is 0", remedy)


def _accounting(config: Mapping[str, str]) -> Finding:
    age = config.get("MinJobAge", "300 sec")
    try:
        client.run("sacct", "-n", "-X", "-S", "now-1minutes")
    except SlurmError as error:
        detail = f"{error}: only squeue shows how jobs ended, for {age}"
        remedy = "jobs record their outcomes in runs/; run `gpas status` within that time for the others"
        return Finding("SLURM accounting", "note", detail, remedy)
    return Finding("SLURM accounting", "ok", f"sacct answers; the controller remembers ended jobs for {age}")


def _nodes(project: Project, resources: Mapping[str, Resources]) -> Iterator[Finding]:
    """Yield findings about compute nodes, from one short job per set of resources among the cells.

    `resources` has the resources of each stage of a cell by its name. Waits for nodes for a limited time.
    """
    project.runs.mkdir(parents=True, exist_ok=True)
    profiles = _different(resources) or {"": Resources()}
    with tempfile.TemporaryDirectory(dir=project.runs, prefix=".doctor-") as folder:
        lock = Path(folder) / "held.lock"
        fd = locks.hold(lock)
        before = time.time()
        try:
            probes = _ask(project, profiles, lock)
        finally:
            os.close(fd)
    for asked in probes:
        whose = f" for {asked.label}" if len(probes) > 1 else ""
        if asked.answer is None:
            remedy = "see `sinfo`; `gpas explain CELL` says which resources come from which file"
            yield Finding(f"SLURM node{whose}", "problem", asked.problem, remedy)
        else:
            yield from _node(asked.answer, before, time.time(), whose, profiles[asked.label].gpus)


def _different(resources: Mapping[str, Resources]) -> dict[str, Resources]:
    """Return one of each set of resources that select the same nodes and Python, by the names of the cells with it."""
    found: dict[str, list[str]] = {}
    for name, asked in resources.items():
        where = (asked.chosen_partition, asked.account, asked.qos, asked.constraint, asked.sbatch, asked.gpus > 0)
        found.setdefault(repr((where, asked.setup, asked.environment, asked.python)), []).append(name)
    return {listed(names, 1): resources[names[0]] for names in found.values()}


def _node(answer: Mapping[str, Any], before: float, after: float, whose: str, gpus: int) -> Iterator[Finding]:
    where = f"node {answer['host']}{whose}"
    if not answer["shared"]:
        remedy = "set GPAS_RUNS_DIR to a folder that all nodes mount"
        yield Finding("shared folder", "problem", f"{where} does not see runs/", remedy)
    elif answer["lock"] != "held":
        remedy = "states are then concluded from SLURM and the age of events; submit from one host"
        yield Finding("shared locks", "note", f"{where} does not see that this host holds a file lock", remedy)
    else:
        yield Finding("shared folder", "ok", f"{where} sees runs/ and its file locks")
    skew = max(before - answer["time"], answer["time"] - after, 0.0)
    far = skew > _MAX_SKEW_SECONDS
    remedy = "synchronise both clocks (NTP): ages in `gpas status` are off by that much" if far else ""
    yield Finding("clocks", "problem" if far else "ok", f"{where} is within {skew:.1f} s of this host", remedy)
    if answer["scontrol"]:
        yield Finding("scontrol on nodes", "ok", "jobs requeue themselves after the warning signal")
    else:
        yield Finding("scontrol on nodes", "note", f"not on {where}", "use gpas run --wait, which resubmits jobs")
    detail = f"{where}: Python {answer['python']}, "
    if answer["torch"] is None:
        remedy = "set resources.python or resources.setup to an environment with torch"
        yield Finding("torch on nodes", "problem", f"{detail}not installed, {answer['gpus']} GPUs", remedy)
        return
    yield Finding("torch on nodes", "ok", f"{detail}torch {answer['torch']}, {answer['gpus']} GPUs")
    if gpus and not answer["gpus"]:
        remedy = "jobs that start there move to another node; have this one repaired"
        yield Finding("GPUs on nodes", "problem", f"{where}: the job asked for a GPU, but torch finds none", remedy)
