"""The chain of a cell's stages on a real controller: dependent arrays, a warning in each stage, a failure, a cancel."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from cluster import Cluster
from slurm_toy import SlurmToy, gated, pending, wait

from gpas_cli.state.observe import observe

STAGES = ("pretrain", "finetune", "downstream", "importance")
CHILDREN = ("downstream", "importance")  # of finetune; they do not wait for each other
TIMES = {"pretrain": "10:00", "finetune": "8:00", "downstream": "7:00", "importance": "6:00"}
# The event that shows that some of a stage's work is done, and that some is left.
WORKING = {"pretrain": "step", "finetune": "step", "downstream": "score", "importance": "removal"}
QUESTIONS = 4000
FORWARDED = 1 << signal.SIGTERM - 1 | 1 << signal.SIGUSR2 - 1  # in the mask of pending signals


def chain(cluster: Cluster, folder: Path) -> SlurmToy:
    """Return a project of one cell with every stage, each of which takes some seconds."""
    times = ", ".join(f"{kind}: {{time: '0:0{TIMES[kind]}'}}" for kind in STAGES[1:])
    toy = SlurmToy(folder, cluster, resources=times, steps=600, checkpoint_every=10**6)
    gated(toy)
    tasks = ", ".join(imported_task(toy, name) for name in ("first", "second"))
    records = [{"instruction": f"gate {i}", "input": "", "output": "norm layer"} for i in range(400)]
    (toy.folder / "records.json").write_text(json.dumps(records))
    finetune = "data: records.json, template: plain, layout: pad, length: 16, batch: 4, epochs: 4, lisa_layers: 2"
    importance = f"eval_tokens: 400, tasks: [{tasks}], limit: 800"
    stages = f"finetune: {{{finetune}}}, downstream: {{tasks: [{tasks}]}}, importance: {{{importance}}}"
    toy.edit("data: notes}", f"data: notes, {stages}}}")
    return toy


def imported_task(toy: SlurmToy, name: str) -> str:
    """Import a task with many questions into the project, and return its name with the digest."""
    choices = ["gate norm", "layer stream", "scale depth", "loss token"]
    documents = [{"context": f"{name} {i}", "choices": choices, "answer": i % 4} for i in range(QUESTIONS)]
    (toy.folder / f"{name}.json").write_text(json.dumps(documents))
    made = toy("data", "import-task", f"{name}.json", "--task", name, "--json").out
    return str(json.loads(made)["task"])


def attempts(toy: SlurmToy, kind: str) -> list[Path]:
    """Return the attempts at a stage, oldest first."""
    return [path for path in toy.attempts() if json.loads((path / "attempt.json").read_text())["stage"] == kind]


def outcomes(toy: SlurmToy, kind: str) -> list[str]:
    """Return the outcome of each attempt at a stage, "" for one that has none."""
    found = [
        [event["outcome"] for event in toy.events(path) if event["kind"] == "outcome"] for path in attempts(toy, kind)
    ]
    return [each[-1] if each else "" for each in found]


def working(toy: SlurmToy, kind: str) -> bool:
    """Return whether the only attempt at a stage has done some of its work and has not ended."""
    found = attempts(toy, kind)
    kinds = [event["kind"] for event in toy.events(found[0])] if len(found) == 1 else []
    return WORKING[kind] in kinds and "outcome" not in kinds


@contextmanager
def halted(toy: SlurmToy, kind: str) -> Iterator[Path]:
    """Halt the job of the newest attempt at a stage during the block, until a signal has reached it."""
    attempt = attempts(toy, kind)[-1]
    pid = next(int(event["pid"]) for event in toy.events(attempt) if event["kind"] == "start")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield attempt
        wait(lambda: pending(pid) & FORWARDED, 60)
    finally:
        os.kill(pid, signal.SIGCONT)


def warn(toy: SlurmToy, kind: str) -> None:
    """Send a stage's job the signal that SLURM sends before its time limit."""
    with halted(toy, kind) as attempt:
        job = json.loads((attempt / "attempt.json").read_text())["slurm"]["job"]
        toy.cluster.run("scancel", "--signal=USR2", job)


def submitted(toy: SlurmToy) -> dict[str, str]:
    """Return the id of the job array of each kind of stage."""
    found = {}
    for path in toy.runs.glob(".slurm/gpas-*/elements.jsonl"):
        kind = json.loads(path.read_text().splitlines()[0])[0]["stage"]
        found[kind] = json.loads(path.with_name("job.json").read_text())["job"]
    return found


def cancelled(toy: SlurmToy, key: str) -> bool:
    return observe(toy.runs, key).state == "cancelled"


def keys(toy: SlurmToy) -> dict[str, str]:
    return {fact["stage"]: fact["key"] for fact in toy.recorded()}


@pytest.mark.long
def test_every_stage_is_requeued_at_its_time_limit_and_resumes(cluster: Cluster, tmp_path: Path) -> None:
    toy = chain(cluster, tmp_path / "toy")
    assert f"{len(STAGES)} jobs submitted" in toy.submit()
    jobs = submitted(toy)
    limits = {kind: cluster.run("squeue", "-h", "-j", jobs[kind], "-o", "%l").strip() for kind in STAGES}
    assert limits == TIMES
    left = list(STAGES)
    while left:  # the last stages run at the same time
        wait(lambda: any(working(toy, kind) for kind in left))
        for kind in [kind for kind in left if working(toy, kind)]:
            warn(toy, kind)
            left.remove(kind)
        assert all(len(attempts(toy, kind)) <= 2 for kind in STAGES), toy.said()
    toy.finish()
    assert {kind: outcomes(toy, kind) for kind in STAGES} == {kind: ["interrupted", "done"] for kind in STAGES}
    for kind in ("pretrain", "finetune"):
        first, second = (toy.events(path) for path in attempts(toy, kind))
        (resumed,) = (event["resumed_from"] for event in second if "resumed_from" in event)
        assert 0 < resumed == first[-1]["step"], kind
    for kind, name, part in (("downstream", "score", "task"), ("importance", "removal", "layer")):
        measured = [
            {event[part] for event in toy.events(path) if event["kind"] == name} for path in attempts(toy, kind)
        ]
        assert measured[0], kind
        assert measured[0].isdisjoint(measured[1]), f"{kind} did something again"
    assert "no job to start" in toy.submit()
    assert len(toy.attempts()) == 2 * len(STAGES)


@pytest.mark.release
def test_no_child_of_an_ended_stage_runs(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    toy = chain(cluster, tmp_path / "toy")
    toy.submit()
    wait(lambda: working(toy, "finetune"))
    with halted(toy, "finetune"):
        assert "save and exit" in toy("cancel", "pre-gpas-s1", "--yes").out
    children_end(toy, "its finetuning small/pre-gpas-s1 was cancelled")
    assert toy.states() == {"pre-gpas-s1": "cancelled"}
    assert "no job to start" in toy.submit()

    (toy.folder / "records.json").rename(tmp_path / "records.json")
    assert "3 jobs submitted" in toy("retry", "--executor", "slurm", "--yes").out
    children_end(toy, "its finetuning small/pre-gpas-s1 failed (")
    assert toy.states() == {"pre-gpas-s1": "failed"}

    (tmp_path / "records.json").rename(toy.folder / "records.json")
    assert "3 jobs submitted" in toy("retry", "--executor", "slurm", "--yes").out
    toy.finish()
    assert {kind: outcomes(toy, kind) for kind in STAGES} == {
        "pretrain": ["done"], "finetune": ["cancelled", "failed", "done"],
        "downstream": ["done"], "importance": ["done"],
    }  # fmt: skip
    assert "no job to start" in toy.submit()


def children_end(toy: SlurmToy, cause: str) -> None:
    """Wait until the children of finetune are cancelled for that cause and have left the queue."""
    for kind, key in keys(toy).items():
        if kind in CHILDREN:
            wait(partial(cancelled, toy, key), 60)  # SLURM's answer is cached for some seconds
            assert observe(toy.runs, key).cause.startswith(cause)
            assert attempts(toy, kind) == []
    wait(lambda: toy.queue() == {}, 60)
