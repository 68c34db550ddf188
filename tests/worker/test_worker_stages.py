"""Later stages as a job runs them: nothing is measured twice, and what is not there is left for later."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from attempts import write_events
from cases import tables
from importance_ranks import cell_of, save_network
from recorder import stop_after
from stage_runs import events, new_attempt, run, scored, train, warnings

from gpas_cli.errors import GpasError
from gpas_cli.evaluate.tasks.local import import_task
from gpas_cli.events import Layers, Outcome, Phase, Removal, Score, Scoring, TextFacts, Verified
from gpas_cli.extensions.layers.stage import SUBLAYERS
from gpas_cli.model.llama import Llama
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.stage import BINS
from gpas_cli.state import rerun
from gpas_cli.state.attempt import attempts_without_progress, conclude
from gpas_cli.state.outputs import recorded_events
from gpas_cli.store.rundir import AttemptDir

IMPORTANCE = cell_of(norm="pre", gate="gpas")
LAYERS = cell_of(norm="lns", gate="gpas", importance=None, layers={"eval_tokens": 100})
QUANTISED = cell_of(norm="pre", gate="gpas", quantised={"bits": [8, 4, 2], "eval_tokens": 250})
TEXTS = cell_of(norm="pre", importance=None, texts={"texts": ["one=held-out/one.txt", "two=held-out/two.txt"]})
TRANSLATION: dict[str, Any] = tables("worker/cases.yaml")["translations_are_those_of_averaged_weights"]
TRANSLATED = cell_from(TRANSLATION)


@pytest.mark.parametrize(("cell", "kind"), [(IMPORTANCE, "importance"), (LAYERS, "layers")])
def test_another_tokenizer_than_that_of_the_training_is_refused(tmp_path: Path, cell: Cell, kind: str) -> None:
    train(tmp_path, cell, TextFacts(tokenizer="0" * 64))
    with pytest.raises(GpasError, match=r"has changed since .* was trained"):
        run(cell, new_attempt(tmp_path, cell, kind))


def test_importance_continues_where_the_last_attempt_or_requeue_stopped(tmp_path: Path) -> None:
    train(tmp_path, IMPORTANCE)
    first, second = (new_attempt(tmp_path, IMPORTANCE, "importance") for _ in range(2))
    assert run(IMPORTANCE, first, stop_after(2)).outcome == "interrupted"
    assert [event.layer for event in events(first, Removal)] == [0, 1]
    assert run(IMPORTANCE, second, stop_after(1)).outcome == "interrupted"
    assert [event.layer for event in events(second, Removal)] == [2]
    done = run(IMPORTANCE, second)  # requeued: the same directory
    assert [event.layer for event in events(second, Removal)] == [2, 3, 4]
    rerun.request(tmp_path / "runs", IMPORTANCE.key)
    afresh = new_attempt(tmp_path, IMPORTANCE, "importance")
    straight = run(IMPORTANCE, afresh)
    assert [event.layer for event in events(afresh, Removal)] == [0, 1, 2, 3, 4]
    assert {**done.metrics, "seconds": 0} == {**straight.metrics, "seconds": 0}
    assert [event.values for event in events(second, Layers)] == [event.values for event in events(afresh, Layers)]
    write_events(afresh, [replace(events(afresh, Removal)[0], loss=math.inf)])
    assert list(recorded_events(tmp_path / "runs", IMPORTANCE.key, Removal))[-1].loss == math.inf


def test_the_layers_of_the_trained_network_are_reported(tmp_path: Path) -> None:
    train(tmp_path, LAYERS)
    attempt = new_attempt(tmp_path, LAYERS, "layers")
    assert run(LAYERS, attempt).outcome == "done"
    begun, layers = events(attempt, Layers)
    outputs = {f"{part}_{what}": 4 for part in SUBLAYERS for what in ("ks", "excess_kurtosis")}
    outputs |= {f"{part}_output/{layer}": BINS + 2 for part in SUBLAYERS for layer in range(1, 5)}
    assert {name: len(values) for name, values in begun.values.items()} == outputs
    assert {name: len(values) for name, values in layers.values.items()} == {
        "activation_variance": 5, "kurtosis": 5, "max_to_rms": 5, "max_to_median": 5, "effective_rank": 5,
        "block_cosine": 4, "block_update": 4, "first_token_share": 4, **outputs,
    }  # fmt: skip
    assert [event.split for event in events(attempt, Verified)] == ["validation"]


def test_quantisation_continues_where_the_last_attempt_stopped(tmp_path: Path) -> None:
    train(tmp_path, QUANTISED)
    first, second = (new_attempt(tmp_path, QUANTISED, "quantised") for _ in range(2))
    stopped = run(QUANTISED, first, stop_after(2))
    assert (stopped.outcome, stopped.step) == ("interrupted", 2)
    assert scored(first) == ["unquantised", "int8"]
    done = run(QUANTISED, second)
    assert (done.outcome, scored(second)) == ("done", ["int4", "int2"])
    assert {name for name in done.metrics if "/" in name} == {
        *(f"quantised_perplexity/{name}" for name in ("unquantised", "int8", "int4", "int2")),
        *(f"quantised_rise/{name}" for name in ("int8", "int4", "int2")),
    }


def test_a_missing_text_is_scored_by_the_next_attempt_alone(tmp_path: Path) -> None:
    train(tmp_path, TEXTS)
    (tmp_path / "held-out").mkdir()
    (tmp_path / "held-out/one.txt").write_text("one gate opens\n")
    first, second = (new_attempt(tmp_path, TEXTS, "texts") for _ in range(2))
    outcome = run(TEXTS, first)
    assert (outcome.outcome, outcome.step, scored(first)) == ("interrupted", 1, ["one"])
    assert "1 of 2 texts not scored (two)" in outcome.cause
    assert any("two is not scored" in message for message in warnings(first))
    assert conclude(first).state == "interrupted"
    (tmp_path / "held-out/two.txt").write_text("two gate opens\n")
    outcome = run(TEXTS, second)
    assert (outcome.outcome, outcome.step, scored(second), warnings(second)) == ("done", 2, ["two"], [])
    for name in ("one", "two"):
        assert math.isfinite(outcome.metrics[f"text_perplexity/{name}"])
        assert 0 < outcome.metrics[f"text_loss/{name}"] < 20
        assert outcome.metrics[f"text_bits_per_byte/{name}"] > 0


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    for name in ("t", "v", "w", "x"):
        for language in ("en", "de"):
            (tmp_path / f"{name}.{language}").write_text("some words\nand more of them here\n")
    train(tmp_path, TRANSLATED)
    return tmp_path


def translate(project: Path, most: int = 10**6, cell: Cell = TRANSLATED) -> tuple[Outcome, list[str], list[str]]:
    """Run the stage, asking it to stop after `most` batches; return its outcome, what it scored, and its warnings."""
    own = new_attempt(project, cell, "translation")
    outcome = run(cell, own, stop_after(most))
    for score in events(own, Score):
        assert score.harness.startswith("sacrebleu nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
        assert len((own.path / "translations" / f"{score.task}.txt").read_text().splitlines()) == score.examples == 2
    return outcome, scored(own), warnings(own)


def test_a_missing_test_set_is_translated_by_the_next_attempt_alone(pairs: Path) -> None:
    references = (pairs / "x.de").read_text()
    (pairs / "x.de").unlink()
    outcome, done, said = translate(pairs)
    assert (outcome.outcome, done) == ("interrupted", ["two"])
    assert "there is no file" in outcome.cause
    assert said[0].startswith("one is not scored: translation.tests: one=x.{en,de}: there is no file")
    (pairs / "x.de").write_text(references)
    outcome, done, said = translate(pairs)
    assert (outcome.outcome, done, said) == ("done", ["one"], [])
    metrics = outcome.metrics
    assert metrics["bleu/average"] == pytest.approx((metrics["bleu/one"] + metrics["bleu/two"]) / 2)
    assert metrics["truncated"] == 0


def test_translations_are_those_of_averaged_weights(pairs: Path) -> None:
    """W + D and W - D translate as W does alone, which the other attempts of this file have."""
    translate(pairs)
    (alone,) = (pairs / "runs").rglob("translations/one.txt")
    expected = alone.read_text()
    averaging = cell_from(
        {**TRANSLATION, "translation": {**TRANSLATION["translation"], "average": 2, "average_every": 3}}
    )
    trained = next((pairs / "runs").rglob("step-00000007")).parent
    shutil.rmtree(trained / "step-00000007")
    for update, sign in ((4, 1), (7, -1)):
        save_network(TRANSLATED, trained, lambda network, sign=sign: moved(network, sign), step=update)  # type: ignore[misc]
    outcome, done, _ = translate(pairs, cell=averaging)
    assert (outcome.outcome, done) == ("done", ["one", "two"])
    (averaged,) = set((pairs / "runs").rglob("translations/one.txt")) - {alone}
    assert averaged.read_text() == expected
    shutil.rmtree(trained / "step-00000004")
    with pytest.raises(GpasError, match=r"1 of the 2 checkpoints .* those after update 4: .* Write average: 1 to"):
        translate(pairs, cell=averaging)


def moved(network: Llama, sign: int) -> None:
    generator = torch.Generator().manual_seed(5)
    for parameter in network.parameters():
        parameter.add_(sign * 0.5 * torch.randn(parameter.shape, generator=generator))


def test_a_stopped_translation_keeps_what_it_has(pairs: Path) -> None:
    outcome, done, _ = translate(pairs, 1)
    assert (outcome.outcome, outcome.step, done) == ("interrupted", 1, ["one"])
    outcome, done, _ = translate(pairs)
    assert (outcome.outcome, done) == ("done", ["two"])


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
    for task in project.tasks:
        samples = [json.loads(line) for line in (attempt.path / f"samples/{task}.jsonl").read_text().splitlines()]
        assert sum(one["acc"] for one in samples) == pytest.approx(12 * float(found[task].value))
        for one in samples:
            totals = [total for total, _ in one["filtered_resps"]]
            assert one["acc"] == (totals.index(max(totals)) == one["target"])


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


def test_a_task_without_data_interrupts_the_stage_and_is_scored_next(project: Project) -> None:
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
    assert (seen.progress.counted, seen.fraction) == ("piqa (2 of 4) 50 %", pytest.approx(0.375))
