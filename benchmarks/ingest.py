"""Compare the speed of storing curves with that of MLflow's SQLite store: points per second, in turns.

    python3 -m venv /tmp/mlflow && /tmp/mlflow/bin/pip install mlflow-skinny sqlalchemy alembic pandas
    python benchmarks/ingest.py --mlflow /tmp/mlflow/bin/python --json

A run of `--steps` updates with METRICS at each is stored in a new SQLite database, in each round once in each of these
ways. Making the database is not counted.

    gpas       the job appends an event for each update to its journal, then `sync` reads the journal
    sync       of that, the second part: the journal is there
    log_batch  MLflow's `SqlAlchemyStore.log_batch`, with BATCH metrics a call, the most that it takes
    by step    the same with the metrics of one update a call, as a training would call it (`--single` updates)
    log_metric MLflow's `SqlAlchemyStore.log_metric`, for each metric of each update (`--single` updates)

`--events` stores journals of these lengths, each in a process of its own, and reports its time and peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpas_cli.events import Step
from gpas_cli.store import session
from gpas_cli.store.ingest import sync
from gpas_cli.store.journal import Journal, encode
from gpas_cli.store.records import AttemptRecord, Author
from gpas_cli.store.rundir import AttemptDir, create_attempt

METRICS = ("loss", "lr", "grad_norm", "tokens_per_second")
KEY = "0123456789abcdef"
OTHER = Path(__file__).with_name("ingest_mlflow.py")
PEAK = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
SYNC = f"""
import pathlib, sys
from gpas_cli.store import session
from gpas_cli.store.ingest import sync
sync(session.connect(sys.argv[1]), pathlib.Path(sys.argv[2]))
{PEAK}
"""


def attempt_in(runs: Path) -> AttemptDir:
    """Make the run directory of an attempt."""
    from gpas_cli.spec.run import Cadence, Resources

    asked = AttemptRecord(
        stage="pretrain", key=KEY, cell={}, grid="speed", name="pre", axes={}, resources=Resources(), cadence=Cadence(),
        executor="local", created=time.time(), submitter=Author("here-1", "here", 1), devices=(), cache="", root="",
        threads=1,
    )  # fmt: skip
    return create_attempt(runs, asked)


def values_of(step: int) -> dict[str, Any]:
    """Return the metrics of an update, as `ingest_mlflow.py` has them."""
    return {name: 1.0 / (step + place) for place, name in enumerate(METRICS, start=1)}


def ours(folder: Path, steps: int) -> dict[str, float]:
    """Return the points per second of storing a run with this program."""
    attempt = attempt_in(folder / "runs")
    engine = session.connect(f"sqlite:///{folder / 'gpas.db'}")
    began = time.perf_counter()
    journal = Journal(attempt.journal_path)
    for step in range(1, steps + 1):
        journal.append(Step(step=step, **values_of(step)))
    journal.close()
    written = time.perf_counter()
    assert sync(engine, folder / "runs").events == steps
    ended = time.perf_counter()
    with engine.connect() as connection:
        stored = connection.exec_driver_sql("SELECT count(*) FROM curve").scalar()
    assert stored == steps * len(METRICS)
    engine.dispose()
    return {"gpas": stored / (ended - began), "sync": stored / (ended - written)}


def theirs(python: Path, folder: Path, steps: int, single: int) -> dict[str, float]:
    """Return the points per second of storing the same with MLflow."""
    command: list[str | Path] = [python, OTHER, folder, str(steps), str(single), *METRICS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python} {OTHER.name}: {done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def long_journal(folder: Path, events: int) -> dict[str, float]:
    """Return what a `sync` of one journal of `events` events takes: seconds, MiB at most, events per second."""
    attempt = attempt_in(folder / "runs")
    with attempt.journal_path.open("wb") as file:
        for n in range(events):
            file.write(encode({"n": n, "t": 1.0, "kind": "step", "step": n + 1, "steps": events, **values_of(n)}))
    url = f"sqlite:///{folder / 'gpas.db'}"
    session.connect(url).dispose()
    began = time.perf_counter()
    peak = subprocess.check_output([sys.executable, "-c", SYNC, url, folder / "runs"], text=True)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "mebibytes": int(peak) / 1024, "events_per_second": events / seconds}


def compare(options: argparse.Namespace, place: Path) -> dict[str, list[float]]:
    """Return the points per second of each way, by round."""
    found: dict[str, list[float]] = {}
    for number in range(options.rounds):
        for name in ("ours", "theirs"):
            folder = place / f"{name}-{number}"
            folder.mkdir()
            mine = name == "ours"
            steps = options.steps
            made = ours(folder, steps) if mine else theirs(options.mlflow, folder, steps, options.single)
            for way, speed in made.items():
                found.setdefault(way, []).append(speed)
    return found


def summary(found: dict[str, list[float]]) -> dict[str, Any]:
    """Return the median speed of each way, and the ratios of ours to each of MLflow's."""
    speeds = {way: statistics.median(all_) for way, all_ in found.items()}
    others = [way for way in speeds if way not in ("gpas", "sync")]
    ratios = {f"{own} / {way}": speeds[own] / speeds[way] for own in ("gpas", "sync") for way in others}
    return {"points_per_second": speeds, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mlflow", type=Path, help="the Python of an environment with MLflow")
    parser.add_argument("--steps", type=int, default=20_000, help="updates of the run")
    parser.add_argument("--single", type=int, default=500, help="updates of the run that is stored call by call")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--events", type=int, nargs="*", default=[], help="lengths of journals to measure alone")
    parser.add_argument("--folder", type=Path, help="where the databases are made, such as /dev/shm")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result: dict[str, Any] = {"load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="gpas-ingest-", dir=options.folder) as place:
        if options.mlflow:
            result |= summary(compare(options, Path(place)))
        for events in options.events:
            folder = Path(place, f"long-{events}")
            folder.mkdir()
            result.setdefault("long", {})[events] = long_journal(folder, events)
    if options.json:
        print(json.dumps(result, indent=1))
        return
    for part in ("points_per_second", "ratios"):
        for way, value in result.get(part, {}).items():
            print(f"{way:24}{value:12,.0f}{'' if part == 'ratios' else ' points/s'}")
    for events, taken in result.get("long", {}).items():
        print(f"{events:>12,} events{taken['seconds']:8.1f} s{taken['mebibytes']:8.0f} MiB")


if __name__ == "__main__":
    main()
