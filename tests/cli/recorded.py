"""Projects with results that no training made: run directories and journals as a job writes them."""

import gc
import io
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from attempts import attempt_at

from gpas_cli.__main__ import main
from gpas_cli.cli import console, selection
from gpas_cli.events import Event, Layers, Outcome, Started, Step
from gpas_cli.grid import Entry
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load

REPOSITORY = Path(__file__).parents[2]
LAYERS = 3
HEAD = """\
version: 1
sizes:
  tiny: {hidden: 16, ffn: 24, heads: 2, layers: 3, vocab: 280}
grids:
"""
BASE = "{size: tiny, data: quickstart, optim: {lr: 1e-3, warmup: 1, steps: 40, batch: 2}}"


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment without its GPAS_ settings, for `python -m gpas_cli`, and `more`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GPAS_")}
    return {**clean, "PYTHONPATH": str(REPOSITORY), **more}


def run_main(words: Sequence[str]) -> int:
    """Run `gpas` with these words in this process, and return its exit code."""
    selection.experiments.cache_clear()
    console.STATE.config, console.STATE.as_json = None, False
    gc.freeze()  # a search through what the command did not make takes most of a second
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["gpas", *words])
        patch.setattr(gc, "freeze", lambda: None)  # with which `main` would spare what the command made
        with pytest.raises(SystemExit) as ended:
            main()
    code = ended.value.code
    del ended
    gc.collect()  # as when a process ends: connections to the database are closed
    return int(code or 0)


def gpas(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `gpas` in `folder`, in this process and with nothing of its GPAS_ settings."""
    out, err = io.StringIO(), io.StringIO()
    before = Path.cwd()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name in [name for name in os.environ if name.startswith("GPAS_")]:
            patch.delenv(name)
        for name, value in more.items():
            patch.setenv(name, value)
        os.chdir(folder)
        try:
            code = run_main(words)
        finally:
            os.chdir(before)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def finish(runs: Path, entry: Entry, perplexity: float, host: str = "host", cause: str = "", stop: int = 40) -> None:
    """Record a training of `entry` that ends with `perplexity`; with a `cause`, one that failed at update `stop`."""
    key = entry.cell.stages[0].key
    events: list[Event] = [
        Started(stage="pretrain", key=key, host=host, device="cpu", precision="fp32", code="c0de"),
    ]
    for step in (1, *range(10, stop + 1, 10)):
        loss = perplexity / 10 + 4 / step
        variance = [0.1 * (1 + layer) * perplexity for layer in range(LAYERS + 1)]
        events += [
            Step(step=step, loss=loss, lr=1e-3, grad_norm=1.0, steps=40, tokens=step, memory=4e8),
            Layers(step=step, values={"activation_variance": variance, "gate": [0.1] * LAYERS}),
        ]
    metrics = {} if cause else {"perplexity": perplexity, "loss": perplexity / 10}
    outcome = Outcome(outcome="failed" if cause else "done", step=stop, cause=cause, metrics=metrics)
    attempt_at(runs, entry, [*events, outcome])


def make_project(folder: Path, grids: str, head: str = HEAD) -> list[Entry]:
    """Write experiments.yaml with these grids, and return their cells."""
    (folder / "experiments.yaml").write_text(head + grids.replace("BASE", BASE))
    experiments = load(folder / "experiments.yaml")
    return expand(experiments, list(experiments.grids))
