"""The stage quantised as a job runs it: a later attempt continues from the journals of the earlier ones."""

from pathlib import Path

from attempts import make_attempt, write_events
from importance_ranks import TEXTS, cell_of, save_network

from gpas_cli.events import Outcome
from gpas_cli.store.journal import Journal, read
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.train.parallel import ALONE
from gpas_cli.worker.stages.context import StageContext, runner

CELL = cell_of(norm="pre", gate="gpas", quantised={"bits": [8, 4, 2], "eval_tokens": 250})


def new_attempt(project: Path, stage: str, key: str) -> AttemptDir:
    facts = {"stage": stage, "cell": CELL.to_mapping(), "cache": str(project / "cache"), "root": str(project)}
    return make_attempt(project / "runs", key, facts)


def go(attempt: AttemptDir, most: int) -> Outcome:
    """Run the attempt, asking it to stop after `most` measurements."""
    asked = iter([None] * most)
    journal = Journal(attempt.journal_path)
    stage = StageContext(
        CELL, attempt.read_attempt(), attempt, journal.append, lambda: next(asked, "interrupted"), ALONE
    )
    outcome = runner(CELL, "quantised")(stage)
    journal.close()
    write_events(attempt, [outcome])
    return outcome


def measured(attempt: AttemptDir) -> list[str]:
    return [line.values["task"] for line in read(attempt.journal_path)[0] if line.kind == "score"]


def test_attempts_continue_where_the_last_one_stopped(tmp_path: Path) -> None:
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    trained = new_attempt(tmp_path, "pretrain", CELL.trained.key)
    save_network(CELL, trained.checkpoints)
    write_events(trained, [Outcome("done", CELL.optim.steps)])
    key = next(stage.key for stage in CELL.stages if stage.kind == "quantised")
    first, second = new_attempt(tmp_path, "quantised", key), new_attempt(tmp_path, "quantised", key)
    stopped = go(first, 2)
    assert (stopped.outcome, stopped.step) == ("interrupted", 2)
    assert measured(first) == ["unquantised", "int8"]
    done = go(second, 100)
    assert (done.outcome, measured(second)) == ("done", ["int4", "int2"])
    assert {name for name in done.metrics if "/" in name} == {
        *(f"quantised_perplexity/{name}" for name in ("unquantised", "int8", "int4", "int2")),
        *(f"quantised_rise/{name}" for name in ("int8", "int4", "int2")),
    }
