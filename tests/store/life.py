"""A run directory with a life in it, made in one call."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attempts import make_attempt, write_events
from sqlalchemy import Engine

from gpas_cli.events import event_of
from gpas_cli.store.rundir import AttemptDir

Connect = Callable[..., Engine]  # the fixture `connect`
KEY = "0123456789abcdef"
OTHER = "fedcba9876543210"
CELL = {"size": "60m", "norm": {"scheme": "pre"}, "seed": 1}

START = {
    "stage": "pretrain", "host": "node7", "device": "cuda", "threads": 4, "precision": "bf16", "parameters": 58_074_112,
    "environment": {"python": "3.11.7", "torch": "2.8.0", "gpu": "H100"}, "git": {"commit": "abc123", "dirty": True},
    "code": "5e6f", "resumed_from": 0,
}  # fmt: skip


@dataclasses.dataclass
class Life:
    """Makes attempts under `runs` and journals them."""

    runs: Path

    def attempt(self, key: str = KEY, **asked: Any) -> AttemptDir:
        asked = {"schema": 1, "stage": "pretrain", "parents": [], "cell": CELL, "grid": "quickstart"} | asked
        axes = {"norm": "pre", "seed": 1}
        return make_attempt(
            self.runs, key, {"name": "pre-s1", "axes": axes, "executor": "local", "created": 1760000000.5} | asked
        )

    def start(self, attempt: AttemptDir, **changed: Any) -> None:
        with_journal(
            attempt, [("start", START | changed), ("data", {"fingerprint": "f1", "validation_fingerprint": "f2"})]
        )

    def steps(self, attempt: AttemptDir, steps: range, evaluate: bool = True) -> None:
        events: list[tuple[str, dict[str, Any]]] = []
        for step in steps:
            numbers = {"loss": 10 / step, "lr": 1e-3, "grad_norm": 0.5, "tokens_per_second": 1e5, "tokens": step * 64}
            events.append(("step", {"step": step, "steps": 1000} | numbers))
        if evaluate:
            events.append(("layers", {"step": step, "values": {"gate": [0.1, 0.2], "grad_norm": [1.0, None]}}))
            events.append(("evaluation", {"step": step, "loss": 3.5, "perplexity": 33.1, "bits_per_byte": 1.1}))
            events.append(("checkpoint", {"step": step, "path": "checkpoints/1", "seconds": 0.1}))
        with_journal(attempt, events)

    def end(self, attempt: AttemptDir, outcome: str = "done", **metrics: float) -> None:
        with_journal(attempt, [("outcome", {"outcome": outcome, "step": 20, "cause": "", "metrics": metrics})])

    def whole(self, key: str = KEY, **asked: Any) -> AttemptDir:
        attempt = self.attempt(key, **asked)
        self.start(attempt)
        self.steps(attempt, range(1, 21))
        self.end(attempt, loss=3.25, perplexity=25.8)
        return attempt


def with_journal(attempt: AttemptDir, events: list[tuple[str, dict[str, Any]]]) -> None:
    write_events(attempt, [event_of({"kind": kind, **fields}) for kind, fields in events])
