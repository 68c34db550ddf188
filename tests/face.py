"""The `gpas` command in this process, and projects whose cells have made-up attempts, so that nothing is trained."""

import gc
import io
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from attempts import attempt_at, make_attempt
from cases import file_text, tables
from sqlalchemy import Engine
from typer.main import get_group

from gpas_cli.__main__ import main
from gpas_cli.cli import app, console, selection
from gpas_cli.events import Event, Layers, Outcome, Started, Step, event_of
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.plan.stage_jobs import stage_jobs
from gpas_cli.schedule.local import run
from gpas_cli.schedule.local.run import LocalRun
from gpas_cli.state.attempt import alive_path
from gpas_cli.state.locks import locked
from gpas_cli.store import session
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.store.snapshot import Snapshot
from gpas_cli.structure import to_mapping

TESTS = Path(__file__).parent
HOST = socket.gethostname()
FAKE_JOB = (sys.executable, "-S", "-P", str(TESTS / "fake_job.py"))
EXPERIMENTS = file_text("experiments/small.yaml")
TINY = file_text("experiments/three_layers.yaml")
BASE = "{size: tiny, data: quickstart, optim: {lr: 1e-3, warmup: 1, steps: 40, batch: 2}}"

FOUR = file_text("experiments/tiny.yaml")


def tiny(grids: str) -> str:
    """Return an experiments file with these grids, in which BASE stands for a network of three layers."""
    return TINY + grids.replace("BASE", BASE)


@dataclass(frozen=True)
class Said:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


_make_app, _get_group = cache(app.make_app), cache(get_group)
_migrate, _EMPTY = session.migrate, list[bytes]()


def _migrate_once(engine: Engine) -> None:
    """Migrate a database; after the first new file, the next ones are copies of it."""
    path = session.file_of(engine.url)
    if path is None or path.stat().st_size:
        _migrate(engine)
    elif _EMPTY:
        path.write_bytes(_EMPTY[0])
    else:
        _migrate(engine)
        _EMPTY.append(path.read_bytes())


def quicken_databases(patch: pytest.MonkeyPatch) -> None:
    """Copy new databases, and wait for no disk, for the reason of `os.fsync` in conftest.py."""
    patch.setattr(session, "migrate", _migrate_once)
    patch.setattr(session, "_SYNCHRONOUS", "OFF")


def run_main(words: Sequence[str]) -> int:
    """Run `gpas` with these words in this process, and return its exit code."""
    selection.experiments.cache_clear()
    console.STATE.config, console.STATE.as_json = None, False
    gc.freeze()  # a search through what the command did not make takes most of a second
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["gpas", *words])
        patch.setattr(sys.modules["__main__"], "__package__", None)  # otherwise the program is `python -m pytest`
        patch.setattr(gc, "freeze", lambda: None)  # with which `main` would spare what the command made
        patch.setattr(os, "nice", lambda steps: 0)  # of `gpas report --serve`: this process would stay at it
        # What each process makes once takes longer than many a command.
        patch.setattr(app, "make_app", _make_app)
        patch.setattr(app, "get_group", _get_group)
        quicken_databases(patch)
        with pytest.raises(SystemExit) as ended:
            main()
    code = ended.value.code
    del ended
    gc.collect()  # as when a process ends: connections to the database are closed
    return int(code or 0)


def gpas(folder: Path, *words: str, expect: int | None = 0, environment: Mapping[str, str] = os.environ) -> Said:
    """Run a command in `folder` to its end; its exit code must be `expect`, None for any."""
    out, err = io.StringIO(), io.StringIO()
    own = mock.patch.dict(os.environ, dict(environment), clear=True)
    with chdir(folder), own, redirect_stdout(out), redirect_stderr(err):
        code = run_main(words)
    said = Said(code, out.getvalue(), err.getvalue())
    assert expect is None or said.code == expect, (words, said.out + said.err)
    assert "Traceback" not in said.err, said.err
    return said


@lru_cache(maxsize=4)  # it takes longer than most of what tests do with a cell
def _expanded(config: Path, declared: tuple[bytes, ...], grids: tuple[str, ...]) -> list[Entry]:
    """Return the cells of these grids; `declared` is the content of the files that declare them."""
    return expand(load(config), grids)


class Face:
    """A project in `folder`; call it with the words of a command."""

    def __init__(self, folder: Path, experiments: str = EXPERIMENTS):
        self.folder = folder
        (folder / "text").mkdir(parents=True)
        self.write_text()
        self.declare(experiments)

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def write_text(self) -> None:
        """Write what the corpus `notes` reads."""
        for name in range(1, 6):  # whose texts put one of them into the validation text
            (self.folder / f"text/{name:02}.txt").write_text(f"gate depth norm scale loss {name} " * 320)

    def environment(self) -> dict[str, str]:
        """Return the environment of its commands."""
        return dict(os.environ)

    def declare(self, text: str) -> None:
        """Replace the experiments file."""
        (self.folder / "experiments.yaml").write_text(text)

    def edit(self, old: str, new: str, count: int = -1) -> None:
        """Replace a part of the experiments file."""
        text = (self.folder / "experiments.yaml").read_text()
        assert old in text
        self.declare(text.replace(old, new, count))

    def __call__(self, *words: str, expect: int | None = 0) -> Said:
        """Run a command to its end; its exit code must be `expect`, None for any."""
        return gpas(self.folder, *words, expect=expect, environment=self.environment())

    def entries(self, *grids: str) -> list[Entry]:
        """Return the cells that these grids declare now, by default those of `small`."""
        declared = [path.read_bytes() for path in sorted(self.folder.glob("*.*")) if path.suffix in (".yaml", ".py")]
        return list(_expanded(self.folder / "experiments.yaml", tuple(declared), grids or ("small",)))

    def cells(self) -> list[Entry]:
        """Return the cells of all grids."""
        experiments = load(self.folder / "experiments.yaml")
        return expand(experiments, list(experiments.grids))

    def entry(self, name: str, grid: str = "small") -> Entry:
        return next(entry for entry in self.entries(grid) if entry.name == name)

    def attempt(self, name: str, *events: tuple[str, dict[str, Any]], log: str = "") -> AttemptDir:
        """Create the next attempt at a cell's pretraining, with these events in its journal."""
        return self.recorded(self.entry(name), *events, log=log)

    def recorded(self, entry: Entry, *events: tuple[str, dict[str, Any]], log: str = "") -> AttemptDir:
        """Create the next attempt at an entry's pretraining, with these events in its journal."""
        known = [event_of({"kind": kind, **fields}) for kind, fields in events]
        return attempt_at(self.runs, entry, known, log=log, code="c0de")

    def waiting(self, entry: Entry) -> AttemptDir:
        """Create an attempt at an entry's pretraining that has not started."""
        (job,) = stage_jobs([entry]).values()
        return make_attempt(self.runs, job.key, to_mapping(job.record()))

    def trained(self, entry: Entry, perplexity: float, host: str = HOST, cause: str = "", stop: int = 40) -> AttemptDir:
        """Create a training of `stop` updates that ends with `perplexity`; with a `cause`, one of 40 that failed."""
        events: list[Event] = [
            Started(stage="pretrain", key=entry.key, host=host, device="cpu", precision="fp32", code="c0de")
        ]
        for step in (1, *range(10, stop + 1, 10)):
            loss = perplexity / 10 + 4 / step
            layers = entry.cell.model.size.layers
            variance = [0.1 * (1 + layer) * perplexity for layer in range(layers + 1)]
            numbers = {"loss": loss, "mean_loss": loss, "lr": 1e-3, "grad_norm": 1.0, "tokens": step, "memory": 4e8}
            series = {"activation_variance": variance, "gate": [0.1] * layers}
            events += [Step(step, steps=max(40, stop), **numbers), Layers(step, series)]
        metrics = {} if cause else {"perplexity": perplexity, "loss": perplexity / 10}
        outcome = Outcome(outcome="failed" if cause else "done", step=stop, cause=cause, metrics=metrics)
        return attempt_at(self.runs, entry, [*events, outcome], log="printed by the job\n")

    def train_all(self) -> dict[str, AttemptDir]:
        """Create a training of every cell; their perplexities are 101, 102 and so on. Return name -> attempt."""
        return {entry.name: self.trained(entry, 101.0 + i) for i, entry in enumerate(self.cells())}

    def ended(self, name: str, outcome: str, perplexity: float | None = None, cause: str = "") -> AttemptDir:
        """Create an attempt at a cell that ended with this outcome."""
        known = {"perplexity": perplexity, "perplexity_reference": perplexity, "loss": 1.5}
        metrics = {} if perplexity is None else known
        return self.attempt(name, *TRAINED, ("outcome", end(outcome, cause=cause, metrics=metrics)), log=f"{outcome}\n")


def poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the jobs of this machine often, because fake jobs take no time."""
    monkeypatch.setattr(run, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(run, "_TICK_SECONDS", 0.05)


def fake_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the jobs of `gpas run` on this machine fakes."""
    defaults = LocalRun.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "command", FAKE_JOB)
    # They need no copy of the code, which takes half a second to make and to check.
    monkeypatch.setattr(run, "snapshot", lambda runs, project, uses: Snapshot("c0de", runs / ".code/c0de", {}))
    poll_often(monkeypatch)


@pytest.fixture(autouse=True)
def options() -> Iterator[None]:
    """Restore the global options after each test."""
    yield
    console.STATE.config = None
    console.STATE.as_json = False


@pytest.fixture
def face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Face:
    """Return a project without attempts, which is the current folder; its jobs are fakes."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    fake_jobs(monkeypatch)
    made = Face(tmp_path / "project")
    monkeypatch.chdir(made.folder)
    return made


def alive(attempt: AttemptDir) -> AbstractContextManager[None]:
    """Hold the lock of an attempt, as its process does."""
    return locked(alive_path(attempt))


def step(number: int, **more: Any) -> dict[str, Any]:
    """Return the fields of a step event."""
    usual = {"steps": 4, "loss": 5.0 - number / 4, "lr": 1e-3, "grad_norm": 0.5, "tokens_per_second": 1234.5}
    return {"step": number, **usual, **more}


def end(outcome: str, **more: Any) -> dict[str, Any]:
    """Return the fields of an outcome event."""
    return {"outcome": outcome, "step": 4, "cause": "", "metrics": {}, **more}


START = tables("trained.yaml")["start"]
TRAINED = tuple((kind, fields) for kind, fields in tables("trained.yaml")["events"])
