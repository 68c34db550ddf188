"""The part of `ingest.py` that MLflow does, in an environment with MLflow and without this program.

/tmp/mlflow/bin/python benchmarks/ingest_mlflow.py FOLDER STEPS SINGLE METRIC...
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

from mlflow.entities import Metric
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

BATCH = 1000  # metrics in a call of log_batch: more are refused


def metrics_of(step: int, names: Sequence[str]) -> list[Metric]:
    return [Metric(name, 1.0 / (step + place), 1_000 * step, step) for place, name in enumerate(names, start=1)]


def main() -> None:
    folder, steps, single, names = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    store = SqlAlchemyStore(f"sqlite:///{folder}/mlflow.db", f"{folder}/artifacts")

    def new_run() -> str:
        return str(store.create_run("0", "someone", 0, [], "speed").info.run_id)

    speeds = {}
    run = new_run()
    began = time.perf_counter()
    pending: list[Metric] = []
    for step in range(1, steps + 1):
        pending += metrics_of(step, names)
        if len(pending) + len(names) > BATCH or step == steps:
            store.log_batch(run, pending, [], [])
            pending = []
    speeds["log_batch"] = steps * len(names) / (time.perf_counter() - began)

    run = new_run()
    began = time.perf_counter()
    for step in range(1, single + 1):
        store.log_batch(run, metrics_of(step, names), [], [])
    speeds["by step"] = single * len(names) / (time.perf_counter() - began)

    run = new_run()
    began = time.perf_counter()
    for step in range(1, single + 1):
        for metric in metrics_of(step, names):
            store.log_metric(run, metric)
    speeds["log_metric"] = single * len(names) / (time.perf_counter() - began)
    print(json.dumps(speeds))


if __name__ == "__main__":
    main()
