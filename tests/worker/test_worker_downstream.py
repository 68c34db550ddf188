"""The stage downstream as a job runs it: nothing is scored twice, and an unavailable task is left for later."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attempts import write_events
from importance_ranks import cell_of
from stage_runs import events, new_attempt, run, scored, train, warnings

from gpas_cli.evaluate.tasks.local import import_task
from gpas_cli.events import Outcome, Phase, Score, Scoring
from gpas_cli.state import rerun
from gpas_cli.state.attempt import attempts_without_progress, conclude
from gpas_cli.store.rundir import AttemptDir

WORDS = "gate norm layer stream scale depth".split()


class Project:
    """A project with a trained cell and three local tasks."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.runs = folder / "runs"
        self.documents = {
            f"task{number}": [
                {"context": f"{WORDS[i % 6]} task{number}", "choices": WORDS[:3], "answer": i % 3} for i in range(12)
            ]
            for number in (1, 2, 3)
        }
        self.tasks = [self.task(name, documents) for name, documents in self.documents.items()]
        self.ask(self.tasks)
        train(folder, self.cell)

    def ask(self, tasks: list[str], max_length: int = 32) -> None:
        """Let the cell have these tasks."""
        self.cell = cell_of(norm="pre", importance=None, downstream={"tasks": tasks, "max_length": max_length})

    def task(self, name: str, documents: list[Any]) -> str:
        source = self.folder / f"{name}.json"
        source.write_text(json.dumps(documents))
        return import_task(source, name, self.folder).name

    def path(self, task: str) -> Path:
        return self.folder / "tasks" / f"{task}.jsonl"

    def attempt(self) -> AttemptDir:
        return new_attempt(self.folder, self.cell, "downstream")

    def go(self, attempt: AttemptDir, stop: Callable[[], str | None] = lambda: None) -> Outcome:
        return run(self.cell, attempt, stop)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def scored_itself(attempt: AttemptDir) -> set[str]:
    """Return the tasks that an attempt scored itself."""
    return {event.task for event in events(attempt, Scoring)}


def stop_at_task(attempt: AttemptDir, number: int) -> Callable[[], str | None]:
    """Return a stop that asks to leave as soon as task `number`, from 1, is being scored."""

    def stop() -> str | None:
        return "interrupted" if len(scored(attempt)) == number - 1 else None

    return stop


def test_every_task_is_scored_once_and_the_metrics_are_percentages(project: Project) -> None:
    attempt = project.attempt()
    outcome = project.go(attempt)
    assert (outcome.outcome, outcome.step) == ("done", 3)
    assert scored(attempt) == project.tasks
    found = {event.task: event for event in events(attempt, Score) if event.metric == "acc"}
    assert all(event.examples == 12 and event.stderr is not None for event in found.values())
    accuracies = [100 * float(found[task].value) for task in project.tasks]
    assert [outcome.metrics[f"accuracy/{task}"] for task in project.tasks] == pytest.approx(accuracies)
    assert outcome.metrics["accuracy/average"] == pytest.approx(sum(accuracies) / 3)
    places = [event.place for event in events(attempt, Scoring)]
    assert list(dict.fromkeys(places)) == [1, 2, 3]


def test_an_overlong_choice_costs_its_question_not_the_stage(project: Project) -> None:
    documents = project.documents["task1"]
    documents[3] |= {"choices": ["gate " * 100, "norm"], "answer": 1}
    long = project.task("task1", documents)
    tasks = [long, *project.tasks[1:]]
    project.ask(tasks)
    attempt = project.attempt()
    assert project.go(attempt).outcome == "done"
    assert scored(attempt) == tasks
    counts = {(e.task, e.metric): (e.value, e.examples) for e in events(attempt, Score)}
    assert counts[long, "skipped"] == (1, 11)
    assert not any(metric == "skipped" for task, metric in counts if task != long)
    (warning,) = warnings(attempt)
    assert warning == (
        "task1: 1 of 12 questions are not scored, because a choice is longer than max_length; "
        "more than 5%: not comparable with scores over all questions"
    )


def test_a_task_of_which_no_question_fits_ends_the_stage_as_done_without_a_score(project: Project) -> None:
    long = project.task("long", [{"context": "a", "choices": ["gate " * 100, "norm"], "answer": 1}] * 4)
    project.ask([long, *project.tasks[1:]])
    attempt = project.attempt()
    outcome = project.go(attempt)
    assert (outcome.outcome, outcome.step, outcome.cause) == ("done", 2, "")
    assert f"accuracy/{long}" not in outcome.metrics
    assert "accuracy/average" not in outcome.metrics
    counts = {(e.task, e.metric): (e.value, e.examples) for e in events(attempt, Score)}
    assert counts[long, "skipped"] == (4, 0)
    (warning,) = warnings(attempt)
    assert warning == (
        "long: 4 of 4 questions are not scored, because a choice is longer than max_length; it has no score"
    )


def test_a_later_attempt_continues_with_the_unfinished_task(project: Project) -> None:
    first, second = project.attempt(), project.attempt()
    assert project.go(first, stop_at_task(first, 2)).outcome == "interrupted"
    assert scored(first) == project.tasks[:1]
    done = project.go(second)
    assert scored(second) == project.tasks[1:]
    rerun.request(project.runs, project.cell.key)
    afresh = project.attempt()
    straight = project.go(afresh)
    assert scored(afresh) == project.tasks
    assert {**done.metrics, "seconds": 0} == {**straight.metrics, "seconds": 0}


def test_scores_of_another_grid_with_the_same_settings_are_taken_over(project: Project) -> None:
    project.ask(project.tasks[:2])
    first = project.attempt()
    project.go(first)
    project.ask(project.tasks, max_length=31)
    other = project.attempt()
    project.go(other)
    assert scored(other) == project.tasks
    assert scored_itself(other) == set(project.tasks)
    project.ask(project.tasks)
    second = project.attempt()
    outcome = project.go(second)
    assert scored(second) == project.tasks
    assert scored_itself(second) == {project.tasks[2]}
    taken = f"{', '.join(project.tasks[:2])} from stage {first.key}"
    assert [event.detail for event in events(second, Phase) if event.detail] == [taken]
    for task in project.tasks[:2]:
        assert [event for event in events(second, Score) if event.task == task] == [
            replace(event, taken_from=f"{first.key}/001") for event in events(first, Score) if event.task == task
        ]
    rerun.request(project.runs, project.cell.key)
    afresh = project.attempt()
    straight = project.go(afresh)
    assert scored_itself(afresh) == set(project.tasks)
    measured = [name for name in outcome.metrics if name not in ("seconds", "truncated")]
    assert [outcome.metrics[name] for name in measured] == [straight.metrics[name] for name in measured]


def test_a_score_that_is_taken_over_twice_keeps_the_attempt_that_measured_it(project: Project) -> None:
    attempts = []
    for number in (1, 2, 3):
        project.ask(project.tasks[:number])
        attempts.append(project.attempt())
        project.go(attempts[-1])
    found = {event.task: event.taken_from for event in events(attempts[2], Score)}
    assert found == {
        project.tasks[0]: f"{attempts[0].key}/001",
        project.tasks[1]: f"{attempts[1].key}/001",
        project.tasks[2]: None,
    }


def test_scores_of_a_stage_with_a_damaged_request_are_measured_instead(project: Project) -> None:
    project.ask(project.tasks[:1])
    first = project.attempt()
    project.go(first)
    (first.path.parent / rerun.FILE).write_text("{")
    project.ask(project.tasks)
    second = project.attempt()
    assert project.go(second).outcome == "done"
    assert scored_itself(second) == set(project.tasks)
    (warning,) = warnings(second)
    assert first.key in warning


def test_a_requeued_job_continues_in_its_own_directory(project: Project) -> None:
    attempt = project.attempt()
    project.go(attempt, stop_at_task(attempt, 3))
    assert project.go(attempt).outcome == "done"
    assert scored(attempt) == project.tasks


def test_a_task_without_data_leaves_the_stage_interrupted_and_the_next_attempt_scores_only_it(
    project: Project,
) -> None:
    absent = project.tasks[1]
    content = project.path(absent).read_bytes()
    project.path(absent).unlink()
    first = project.attempt()
    outcome = project.go(first)
    assert (outcome.outcome, outcome.step) == ("interrupted", 2)
    assert f"1 of 3 tasks not scored ({absent})" in outcome.cause
    assert "gpas data import-task FILE --task task2" in outcome.cause
    assert f"accuracy/{project.tasks[0]}" in outcome.metrics
    assert "accuracy/average" not in outcome.metrics
    assert any(absent in message for message in warnings(first))
    assert conclude(first).state == "interrupted"
    project.path(absent).write_bytes(content)
    second = project.attempt()
    assert project.go(second).outcome == "done"
    assert scored(second) == [absent]


def test_scores_are_progress(project: Project) -> None:
    for _ in range(2):
        attempt = project.attempt()
        project.go(attempt, stop_at_task(attempt, 1))
    assert attempts_without_progress(project.runs, project.cell.key) == 2
    third = project.attempt()
    project.go(third, stop_at_task(third, 2))
    assert attempts_without_progress(project.runs, project.cell.key) == 0


def test_scores_of_another_checkpoint_do_not_count(project: Project) -> None:
    earlier = project.attempt()
    write_events(earlier, [Score(project.tasks[0], "acc", 1.0, 12, checkpoint="another"), Outcome("interrupted")])
    attempt = project.attempt()
    project.go(attempt)
    assert scored(attempt) == project.tasks


def test_the_progress_is_the_task_and_the_fraction_of_all_tasks(project: Project) -> None:
    attempt = project.attempt()
    write_events(attempt, [Scoring("piqa", 2, 4, 50, 100)])
    seen = conclude(attempt)
    assert seen.progress is not None
    assert seen.progress.counted == "piqa (2 of 4) 50 %"
    assert seen.fraction == pytest.approx(0.375)
