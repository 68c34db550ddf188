"""Journals are ingested: every event once, whatever happens to the files."""

import json
import math
import os
import shutil
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from attempts import ATTEMPT, write_events
from cases import cases
from dumps import dump
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from life import KEY, OTHER, Connect, Life, with_journal
from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session

from gpas_cli.errors import StoreError
from gpas_cli.events import Layers, Outcome, Step
from gpas_cli.store import attempt_rows, journal, session
from gpas_cli.store.attempt_rows import store_attempts
from gpas_cli.store.ingest import Ingested, sync
from gpas_cli.store.journal import encode
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.store.schema import AttemptRow, CurveRow, LayerCurveRow, MetricRow, StageRow


def only(engine: Engine) -> AttemptRow:
    with Session(engine) as orm:
        return orm.scalars(select(AttemptRow)).one()


def curve(engine: Engine, name: str) -> list[tuple[int, float]]:
    with engine.connect() as connection:
        points = select(CurveRow.step, CurveRow.value).where(CurveRow.name == name).order_by(CurveRow.step)
        return [(step, value) for step, value in connection.execute(points)]


def test_every_event_of_an_attempt_is_ingested(engine: Engine, life: Life) -> None:
    attempt = life.whole(parents=[OTHER])
    size = attempt.journal_path.stat().st_size
    assert sync(engine, life.runs) == Ingested(attempts=1, events=26, damaged=0)
    row = only(engine)
    asked = (row.stage_key, row.number, row.directory, row.grid, row.name, row.axes, row.executor, row.created)
    axes = {"norm": "pre", "seed": 1}
    assert asked == (attempt.key, 1, f"01/{attempt.key}/001", "quickstart", "pre-s1", axes, "local", 1760000000.5)
    assert (row.host, row.device, row.gpu, row.threads, row.precision) == ("node7", "cuda", "H100", 4, "bf16")
    assert (row.code, row.git_commit, row.git_dirty, row.resumed_from) == ("5e6f", "abc123", True, 0)
    assert (row.parameters, row.fingerprint, row.validation_fingerprint) == (58_074_112, "f1", "f2")
    assert row.environment == {"python": "3.11.7", "torch": "2.8.0", "gpu": "H100"}
    assert (row.outcome, row.cause, row.last_step) == ("done", "", 20)
    assert row.started <= row.ended <= time.time()
    assert (row.journal_offset, row.journal_events, row.journal_damaged) == (size, 26, 0)
    with Session(engine) as orm:
        stage = orm.scalars(select(StageRow)).one()
        assert (stage.key, stage.kind, stage.parents, stage.cell["seed"]) == (attempt.key, "pretrain", [OTHER], 1)
        assert {m.name: m.value for m in orm.scalars(select(MetricRow))} == {"loss": 3.25, "perplexity": 25.8}
        layers = {(c.name, c.step, c.layer): c.value for c in orm.scalars(select(LayerCurveRow))}
    assert layers == {("gate", 20, 0): 0.1, ("gate", 20, 1): 0.2, ("grad_norm", 20, 0): 1.0}
    assert curve(engine, "loss") == [(step, 10 / step) for step in range(1, 21)]
    assert curve(engine, "eval_perplexity") == [(20, 33.1)]


def test_an_attempt_that_has_not_started_is_a_row_too(engine: Engine, life: Life) -> None:
    life.attempt(code="snap", threads=2)
    assert sync(engine, life.runs) == Ingested(attempts=1)
    row = only(engine)
    assert (row.code, row.threads) == ("snap", 2)
    assert row.host is row.started is row.outcome is row.last_step is None
    assert sync(engine, life.runs) == Ingested()


def test_only_new_events_are_ingested(engine: Engine, life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = life.attempt()
    life.start(attempt)
    life.steps(attempt, range(1, 6))
    assert sync(engine, life.runs).events == 10
    before = dump(engine)
    with monkeypatch.context() as patch:
        patch.setattr(journal, "read_bytes", None)  # not even a look inside
        assert sync(engine, life.runs) == Ingested()
    assert dump(engine) == before
    life.steps(attempt, range(6, 9))
    life.end(attempt, loss=1.0)
    assert sync(engine, life.runs) == Ingested(attempts=1, events=7)
    assert [step for step, _ in curve(engine, "loss")] == list(range(1, 9))


def test_only_the_stages_asked_for(engine: Engine, life: Life) -> None:
    life.whole()
    life.whole(OTHER)
    assert sync(engine, life.runs, keys=[OTHER, OTHER]).attempts == 1
    assert only(engine).stage_key == OTHER
    assert sync(engine, life.runs, keys=[]) == Ingested()
    assert sync(engine, life.runs).attempts == 1


def test_nonfinite_numbers_round_trip(engine: Engine, life: Life) -> None:
    attempt = life.attempt()
    values = [math.nan, math.inf, -math.inf, 1e308, 5e-324, 0.1]
    steps = [Step(step=step, loss=value) for step, value in enumerate(values)]
    outcome = Outcome("diverged", 5, metrics={"loss": math.nan, "perplexity": math.inf})
    write_events(attempt, [*steps, Layers(0, {"gate": values}), outcome])
    sync(engine, life.runs)
    with Session(engine) as orm:
        metrics = {m.name: m.value for m in orm.scalars(select(MetricRow))}
        layers = [c.value for c in orm.scalars(select(LayerCurveRow).order_by(LayerCurveRow.layer))]
    for stored in ([value for _, value in curve(engine, "loss")], layers):
        assert list(map(repr, stored)) == list(map(repr, values))
    assert (math.isnan(metrics["loss"]), metrics["perplexity"]) == (True, math.inf)


def test_a_torn_last_line_is_read_when_it_is_whole(engine: Engine, life: Life) -> None:
    attempt = life.attempt()
    life.start(attempt)
    whole = attempt.journal_path.read_bytes()
    attempt.journal_path.write_bytes(whole[:-7])
    assert sync(engine, life.runs) == Ingested(attempts=1, events=1)
    assert sync(engine, life.runs) == Ingested()
    attempt.journal_path.write_bytes(whole)
    assert sync(engine, life.runs) == Ingested(attempts=1, events=1)
    assert only(engine).fingerprint == "f1"


def test_damaged_lines_are_counted_once_and_cost_only_themselves(engine: Engine, life: Life) -> None:
    attempt = life.attempt()
    life.steps(attempt, range(1, 4), evaluate=False)
    content = bytearray(attempt.journal_path.read_bytes())
    content[content.index(b"\n") + 30] ^= 1
    attempt.journal_path.write_bytes(content)
    assert sync(engine, life.runs) == Ingested(attempts=1, events=2, damaged=1)
    life.end(attempt)
    assert sync(engine, life.runs) == Ingested(attempts=1, events=1)
    assert (only(engine).journal_damaged, only(engine).journal_events) == (1, 3)
    assert [step for step, _ in curve(engine, "loss")] == [1, 3]


def test_a_journal_that_became_shorter_is_read_anew(engine: Engine, life: Life) -> None:
    attempt = life.whole()
    sync(engine, life.runs)
    attempt.journal_path.write_bytes(attempt.journal_path.read_bytes()[:900])
    assert sync(engine, life.runs).attempts == 1
    assert (only(engine).outcome, curve(engine, "eval_loss")) == (None, [])
    assert only(engine).journal_offset <= 900


def test_a_requeued_job_keeps_its_first_start_and_replaces_repeated_steps(engine: Engine, life: Life) -> None:
    attempt = life.attempt()
    life.start(attempt)
    life.steps(attempt, range(1, 11), evaluate=False)
    life.end(attempt, "interrupted", loss=9.0)
    sync(engine, life.runs)
    started = only(engine).started
    life.start(attempt, host="node8", resumed_from=5)
    sync(engine, life.runs)
    row = only(engine)
    assert (row.started, row.host, row.resumed_from, row.outcome, row.ended) == (started, "node8", 5, None, None)
    assert row.last_step == 20
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM metric")).scalar() == 0
    life.steps(attempt, range(6, 13))
    assert sync(engine, life.runs).events == 10
    assert [step for step, _ in curve(engine, "loss")] == list(range(1, 13))


def test_the_update_that_training_resumed_from_is_that_of_its_newest_start(engine: Engine, life: Life) -> None:
    attempt = life.attempt()
    for resumed, step in ((0, 5), (4, 9)):
        life.start(attempt, resumed_from=None)
        with_journal(
            attempt, [("phase", {"name": "tokenising"}), ("phase", {"name": "training", "resumed_from": resumed})]
        )
        life.steps(attempt, range(resumed + 1, step))
        sync(engine, life.runs)
        assert only(engine).resumed_from == resumed


def test_the_first_attempt_describes_the_stage_in_any_order(
    engine: Engine, life: Life, as_fresh: Callable[[Engine], None]
) -> None:
    first = life.attempt(cell={"asked": "first"})
    hidden = first.attempt_path.rename(first.path / "hidden")
    life.attempt(cell={"asked": "second"})
    assert len(sync(engine, life.runs).problems) == 1
    with engine.connect() as connection:
        assert connection.scalar(select(StageRow.cell)) == {"asked": "second"}
        hidden.rename(first.attempt_path)
    assert sync(engine, life.runs) == Ingested(attempts=1)
    life.attempt(cell={"asked": "third"})
    sync(engine, life.runs)
    with engine.connect() as connection:
        assert connection.scalar(select(StageRow.cell)) == {"asked": "first"}
    as_fresh(engine)


@cases("store/cases.yaml")
def test_an_unreadable_attempt_stops_no_other(
    engine: Engine, life: Life, content: str | dict | None, message: str
) -> None:
    """A mapping as the content is what it has beside the usual fields."""
    bad = life.attempt()
    good = life.whole(OTHER)
    if content is None:
        bad.attempt_path.unlink()
    else:
        bad.attempt_path.write_text(content if isinstance(content, str) else json.dumps({**ATTEMPT, **content}))
    done = sync(engine, life.runs)
    assert (done.attempts, len(done.problems)) == (1, 1)
    with pytest.raises(StoreError, match=message):
        raise StoreError(done.problems[0])
    assert only(engine).stage_key == good.key


def test_text_that_no_database_accepts_is_escaped(engine: Engine, life: Life) -> None:
    attempt = life.attempt()
    life.start(attempt, host="node\0seven", environment={"note": "\0\ud800"})
    sync(engine, life.runs)
    assert (only(engine).host, only(engine).environment) == ("node\\0seven", {"note": "\0\ud800"})


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 6000), max_size=6).map(sorted))
def test_incremental_and_complete_ingests_agree(
    tmp_path_factory: pytest.TempPathFactory, connect: Connect, life: Life, cuts: list[int]
) -> None:
    requeued = life.whole()
    life.start(requeued, host="node8", resumed_from=5)
    life.steps(requeued, range(6, 9))
    whole = requeued.journal_path.read_bytes()
    folder = tmp_path_factory.mktemp("growing")
    grown = type(life)(folder / "runs")
    attempt = grown.attempt()
    engine, fresh = (connect(f"sqlite:///{folder / name}") for name in ("grown.db", "fresh.db"))
    for cut in [*cuts, len(whole)]:
        attempt.journal_path.write_bytes(whole[:cut])
        sync(engine, grown.runs)
    sync(fresh, grown.runs)
    assert dump(engine) == dump(fresh)
    for each in (engine, fresh):
        each.dispose()


def outcomes(engine: Engine) -> list[tuple[str | None, float | None]]:
    """(outcome, when its directory was missed) of every attempt."""
    with engine.connect() as connection:
        rows = connection.execute(select(AttemptRow.outcome, AttemptRow.gone).order_by(AttemptRow.id))
        return [tuple(row) for row in rows]


def flip(attempt: AttemptDir) -> None:
    """Change one byte of the last event, and nothing of the journal's size."""
    content = bytearray(attempt.journal_path.read_bytes())
    content[-20] ^= 1
    attempt.journal_path.write_bytes(content)


def test_a_journal_that_was_damaged_after_it_was_read_is_read_anew(engine: Engine, life: Life) -> None:
    attempt = life.whole()
    sync(engine, life.runs)
    assert outcomes(engine) == [("done", None)]
    flip(attempt)
    done = sync(engine, life.runs)
    assert (done.attempts, done.damaged) == (1, 1)
    assert outcomes(engine) == [(None, None)]
    assert sync(engine, life.runs) == Ingested()
    flip(attempt)
    sync(engine, life.runs)
    assert outcomes(engine) == [("done", None)]


def test_a_journal_that_was_replaced_and_has_grown_is_read_anew(engine: Engine, life: Life) -> None:
    attempt = life.whole()
    sync(engine, life.runs)
    attempt.journal_path.unlink()
    life.start(attempt, host="elsewhere")
    life.steps(attempt, range(1, 60))
    sync(engine, life.runs)
    with engine.connect() as connection:
        row = connection.execute(select(AttemptRow.host, AttemptRow.outcome, AttemptRow.last_step)).one()
    assert row == ("elsewhere", None, 59)


def test_a_journal_that_was_only_copied_is_not_read_again(engine: Engine, life: Life) -> None:
    attempt = life.whole()
    sync(engine, life.runs)
    os.utime(attempt.journal_path, (1, 1))
    assert sync(engine, life.runs) == Ingested()
    with engine.connect() as connection:
        assert connection.scalar(select(AttemptRow.journal_mtime)) == 10**9


def test_an_attempt_without_directory_is_marked_until_it_is_back(engine: Engine, life: Life, tmp_path: Path) -> None:
    life.whole()
    gone = life.whole("fe" * 8)
    sync(engine, life.runs)
    shutil.move(gone.path, tmp_path / "aside")
    assert sync(engine, life.runs, keys=["01" * 8]) == Ingested()
    assert sync(engine, life.runs) == Ingested(gone=1)
    assert sync(engine, life.runs) == Ingested()
    marks = [when for _, when in outcomes(engine)]
    assert marks[0] is None
    assert marks[1] == pytest.approx(time.time(), abs=60)
    shutil.move(tmp_path / "aside", gone.path)
    assert sync(engine, life.runs).attempts == 1
    assert outcomes(engine) == [("done", None)] * 2


def test_a_missing_runs_folder_marks_no_attempt_as_gone(engine: Engine, life: Life) -> None:
    """A file system that is not mounted."""
    life.whole()
    sync(engine, life.runs)
    life.runs.rename(life.runs.with_name("unmounted"))
    assert sync(engine, life.runs) == Ingested()
    assert outcomes(engine) == [("done", None)]


def write_steps(attempt: AttemptDir, steps: range, loss: float = 2.5) -> None:
    """Append an event with a loss for each of `steps` to the journal, quickly."""
    with attempt.journal_path.open("ab") as file:
        for step in steps:
            file.write(encode({"n": step, "t": 1.0, "kind": "step", "step": step, "loss": loss, "lr": 1e-3}))


def peak_bytes(engine: Engine, life: Life, key: str) -> int:
    tracemalloc.start()
    try:
        sync(engine, life.runs, keys=[key])
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.long
def test_memory_does_not_depend_on_the_length_of_a_journal(
    connect: Connect, sqlite_url: str, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_rows, "STRETCH_BYTES", 1 << 16)
    engine = connect(sqlite_url)
    sync(engine, life.runs)  # what the first sync imports and prepares
    write_steps(life.attempt(KEY), range(1_000))
    write_steps(life.attempt(OTHER), range(6_000))
    short, long = peak_bytes(engine, life, KEY), peak_bytes(engine, life, OTHER)
    assert long < 1.5 * short, f"{short / 1e6:.1f} MB for 1,000 events, {long / 1e6:.1f} MB for 6,000"


@pytest.mark.parametrize("steps", [1, 607])
def test_a_curve_of_any_length_is_stored_and_replaced(engine: Engine, life: Life, steps: int) -> None:
    attempt = life.attempt()
    for loss in (2.5, 3.5):
        write_steps(attempt, range(steps), loss)
        sync(engine, life.runs)
        with engine.connect() as connection:
            found = connection.execute(text("SELECT step, value FROM curve WHERE name = 'loss' ORDER BY step")).all()
        assert [tuple(row) for row in found] == [(step, loss) for step in range(steps)]


def test_a_transaction_ends_after_the_limit(
    engine: Engine, life: Life, monkeypatch: pytest.MonkeyPatch, as_fresh: Callable[[Engine], None]
) -> None:
    attempts = [life.whole(KEY), life.whole(OTHER)]
    monkeypatch.setattr(attempt_rows, "STRETCH_BYTES", min(one.journal_path.stat().st_size for one in attempts))

    def stored(*waiting: AttemptDir) -> list[tuple[AttemptDir, int, bool, bool]]:
        with session.writing(engine) as connection:
            done = store_attempts(connection, waiting)
        return [(one.attempt, one.changes.events, one.changed, one.complete) for one in done]

    assert stored(*attempts) == [(attempts[0], 26, True, False)]
    assert stored(*attempts) == [(attempts[0], 0, False, True), (attempts[1], 26, True, False)]
    assert stored(*attempts[1:]) == [(attempts[1], 0, False, True)]
    as_fresh(engine)
