"""Repeated SIGKILLs of a training at random moments. Every trial is a fork of this process, which has loaded torch."""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from gpas_cli.events import Event, Step
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Cadence
from gpas_cli.train.device import make_deterministic
from gpas_cli.train.training import Execution, RunPaths, train

CADENCE = Cadence(log_every=1, stats_every=10, eval_every=10**6, checkpoint_every=3)


def trial(root: Path, cell: dict[str, Any], number: int, pipe: int) -> None:
    """Train in this process as attempt `number`, after all earlier ones; write the number of every update to `pipe`."""

    def emit(event: Event) -> None:
        if isinstance(event, Step):
            os.write(pipe, f"{event.step}\n".encode())

    folders = [root / f"killed-{n}" for n in range(number + 1)]
    paths = RunPaths(folders[-1], folders[:-1], root / "cache", root)
    outcome = train(cell_from(cell), paths, emit, Execution(CADENCE, lambda: None))
    os.write(pipe, b"0\n" if outcome.outcome == "done" else b"-1\n")


def start(root: Path, cell: dict[str, Any], number: int) -> tuple[int, Any]:
    """Start a fork that trains; return its process id and the stream of its update numbers."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        trial(root, cell, number, write)
        os._exit(0)
    os.close(write)
    return child, os.fdopen(read)


def kill_often(root: Path, cell: dict[str, Any], kills: int) -> dict[str, Any]:
    """Train a cell in root/killed-N, killed so often; return the signals, the last word, and the first update after."""
    make_deterministic(1)
    chooser = random.Random(11)
    at = 0
    killed = list[int]()
    steps = cell["optim"]["steps"]
    for number in range(kills):
        child, output = start(root, cell, number)
        # Let every trial run a little further, so that the last one is killed near the end.
        at = max(at, round(steps * (number + chooser.random()) / kills))
        for line in output:
            if int(line) >= min(at, steps - 1):
                break
        time.sleep(chooser.random() * 0.01)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed.append(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
        output.close()
    child, output = start(root, cell, kills)
    seen = [int(line) for line in output]
    os.waitpid(child, 0)
    return {"killed": killed, "end": seen[-1], "resumed_at": seen[0]}
