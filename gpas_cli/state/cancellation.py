"""Requests to cancel: a file beside the claim of a queued stage, or in the attempt of a running one.

A request stands until `gpas retry` claims the stage again and removes it. No clock decides: those of two hosts differ.
"""

from __future__ import annotations

import time
from pathlib import Path

from gpas_cli.store.records import CancelRequest
from gpas_cli.store.rundir import read_record, stage_dir, write_record

FILE = "cancel.json"


def request_path(directory: Path) -> Path:
    """The request in the directory of a stage (queued) or of an attempt (running)."""
    return directory / FILE


def request(directory: Path, *, signalled: bool | None = None) -> None:
    """Ask that the stage or the attempt be cancelled. Raises OSError when the request cannot be written."""
    write_record(request_path(directory), CancelRequest(t=time.time(), signalled=signalled))


def read_request(directory: Path) -> CancelRequest:
    """Return the request in a directory. Raises OSError or StoreError if it cannot be read."""
    return read_record(CancelRequest, request_path(directory))


def requested(runs: Path, key: str) -> bool:
    """Whether a request to cancel the stage `key` stands. Its content does not matter, nor when it was made."""
    try:
        return request_path(stage_dir(runs, key)).exists()
    except OSError:  # a directory that may not be searched: nothing can be started in it either
        return False


def withdraw(runs: Path, key: str) -> None:
    """Remove the request on a stage that is to be run again. Raises OSError when it cannot be removed."""
    request_path(stage_dir(runs, key)).unlink(missing_ok=True)
