"""The `gpas` command in this process, in a project whose cells have made-up attempts, so that nothing is trained."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from attempts import attempt_at
from recorded import run_main

from gpas_cli.events import event_of
from gpas_cli.grid.entry import Entry
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.schedule.local.run import LocalRun
from gpas_cli.store.rundir import AttemptDir

FAKE_JOB = (sys.executable, "-S", "-P", str(Path(__file__).parents[1] / "fake_job.py"))
EXPERIMENTS = """\
version: 1
default: small
sizes:
  toy: {hidden: 16, ffn: 24, heads: 2, layers: 2, vocab: 280}
corpora:
  notes: {source: files, path: "text/*.txt", tokenizer: bpe, layout: pack, length: 12, eval_tokens: 20}
grids:
  small:
    title: Small
    base: {size: toy, data: notes, optim: {lr: 1e-3, warmup: 1, steps: 4, batch: 2}}
    axes:
      norm: [pre, post]
      gate: [none, gpas]
      seed: [1, 2]
    table: {rows: [norm, gate], columns: size, against: {gate: none}}
  shares:
    title: Cells of small, and two of its own
    include: [{grid: small, where: {norm: pre}}]
    base: {size: toy, data: notes, optim: {lr: 1e-3, warmup: 1, steps: 4, batch: 2}}
    axes:
      norm: [lns]
      gate: [none]
      seed: [1, 2]
claims:
  gate-lowers:
    statement: The gate lowers the perplexity of every scheme.
    grids: [small]
    subject: {gate: gpas}
    against: {gate: "none"}
    by: [norm]
    expect: lower
"""


@dataclass(frozen=True)
class Said:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Face:
    """A project in `folder`; call it with the words of a command."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]):
        self.folder = folder
        self.runs = folder / "runs"
        self._patch, self._capture = monkeypatch, capture
        (folder / "text").mkdir(parents=True)
        for name in range(40):
            (folder / f"text/{name:02}.txt").write_text(f"gate norm depth scale loss {name} " * 40)
        self.declare(EXPERIMENTS)
        monkeypatch.chdir(folder)
        for name in [name for name in os.environ if name.startswith(("GPAS_", "SLURM_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(folder.parent / "config"))
        monkeypatch.setitem(LocalRun.__init__.__kwdefaults__, "command", FAKE_JOB)

    def declare(self, text: str) -> None:
        """Replace the experiments file."""
        (self.folder / "experiments.yaml").write_text(text)

    def edit(self, old: str, new: str, count: int = -1) -> None:
        """Replace a part of the experiments file."""
        text = (self.folder / "experiments.yaml").read_text()
        self.declare(text.replace(old, new, count))

    def __call__(self, *words: str, expect: int | None = 0) -> Said:
        """Run a command to its end; its exit code must be `expect`, None for any."""
        self._capture.readouterr()
        code = run_main(words)
        said = Said(code, *self._capture.readouterr())
        assert expect is None or said.code == expect, (words, said.out + said.err)
        return said

    def entries(self, grid: str = "small") -> list[Entry]:
        return expand(load(self.folder / "experiments.yaml"), [grid])

    def entry(self, name: str, grid: str = "small") -> Entry:
        return next(entry for entry in self.entries(grid) if entry.name == name)

    def attempt(self, name: str, *events: tuple[str, dict[str, Any]], log: str = "") -> AttemptDir:
        """Create the next attempt at a cell's pretraining, with these events in its journal."""
        return self.recorded(self.entry(name), *events, log=log)

    def recorded(self, entry: Entry, *events: tuple[str, dict[str, Any]], log: str = "") -> AttemptDir:
        """Create the next attempt at an entry's pretraining, with these events in its journal."""
        known = [event_of({"kind": kind, **fields}) for kind, fields in events]
        return attempt_at(self.runs, entry, known, log=log, code="c0de")

    def ended(self, name: str, outcome: str, perplexity: float | None = None, cause: str = "") -> AttemptDir:
        """Create an attempt at a cell that ended with this outcome."""
        metrics = (
            {} if perplexity is None else {"perplexity": perplexity, "perplexity_reference": perplexity, "loss": 1.5}
        )
        return self.attempt(name, *TRAINED, ("outcome", end(outcome, cause=cause, metrics=metrics)), log=f"{outcome}\n")


def step(number: int, **more: Any) -> dict[str, Any]:
    """Return the fields of a step event."""
    usual = {"steps": 4, "loss": 5.0 - number / 4, "lr": 1e-3, "grad_norm": 0.5, "tokens_per_second": 1234.5}
    return {"step": number, **usual, **more}


def end(outcome: str, **more: Any) -> dict[str, Any]:
    """Return the fields of an outcome event."""
    return {"outcome": outcome, "step": 4, "cause": "", "metrics": {}, **more}


START = {"host": "there", "device": "cpu", "threads": 2, "precision": "fp32", "parameters": 1000, "code": "c0de",
         "git": {"commit": "a" * 40, "dirty": False}, "environment": {"torch": "2.9", "gpu": ""}}  # fmt: skip
TRAINED = (
    ("start", START),
    ("phase", {"name": "training", "resumed_from": 0}),
    ("data", {"fingerprint": "f00d", "validation_fingerprint": "beef"}),
    ("step", step(2)),
    ("layers", {"step": 2, "values": {"gate": [0.1, 0.2], "activation_variance": [1.0, 2.0]}}),
    ("spike", {"step": 3, "of": "loss", "value": 9.0, "usual": 4.0}),
    ("step", step(4)),
    ("evaluation", {"step": 4, "loss": 1.5, "perplexity": 4.48, "bits_per_byte": 0.7}),
    ("checkpoint", {"step": 4, "path": "step-00000004"}),
)
