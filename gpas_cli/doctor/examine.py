"""The findings of `gpas doctor` about this machine and this project. Changes nothing."""

import fcntl
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from gpas_cli import file_systems
from gpas_cli.errors import GpasError
from gpas_cli.grid.declared import Entry, counted
from gpas_cli.grid.load import Check
from gpas_cli.processor import usable_cores
from gpas_cli.project import CONFIG_NAME, Project
from gpas_cli.schedule.scheduler import Finding, scheduler_named
from gpas_cli.spec.run import Resources
from gpas_cli.state.view import scheduler_names
from gpas_cli.trust import trusted_folders
from gpas_cli.words import byte_size, count

_MIN_FREE_BYTES = 2e9


def examine(project: Project, *, nodes: bool = False, check: Check | None = None) -> Iterator[Finding]:
    """Yield every finding, cheapest first; with `nodes`, also findings about the compute nodes of the cluster.

    `check` returns further problems of the experiments file.
    """
    yield Finding("Python", "ok", sys.version.split()[0])
    yield from _torch()
    yield _cores()
    yield _gpus()
    yield _compiler()
    yield from _schedulers(project, nodes)
    yield from (Finding("trusted", "ok", str(folder)) for folder in trusted_folders())
    yield from _experiments(project, check)
    yield _disk(project)
    yield from _files(project)
    yield _database(project)


def _torch() -> Iterator[Finding]:
    try:
        yield Finding("torch", "ok", importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        yield Finding("torch", "note", "not installed: plan, status and table work, jobs do not", "pip install torch")


def _cores() -> Finding:
    usable = len(usable_cores())
    load = psutil.getloadavg()[0]
    busy = load > usable
    remedy = "local jobs will share the cores with other processes" if busy else ""
    free = byte_size(psutil.virtual_memory().available)
    detail = f"{count(usable, 'core')}, load {load:.1f}, {free} of memory free"
    return Finding("CPU", "note" if busy else "ok", detail, remedy)


def _gpus() -> Finding:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Finding("GPU", "note", "none seen (no nvidia-smi): jobs run on the CPU")
    query = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return Finding("GPU", "problem", "nvidia-smi did not answer within 30 s", "check the driver")
    if answer.returncode:
        return Finding("GPU", "problem", answer.stderr.strip() or "nvidia-smi failed", "check the driver")
    return Finding("GPU", "ok", "; ".join(answer.stdout.strip().splitlines()))


def _compiler() -> Finding:
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    missing = [what for what, found in ((name, shutil.which(name)), (str(header), header.exists())) if not found]
    if not missing:
        return Finding("compiler", "ok", f"{name}: layers of long trainings are compiled")
    cost = "layers are not compiled, and training is 5 to 10 % slower, more on GPUs"
    detail = f"{' and '.join(missing)} not found: {cost}"
    return Finding("compiler", "note", detail, "install g++ and Python's headers (Debian: g++ python3-dev)")


def _schedulers(project: Project, nodes: bool) -> Iterator[Finding]:
    """Yield the findings of every registered scheduler that has some."""
    resources = _resources(project)
    for name in scheduler_names():
        try:
            scheduler = scheduler_named(name, project.runs)
        except GpasError as error:
            yield Finding("scheduler", "problem", str(error), "reinstall or remove the package that registers it")
            continue
        yield from scheduler.findings(project, resources, nodes=nodes)


def _resources(project: Project) -> dict[str, Resources]:
    """Return the resources of each stage of the declared cells, by the cell's id and the name of a later stage.

    Nothing if the experiments file is invalid.
    """
    try:
        entries = _declared(project)[1]
    except GpasError:
        return {}
    trainings = {entry.id: entry.resources for entry in entries}
    later = {f"{one.id} {stage.kind}": one.resources_of(stage) for one in entries for stage in one.cell.stages[1:]}
    return trainings | later


def _experiments(project: Project, check: Check | None) -> Iterator[Finding]:
    if not project.config.is_file():
        yield Finding("experiments", "note", f"no {CONFIG_NAME} here or in any folder above", "`gpas init` writes one")
        return
    try:
        grids, cells = _declared(project, check)
    except GpasError as error:
        yield Finding("experiments", "problem", str(error), "correct the file")
        return
    yield Finding("experiments", "ok", f"{project.config}: {count(grids, 'grid')}, {counted(cells)}")


def _declared(project: Project, check: Check | None = None) -> tuple[int, list[Entry]]:
    """Return the number of declared grids and all their cells. Raises GpasError if the file is invalid."""
    from gpas_cli.grid.expand import expand
    from gpas_cli.grid.load import load
    from gpas_cli.grid.resources import site_path

    experiments = load(project.config, check=check, site=site_path())
    return len(experiments.grids), expand(experiments, experiments.available)


def _disk(project: Project) -> Finding:
    free = file_systems.free(project.runs)
    remedy = "make room for checkpoints, or set GPAS_RUNS_DIR to another folder" if free.bytes < _MIN_FREE_BYTES else ""
    left = f"{byte_size(free.bytes)} free{' in the quota' if free.quota else ''} at {free.folder}"
    return Finding("disk", "problem" if remedy else "ok", left, remedy)


def _files(project: Project) -> Iterator[Finding]:
    folder = file_systems.existing(project.runs)
    network = file_systems.network_type(folder)
    advice = "keep the database on a local disk or PostgreSQL: set GPAS_DB" if network else ""
    yield Finding("file system", "note" if network else "ok", f"{network or 'local'}: {folder}", advice)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield Finding("file locks", "ok", f"flock works in {folder}")
    except OSError as error:
        yield Finding("file locks", "problem", f"{folder}: {error}", "set GPAS_RUNS_DIR to a folder that can be locked")


def _database(project: Project) -> Finding:
    from gpas_cli.store import session

    try:
        path = session.file_of(session.parse(project.database))
        if path is not None and not path.exists():
            return Finding("database", "ok", "does not exist yet; the first result creates it")
        session.connect(project.database, create=False).dispose()
    except GpasError as error:
        return Finding("database", "problem", str(error), "see `gpas db --help`")
    return Finding("database", "ok", session.name_of(project.database))
