"""The process that runs one attempt: `python -m gpas_cli.launch.job ATTEMPT_DIRECTORY`.

It reads `attempt.json`, appends to `journal.jsonl` (its only writer) and leaves with
0 done or diverged, 1 failed, 75 interrupted (checkpointed, to be resumed), 130 cancelled.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from gpas_cli.errors import GpasError
from gpas_cli.launch.trained import newest_checkpoint
from gpas_cli.spec import parse
from gpas_cli.spec.cell import Catalogue, Cell, cell_from
from gpas_cli.spec.plugins import known_schemes, schemes_in
from gpas_cli.spec.run import Cadence, Watch
from gpas_cli.store.journal import Journal
from gpas_cli.store.rundir import AttemptDir, attempts

if TYPE_CHECKING:
    from gpas_cli.train.events import Outcome

EXIT_CODES = {"done": 0, "diverged": 0, "failed": 1, "interrupted": 75, "cancelled": 130}
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)


class StopFlag:
    """The one owner of signals: a signal only raises a flag, which is looked at between updates."""

    def __init__(self, cancel_request: Path):
        self.cancel_request = cancel_request
        self.signal: int | None = None

    def install(self) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, self._raise)

    def _raise(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number

    def __call__(self) -> str | None:
        """None, or the outcome to leave with."""
        if self.signal is None:
            return None
        return "cancelled" if self.cancel_request.exists() else "interrupted"


def run_attempt(directory: Path) -> int:
    """Run the attempt in `directory` to its outcome; the exit code. Never raises."""
    here = AttemptDir(directory)
    attempt = here.read_attempt()
    journal, flag = Journal(here.journal_path), StopFlag(directory / "cancel.json")
    flag.install()
    try:
        cell = recorded_cell(attempt)
        outcome = _run_stage(here, attempt, cell, journal, flag)
    except GpasError as error:
        outcome = {"outcome": "failed", "cause": str(error)}
    except Exception as error:
        traceback.print_exc()
        outcome = {"outcome": "failed", "cause": f"{type(error).__name__}: {error}"}
    return _leave(journal, outcome)


def recorded_cell(attempt: dict[str, Any]) -> Cell:
    """The cell of an attempt.json. A plugin file that its scheme needs is run from the text recorded there.

    Raises InvalidExperiments when the scheme is not to be had, or wires the layers in another way than recorded.
    """
    plugin = attempt.get("plugin") or {}
    brought = schemes_in(plugin["name"], plugin["source"]) if plugin.get("source") else {}
    return cell_from(attempt["cell"], Catalogue(schemes={**known_schemes(), **brought}))


def _leave(journal: Journal, outcome: dict[str, Any]) -> int:
    journal("outcome", **{"step": 0, "cause": "", "metrics": {}, **outcome})
    try:
        journal.close()
    except OSError as error:
        # The outcome is not on disk, so it did not happen: the next attempt resumes from the last checkpoint.
        print(f"the journal could not be written: {error}", file=sys.stderr)
        return EXIT_CODES["interrupted"]
    print(f"{outcome['outcome']}{': ' if outcome.get('cause') else ''}{outcome.get('cause', '')}")
    return EXIT_CODES[outcome["outcome"]]


def _run_stage(
    here: AttemptDir, attempt: dict[str, Any], cell: Cell, journal: Journal, flag: Callable[[], str | None]
) -> dict[str, Any]:
    from gpas_cli.train.precision import make_deterministic

    make_deterministic(attempt["threads"])
    journal("start", **_facts(attempt, cell))
    stage = {"pretrain": _pretrain, "importance": _importance}[attempt["stage"]]
    return dict(parse.plain(stage(here, attempt, cell, journal, flag)))


def _pretrain(
    here: AttemptDir, attempt: dict[str, Any], cell: Cell, journal: Journal, flag: Callable[[], str | None]
) -> Outcome:
    from gpas_cli.train.run import Places, train
    from gpas_cli.train.sinks import Subject, opened

    runs = here.path.parents[2]
    earlier = [a.checkpoints for a in attempts(runs, attempt["key"]) if a.number < here.number]
    teacher = cell.teacher()
    places = Places(
        checkpoints=here.checkpoints,
        earlier=earlier,
        cache=Path(attempt["cache"]),
        root=Path(attempt["root"]),
        teacher=_last_checkpoint(runs, teacher.trained.key) if teacher else None,
    )
    cadence = Cadence(**attempt["cadence"])
    micro_batch = attempt["resources"]["micro_batch"]
    watch = Watch(**attempt.get("watch", {}))
    subject = Subject(attempt["grid"], attempt["name"], attempt["key"], here.number, here.path, attempt["cell"])
    with opened(watch, subject, places.root, journal) as emit:
        return train(cell, places, emit, cadence=cadence, stop=flag, micro_batch=micro_batch, watch=watch)


def _importance(
    here: AttemptDir, attempt: dict[str, Any], cell: Cell, journal: Journal, flag: Callable[[], str | None]
) -> Outcome:
    from gpas_cli.evaluate.importance import measure

    trained = _last_checkpoint(here.path.parents[2], cell.trained.key)
    return measure(cell, trained, Path(attempt["cache"]), Path(attempt["root"]), journal, flag)


def _last_checkpoint(runs: Path, key: str) -> Path:
    """The newest checkpoint of the stage `key`, which this one builds on. Raises GpasError when there is none."""
    found = newest_checkpoint(runs, key)
    if found is None:
        raise GpasError(f"stage {key}, which this one builds on, has no checkpoint in {runs}")
    return found


def _facts(attempt: dict[str, Any], cell: Cell) -> dict[str, Any]:
    import torch

    from gpas_cli.launch.environment import environment
    from gpas_cli.model.llama import Llama
    from gpas_cli.train.precision import choose_device

    device = choose_device()
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Llama(cell.model).parameters())
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return {
        "stage": attempt["stage"], "key": attempt["key"], "host": socket.gethostname(), "pid": os.getpid(),
        "device": device.type, "threads": torch.get_num_threads(), "precision": cell.precision,
        "parameters": parameters, "code": attempt["code"], "git": attempt.get("git", {}),
        "environment": {**environment(), "torch": torch.__version__, "gpu": gpu},
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(run_attempt(Path(sys.argv[1]).absolute()))
