"""The process of an attempt: its identity, its environment, the libraries that it needs, the record of its exit."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from gpas_cli.errors import GpasError
from gpas_cli.spec.run import Monitoring
from gpas_cli.state import locks
from gpas_cli.store.records import ExitRecord
from gpas_cli.store.rundir import AttemptDir, write_record
from gpas_cli.words import listed

_PRIVATE_VARIABLES = frozenset({"GPAS_DB"})
_ISOLATED = {"PYTHONSAFEPATH": "1"}  # no process that a job starts imports modules from its working directory
JOB = (sys.executable, "-P", "-m", "gpas_cli.worker.job")  # -P: modules are not imported from the working directory


def token(pid: int) -> str:
    """Return a text that distinguishes a process from a later one with the same id; "" if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        # The name may contain anything and ends at the last bracket; the start time is the 20th field after it.
        return f"{locks.boot_id()}/{stat.rpartition(')')[2].split()[19]}"
    except (OSError, IndexError):
        pass
    try:
        return f"{psutil.Process(pid).create_time():.2f}"
    except psutil.Error:
        return ""


def record_exit(attempt: AttemptDir, code: int | None, number: int | None, **more: Any) -> None:
    """Write exit.json: the exit code or the signal that ended the process, and further fields of `ExitRecord`."""
    record = ExitRecord(code=code, signal=number, t=time.time(), **more)
    with suppress(OSError):  # a full disk: the released lock still shows that the process ended, but not how
        write_record(attempt.exit_path, record)


def without_secrets(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return `environ` without the URL of the database: jobs never open it and need not know its password."""
    return {name: value for name, value in environ.items() if name not in _PRIVATE_VARIABLES}


def job_environment(package: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a job on this machine: this process's, with `variables`.

    The job imports the package from the folder `package`, wherever it starts. The folders of PYTHONPATH follow, as this
    process sees them: an empty one would be the job's working directory, from which it imports nothing.
    """
    more = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    search_path = os.pathsep.join([str(package), *(str(Path(folder).absolute()) for folder in more if folder)])
    return {**without_secrets(), **variables, "PYTHONPATH": search_path, **_ISOLATED, "PYTHONUNBUFFERED": "1"}


_OPTIONAL = {"tensorboard": "TensorBoard", "wandb": "Weights & Biases"}  # name of the setting, the module and the extra


def require_libraries(wanted: Mapping[str, Monitoring]) -> None:
    """Raise GpasError if a job asks for a library that is not installed. `wanted` has each job's `watch` by its id."""
    missing: dict[str, list[str]] = {}
    for who, watch in wanted.items():
        for name in _OPTIONAL:
            if getattr(watch, name) and find_spec(name) is None:
                missing.setdefault(name, []).append(who)
    lines = [
        f"{listed(jobs, 1)}: watch.{name} asks for {_OPTIONAL[name]}, "
        f"which is not installed: pip install 'gpas-cli[{name}]'"
        for name, jobs in missing.items()
    ]
    if lines:
        raise GpasError("\n".join(lines))
