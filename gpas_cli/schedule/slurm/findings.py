"""The findings of `gpas doctor` about a cluster: from its configuration, and with --nodes from compute nodes."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpas_cli.project import Project
from gpas_cli.schedule.scheduler import Finding
from gpas_cli.schedule.slurm import client, preemption
from gpas_cli.schedule.slurm.client import SlurmError
from gpas_cli.schedule.slurm.nodes import ask
from gpas_cli.spec.run import Resources
from gpas_cli.state import locks
from gpas_cli.words import listed

MAX_SKEW_SECONDS = 5.0  # largest difference between clocks at which ages in `gpas status` are useful


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
            yield Finding(
                "SLURM",
                "problem",
                f"{version}: {error}",
                "check that this is a login node and that the controller is up",
            )
        return
    yield Finding("SLURM", "ok", f"{version}, cluster {config.get('ClusterName', '?')}")
    yield from _limits(config)
    yield from preemption.findings(config, runs, notices)
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
        return Finding(
            "SLURM accounting",
            "note",
            detail,
            "jobs record their outcomes in runs/; run `gpas status` within that time for the others",
        )
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
            probes = ask(project, profiles, lock)
        finally:
            os.close(fd)
    for asked in probes:
        whose = f" for {asked.label}" if len(probes) > 1 else ""
        if asked.answer is None:
            remedy = "see `sinfo`, and resources in experiments.yaml"
            yield Finding(f"SLURM node{whose}", "problem", asked.problem, remedy)
        else:
            yield from _node(asked.answer, before, time.time(), whose, profiles[asked.label].gpus)


def _different(resources: Mapping[str, Resources]) -> dict[str, Resources]:
    """Return one of each set of resources that select the same nodes and Python, by the names of the cells with it."""
    found: dict[str, list[str]] = {}
    for name, asked in resources.items():
        where = (asked.partition, asked.account, asked.qos, asked.constraint, asked.sbatch, asked.gpus > 0)
        found.setdefault(repr((where, asked.setup, asked.environment, asked.python)), []).append(name)
    return {listed(names, 1): resources[names[0]] for names in found.values()}


def _node(answer: Mapping[str, Any], before: float, after: float, whose: str, gpus: int) -> Iterator[Finding]:
    where = f"node {answer['host']}{whose}"
    if not answer["shared"]:
        remedy = "set GPAS_RUNS_DIR to a folder that all nodes mount"
        yield Finding("shared folder", "problem", f"{where} does not see runs/", remedy)
    elif answer["lock"] != "held":
        detail = f"{where} does not see that this host holds a file lock"
        yield Finding(
            "shared locks",
            "note",
            detail,
            "states are then concluded from SLURM and the age of events; submit from one host",
        )
    else:
        yield Finding("shared folder", "ok", f"{where} sees runs/ and its file locks")
    skew = max(before - answer["time"], answer["time"] - after, 0.0)
    remedy = (
        "synchronise both clocks (NTP): ages in `gpas status` are off by that much" if skew > MAX_SKEW_SECONDS else ""
    )
    yield Finding("clocks", "problem" if remedy else "ok", f"{where} is within {skew:.1f} s of this host", remedy)
    if answer["scontrol"]:
        yield Finding("scontrol on nodes", "ok", "jobs requeue themselves after the warning signal")
    else:
        yield Finding("scontrol on nodes", "note", f"not on {where}", "use gpas run --wait, which resubmits jobs")
    torch = "not installed" if answer["torch"] is None else f"torch {answer['torch']}"
    status = "problem" if answer["torch"] is None else "ok"
    remedy = "set resources.python or resources.setup to an environment with torch" if answer["torch"] is None else ""
    yield Finding(
        "torch on nodes", status, f"{where}: Python {answer['python']}, {torch}, {answer['gpus']} GPUs", remedy
    )
    if gpus and not answer["gpus"] and answer["torch"] is not None:
        detail = f"{where}: the job asked for a GPU, but torch finds none"
        yield Finding(
            "GPUs on nodes", "problem", detail, "jobs that start there move to another node; have this one repaired"
        )
