"""A project with a scored grid and two scored networks from elsewhere, for the `gpas` command to read."""

from typing import Any

from attempts import attempt_at, external_attempt
from cases import file_text
from face import EXPERIMENTS, START, TRAINED, Face, end

from gpas_cli.events import Outcome, Score, Started, event_of

SCORED = file_text("experiments/scored.yaml")
WEIGHTS = "0123456789abcdef" * 4


def declare_scored(face: Face, section: str = "{tasks: [indent, bracket]}") -> None:
    """Declare the grid `scored` beside the others."""
    face.declare(EXPERIMENTS.replace("claims:\n", SCORED.replace("SECTION", section) + "claims:\n"))


def score(task: str, value: float, **more: Any) -> Score:
    """Return an event: the accuracy at a task of 1,200 questions."""
    usual = {"metric": "acc", "stderr": 0.0125, "examples": 1200, "shots": 0, "task_version": "1"}
    return Score(task=task, value=value, **{**usual, "harness": "gpas_cli 0.1.0", **more})  # type: ignore[arg-type]


def finish_cells(face: Face) -> None:
    """Train and score both cells of the grid."""
    declare_scored(face)
    trained = [event_of({"kind": kind, **fields}) for kind, fields in TRAINED]
    for place, entry in enumerate(face.entries("scored")):
        done = event_of({"kind": "outcome", **end("done", metrics={"perplexity": 4.5})})
        attempt_at(face.runs, entry, [*trained, done])
        values = {"indent": (40 + place) / 100, "bracket": (50 + place) / 100}
        metrics = {f"accuracy/{task}": 100 * value for task, value in values.items()}
        metrics["accuracy/average"] = sum(metrics.values()) / 2
        scores = [
            score(task, value + more, metric=metric)
            for task, value in reversed(values.items())
            for metric, more in (("acc_norm", 0.1), ("acc", 0.0))
        ]
        events = [event_of({"kind": "start", **START}), *scores, Outcome("done", 2, metrics=metrics)]
        attempt_at(face.runs, entry, events, place=1)


def finish_external(face: Face, name: str, key: str, *scores: Score, **settings: int) -> None:
    """Record the scoring of a network from elsewhere."""
    origin = {"source": f"/models/{name}", "revision": "", "weights": WEIGHTS, "files": "f00d", "architecture": "Llama"}
    section = {"tasks": [one.task for one in scores], "shots": 0, "limit": 0, "max_length": 1024, **settings}
    facts = {"name": name, "cell": {"external": origin, "downstream": section}}
    events = [Started("external", key, device="cpu", precision="fp32"), *scores, Outcome("done", len(scores))]
    external_attempt(face.runs, key, facts, events)
