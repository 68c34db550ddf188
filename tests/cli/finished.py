"""A project with made-up results: its journals are written here, without any job, for the `gpas` command to read."""

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

from attempts import attempt_at, make_attempt
from recorded import gpas

from gpas_cli.events import Outcome, Started, Step
from gpas_cli.grid.entry import Entry
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.plan.stage_jobs import stage_jobs
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.structure import to_mapping

REPOSITORY = Path(__file__).parents[2]
GRID = """\
version: 1
default: tiny
sizes:
  small: {{hidden: 16, ffn: 24, heads: 2, layers: 2, vocab: 280}}
grids:
  tiny:
    base:
      size: small
      data: {{source: files, path: "*.txt", tokenizer: bpe, layout: pad, length: 64}}
      optim: {{lr: 1e-3, warmup: 1, steps: {steps}, batch: 8}}
    axes: {{gate: [{gates}], seed: [1, 2]}}
    table: {{title: Tiny, rows: [gate], columns: size, against: {{gate: none}}}}
"""


class Finished:
    """A project of four cells in `folder`."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.declare()

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def declare(self, steps: int = 30, gates: str = "none, gpas") -> None:
        """Write the experiments file."""
        (self.folder / "experiments.yaml").write_text(GRID.format(steps=steps, gates=gates))

    def cells(self) -> list[Entry]:
        """Return the cells that are declared now."""
        return expand(load(self.folder / "experiments.yaml"), ["tiny"])

    def attempt(self, cell: Entry) -> AttemptDir:
        """Create an attempt at the cell that has not started."""
        (job,) = stage_jobs([cell]).values()
        return make_attempt(self.runs, job.key, {**to_mapping(job.record()), "created": 1.7e9})

    def finish(self, cell: Entry, perplexity: float) -> AttemptDir:
        """Create a finished attempt at the cell, with this perplexity."""
        events = [
            Started(
                stage="pretrain", host=socket.gethostname(), device="cpu", threads=2, precision="fp32", code="c0de"
            ),
            *(Step(step=step, steps=30, loss=5 - step / 30, lr=1e-3) for step in range(1, 31)),
            Outcome(
                outcome="done",
                step=30,
                metrics={"perplexity": perplexity, "perplexity_reference": perplexity, "loss": 4.0},
            ),
        ]
        return attempt_at(self.runs, cell, events, log="printed by the job\n", created=1.7e9)

    def finish_all(self) -> dict[str, AttemptDir]:
        """Name -> attempt of every cell; perplexities are 101, 102 and so on, in the order declared."""
        return {cell.name: self.finish(cell, 101.0 + i) for i, cell in enumerate(self.cells())}

    def gpas(self, *words: str, expect: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        done = gpas(self.folder, *words, **environment)
        assert done.returncode == expect, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    def json(self, *words: str) -> dict[str, Any]:
        return dict(json.loads(self.gpas(*words, "--json").stdout))

    def shown(self) -> str:
        """Return the table as text."""
        return self.gpas("table", "--format", "markdown").stdout
