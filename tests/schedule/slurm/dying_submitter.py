"""`gpas` in a process that is killed (SIGKILL) at a named instant of a submission."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from gpas_cli.schedule.batch import scheduler, submission
from gpas_cli.schedule.slurm import client

instant = sys.argv.pop(1)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def around(module: Any, name: str, before: Callable[..., bool], after: Callable[..., bool]) -> None:
    """Die before or after a call of `module.name` if the condition holds for the arguments of the call."""
    real = getattr(module, name)

    def wrapped(*words: Any, **more: Any) -> Any:
        if before(*words):
            die()
        result = real(*words, **more)
        if after(*words):
            die()
        return result

    setattr(module, name, wrapped)


def at(wanted: str, number: int = 1) -> Callable[..., bool]:
    calls = [0]

    def count(*_words: Any) -> bool:
        calls[0] += 1
        return instant == wanted and calls[0] == number

    return count


def sbatch(wanted: str) -> Callable[..., bool]:
    return lambda *words: instant == wanted and words[0] == "sbatch"


def sbatch_left_running(*words: Any) -> bool:
    """Let sbatch outlive its killed parent, so that no process reads its answer."""
    if instant == "sbatch-running" and words[0] == "sbatch":
        subprocess.Popen(["sh", "-c", f"sleep 2; sbatch '{words[-1]}'"], stdout=subprocess.DEVNULL)
        return True
    return False


around(scheduler, "snapshot", at("claimed"), at("-"))
around(submission, "record", at("-"), at("recorded"))
around(scheduler, "write_claim", at("script"), at("first-claim"))
around(scheduler, "write_claim", at("-"), at("last-claim", 2))
around(client, "run", sbatch("before-sbatch"), sbatch("after-sbatch"))
around(client, "run", sbatch_left_running, at("-"))
around(submission.Submission, "submitted", at("before-answer"), at("answer-recorded"))

from gpas_cli.__main__ import main  # noqa: E402

main()
