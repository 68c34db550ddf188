"""A check after each test: what it has opened is closed again.

A shell allows 1,024 open files by default; tests that leave a few each exceed that together, and the last ones fail.
"""

import gc
import os
import sys
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

OPEN = Path("/proc/self/fd")
INSTALLED = os.path.realpath(sys.prefix)
KEPT = set[str]()  # numbers of descriptors that stay open until this process ends


def descriptors() -> dict[str, str]:
    """Return what each open descriptor of this process refers to, by its number; nothing where there is no /proc.

    Left out are files of installed packages, because a library may keep its own open, as matplotlib keeps fonts, and
    the pipes to processes that live as long as this one, such as multiprocessing's resource tracker. On a GPU nothing
    is returned: its driver opens descriptors of several kinds and keeps them.
    """
    found = {}
    if "TEST_ON_GPU" in os.environ:
        return found
    kept = {*KEPT, str(resource_tracker._resource_tracker._fd)}
    for number in os.listdir(OPEN) if OPEN.is_dir() else ():  # noqa: PTH208  (before and after each test)
        try:
            target = os.readlink(OPEN / number)  # noqa: PTH115
        except OSError:  # The descriptor with which the folder was read.
            continue
        if not target.startswith(INSTALLED) and number not in kept:
            found[number] = target
    return found


@pytest.fixture(autouse=True)
def closes_what_it_opens(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a descriptor open, unless it is marked `keeps_open` with the reason."""
    before = descriptors()
    yield
    request.node.funcargs.clear()  # They hold what the test's fixtures returned, and so its files.
    if request.node.get_closest_marker("keeps_open") is None and (left := opened_since(before)):
        pytest.fail(f"{len(left)} descriptors are still open: {', '.join(sorted(left))}")


def opened_since(before: dict[str, str]) -> list[str]:
    """Return what is open now and was not before, once objects that only wait for the collector are gone."""

    def new() -> list[str]:
        return [target for number, target in descriptors().items() if before.get(number) != target]

    if not new():
        return []
    gc.collect()
    if not new():
        return []
    gc.unfreeze()  # Commands and jobs freeze what they leave behind when they end.
    gc.collect()
    gc.freeze()
    until = time.monotonic() + 2  # for threads of a server, which close the socket of a client that has left
    while (left := new()) and time.monotonic() < until:
        time.sleep(0.02)
    return left
