"""Run a command of `gpas` as on a slow file system: every open, stat and listing below a folder takes a millisecond.

    python benchmarks/scale_project.py /tmp/scale --cells 2000
    cd /tmp/scale && gpas db sync
    python /path/to/benchmarks/slow_files.py runs -- status many

Prints the seconds, the CPU seconds and the calls. What Python's functions open and stat is delayed in this process, as
a client of a network file system is by its server; reading an open file is not.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import io
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

DELAY_SECONDS = 1e-3
CALLS = {"open": builtins, "stat": os, "lstat": os, "scandir": os, "listdir": os, "access": os}


def delayed(name: str, function: Callable[..., Any], folder: str, calls: Counter[str]) -> Callable[..., Any]:
    """Return the function with a delay for paths below a folder, which are counted."""

    def call(path: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(path, str | bytes | os.PathLike) and os.path.abspath(os.fsdecode(path)).startswith(folder):  # noqa: PTH100
            calls[name] += 1
            time.sleep(DELAY_SECONDS)
        return function(path, *arguments, **options)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="whose files are slow")
    parser.add_argument("words", nargs="+", help="the command, after --")
    chosen = parser.parse_args()
    folder, calls = str(chosen.folder.resolve()), Counter[str]()
    for module, name in [*((module, name) for name, module in CALLS.items()), (os, "open"), (io, "open")]:
        setattr(module, name, delayed(name, getattr(module, name), folder, calls))
    began, cpu = time.perf_counter(), time.process_time()
    sys.argv = ["gpas", *chosen.words]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        from gpas_cli.__main__ import main as gpas

        gpas()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    counted = ", ".join(f"{number:,} {name}" for name, number in calls.most_common())
    print(f"{' '.join(chosen.words)}: {seconds:.2f} s, {cpu:.2f} s CPU, {calls.total():,} calls: {counted}")


if __name__ == "__main__":
    main()
