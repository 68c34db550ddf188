"""Requests to cancel: a file beside the claim of a queued stage, or in the attempt of a running one.

A request is valid until `gpas retry` claims the stage again and removes it. It does not expire, because the clocks of
two hosts differ.
"""

import time
from pathlib import Path

from gpas_cli.store.records import CancelRequest
from gpas_cli.store.rundir import read_record, stage_dir, write_record

FILE = "cancel.json"


def request_path(directory: Path) -> Path:
    """Return the file of the request in the directory of a stage (queued) or of an attempt (running)."""
    return directory / FILE


def request(directory: Path, *, signalled: bool | None = None) -> None:
    """Request the cancellation of a stage or an attempt. Raises OSError if the request cannot be written."""
    write_record(request_path(directory), CancelRequest(t=time.time(), signalled=signalled))


def read_request(directory: Path) -> CancelRequest:
    """Return the request in a directory. Raises OSError or StoreError if it cannot be read."""
    return read_record(CancelRequest, request_path(directory))


def requested(runs: Path, key: str) -> bool:
    """Return whether there is a request to cancel the stage `key`, whatever its content and age."""
    try:
        return request_path(stage_dir(runs, key)).exists()
    except OSError:  # the directory may not be searched, so no job can be started in it either
        return False


def withdraw(runs: Path, key: str) -> None:
    """Remove the request from a stage that will run again. Raises OSError if it cannot be removed."""
    request_path(stage_dir(runs, key)).unlink(missing_ok=True)
