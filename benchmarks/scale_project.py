"""Make a project of many cells with run directories as jobs write them, without training anything.

    python benchmarks/scale_project.py /tmp/scale --cells 10000
    python benchmarks/scale_project.py /tmp/scale --new 1000

Each cell has three attempts: two that were interrupted and one that is done. One cell in fifty has failed in its last
attempt, another one is missing with the claim of a `gpas run` that was killed.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.plan.stage_jobs import StageJob, stage_jobs
from gpas_cli.state.attempt import JobExit
from gpas_cli.state.claims import Claim, claim_path
from gpas_cli.store.journal import encode
from gpas_cli.store.records import AttemptRecord, Author, ExitRecord, ProcessRecord
from gpas_cli.store.rundir import AttemptDir, stage_dir
from gpas_cli.structure import Record, to_mapping

SCHEMES = ("pre", "post", "sandwich", "deepnorm", "lns")
CELLS_EACH = 2 * len(SCHEMES)  # for each learning rate and seed
ATTEMPTS = 3
STEPS = 40  # log lines of a whole training
LAYERS = 12
HOST = "elsewhere"
GRID = """\
version: 1
sizes: {{toy: {{hidden: 32, ffn: 88, heads: 2, layers: 12, vocab: 512}}}}
recipes: {{toy: {{lr: 0.01, warmup: 10, steps: {steps}, batch: 16}}}}
grids:
  {name}:
    base: {{size: toy, data: {{source: stdlib, tokenizer: bpe, length: 64, eval_tokens: 500}}}}
    axes:
      norm: [{schemes}]
      gate: [none, gpas]
      optim.lr: [{rates}]
      seed: [{seeds}]
    table: {{title: Scale, rows: [norm, optim.lr, gate], columns: size, over: seed, against: {{gate: none}}}}
claims:
  lower:
    statement: GPAS lowers the perplexity of every scheme at every learning rate.
    grids: [{name}]
    subject: {{gate: gpas}}
    against: {{gate: none}}
    by: [norm, optim.lr]
    expect: lower
"""


def write_grid(folder: Path, cells: int, name: str = "many") -> None:
    """Write an experiments.yaml with about `cells` cells to `folder`."""
    rates = max(1, round(math.sqrt(cells / CELLS_EACH / 2.5)))
    seeds = max(1, cells // CELLS_EACH // rates)  # never more cells: a grid has at most 100,000
    (folder / "experiments.yaml").write_text(
        GRID.format(
            name=name,
            steps=10 * STEPS,
            schemes=", ".join(SCHEMES),
            rates=", ".join(f"{(i + 1) / 10000:g}" for i in range(rates)),
            seeds=", ".join(str(i + 1) for i in range(seeds)),
        )
    )


def write_project(folder: Path, cells: int) -> None:
    """Write a project of about `cells` cells and their attempts."""
    folder.mkdir(parents=True, exist_ok=True)
    write_grid(folder, cells)
    jobs = _jobs(folder)
    runs = folder / "runs"
    for place, job in enumerate(jobs):
        if place % 50 == 49:
            _write_claim(runs, job.key)
            continue
        for number in range(1, ATTEMPTS + 1):
            write_attempt(runs, job, number, failed=place % 50 == 48 and number == ATTEMPTS)


def write_attempt(
    runs: Path, job: StageJob, number: int, *, ended: bool | None = None, failed: bool = False
) -> AttemptDir:
    """Write attempt `number` at the stage of a job: the last is done or has failed, earlier ones were interrupted."""
    ended = number == ATTEMPTS if ended is None else ended
    attempt = AttemptDir(stage_dir(runs, job.key) / f"{number:03d}")
    attempt.path.mkdir(parents=True)
    began = time.time() - 86400 * (ATTEMPTS + 1 - number)
    asked = AttemptRecord.of(
        job.record(), executor="local", created=began, code="5e6f5e6f5e6f5e6f",
        git={"commit": "abc123", "dirty": False}, submitter=Author("elsewhere-1-00000000", HOST, 1), devices=("cpu-0",),
        cache="/nowhere", root="/nowhere", threads=1, number=number,
    )  # fmt: skip
    _write(attempt.attempt_path, asked)
    events = _events(job, began, STEPS if ended else STEPS * number // ATTEMPTS, number, ended, failed)
    attempt.journal_path.write_bytes(b"".join(map(encode, events)))
    code = JobExit.INTERRUPTED if not ended else 1 if failed else 0
    _write(attempt.exit_path, ExitRecord(code=int(code), t=began + 3600))
    _write(attempt.path / "process.json", ProcessRecord(host=HOST, pid=1, token="boot/1"))
    (attempt.path / "alive.lock").touch()
    attempt.log_path.write_text("done\n")
    return attempt


def add_attempts(folder: Path, count: int) -> None:
    """Add an attempt that is done to each of the first `count` stages that have attempts."""
    tried = [job for job in _jobs(folder) if AttemptDir(stage_dir(folder / "runs", job.key) / "001").path.is_dir()]
    for job in tried[:count]:
        write_attempt(folder / "runs", job, ATTEMPTS + 1, ended=True)


def lengthen_journal(folder: Path, events: int) -> None:
    """Replace the journal of an attempt at the last stage by one of about `events` events."""
    job = _jobs(folder)[-2]
    attempt = AttemptDir(stage_dir(folder / "runs", job.key) / f"{ATTEMPTS:03d}")
    with attempt.journal_path.open("wb") as file:
        for values in _events(job, time.time() - 2 * events, events, 1, ended=True, failed=False):
            file.write(encode(values))


def _jobs(folder: Path) -> list[StageJob]:
    return list(stage_jobs(expand(load(folder / "experiments.yaml"), [])).values())


def _events(
    job: StageJob, began: float, steps: int, number: int, ended: bool, failed: bool
) -> Iterator[dict[str, Any]]:
    made = [
        _start(job),
        {"kind": "data", "fingerprint": "1bb1f8581b4e658e", "validation_fingerprint": "132b308be3bad229"},
        {"kind": "phase", "name": "training", "resumed_from": 0, "processes": 1, "strategy": "none", "micro_batch": 16},
    ]
    n = 0
    for values in made:
        yield {"n": n, "t": began + n, **values}
        n += 1
    for step in range(1, steps + 1):
        yield {"n": n, "t": began + n, "kind": "step", "step": 10 * step, **_step(step, steps)}
        n += 1
        if step % 20 == 0:
            layers = [0.1234567 + step / 1e3 + layer / 100 for layer in range(LAYERS)]
            names = ("gate", "activation_variance", "grad_norm", "weight_norm")
            yield {"n": n, "t": began + n, "kind": "layers", "step": 10 * step, "values": dict.fromkeys(names, layers)}
            n += 1
    yield {"n": n, "t": began + n, "kind": "checkpoint", "step": 10 * steps, "path": "step-00000000", "seconds": 0.1}
    if ended:
        loss = 3.5 + int(job.key[:4], 16) / 1e6
        metrics = {"loss": loss, "perplexity": math.exp(loss), "perplexity_reference": math.exp(loss), "tokens": 80000}
        yield {"n": n + 1, "t": began + n, "kind": "evaluation", "step": 10 * steps, **metrics}
        outcome = {"outcome": "failed", "cause": "out of memory"} if failed else {"outcome": "done", "metrics": metrics}
        yield {"n": n + 2, "t": began + n, "kind": "outcome", "step": 10 * steps, "cause": "", **outcome}
    elif number == 1:
        yield {"n": n + 1, "t": began + n, "kind": "outcome", "step": 10 * steps, "outcome": "interrupted"}


def _start(job: StageJob) -> dict[str, Any]:
    environment = {
        "python": "3.11.7", "platform": "Linux-6.18-x86_64-with-glibc2.36", "machine": "x86_64", "hostname": HOST,
        "cpu": "AMD EPYC", "cores": "2", "gpas": "0.1.0", "torch": "2.13.0+cpu", "numpy": "2.4.6",
        "tokenizers": "0.23.3", "datasets": "5.2.0", "safetensors": "0.8.0", "omp_num_threads": "1", "gpu": "",
    }  # fmt: skip
    return {
        "kind": "start", "stage": job.kind, "key": job.key, "host": HOST, "pid": 1, "device": "cpu", "threads": 1,
        "precision": "fp32", "processes": 1, "parameters": 184108, "code": "5e6f5e6f5e6f5e6f",
        "git": {"commit": "e4caa96a0bffd720f5d02edd8247d2d0559cd22a", "dirty": False}, "environment": environment,
    }  # fmt: skip


def _step(step: int, steps: int) -> dict[str, float]:
    return {
        "loss": 6.0 - math.log(step), "lr": 1e-3 / step, "grad_norm": 0.3457421064376831, "steps": 10 * steps,
        "tokens": 10240 * step, "tokens_per_second": 17425.28305795675, "seconds_per_step": 0.05876518599980045,
        "flops_per_second": 20020395613.21213, "memory": 398880768,
    }  # fmt: skip


def _write_claim(runs: Path, key: str) -> None:
    path = claim_path(runs, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, Claim(submitter="elsewhere-1-00000000", host=HOST, pid=1, time=time.time()))


def _write(path: Path, record: Record) -> None:
    path.write_text(json.dumps(to_mapping(record), indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cells", type=int, default=0, help="make a project of so many cells")
    parser.add_argument("--grid", type=int, default=0, help="make a project of so many cells without run directories")
    parser.add_argument("--new", type=int, default=0, help="add so many attempts to an existing project")
    parser.add_argument("--events", type=int, default=0, help="give one attempt of an existing project a long journal")
    options = parser.parse_args()
    if options.grid:
        options.folder.mkdir(parents=True)
        write_grid(options.folder, options.grid)
    if options.cells:
        write_project(options.folder, options.cells)
    if options.new:
        add_attempts(options.folder, options.new)
    if options.events:
        lengthen_journal(options.folder, options.events)


if __name__ == "__main__":
    main()
