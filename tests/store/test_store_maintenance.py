"""The database is checked, rebuilt and merged; events become rows."""

import math
import os
import shutil
import sqlite3
import time
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from dumps import dump
from life import KEY, OTHER, Connect, Life, with_journal
from sqlalchemy import Engine, text

from gpas_cli.errors import StoreError
from gpas_cli.report.recorded import PARTIAL, read_results
from gpas_cli.store import maintenance, session
from gpas_cli.store.ingest import sync
from gpas_cli.store.journal import Line, encode
from gpas_cli.store.maintenance import backup, check, rebuild
from gpas_cli.store.projection import _EVALUATION_CURVES, STEP_CURVES, integer, number, project_events, string


def grown(engine: Engine, life: Life) -> dict[str, list[tuple[Any, ...]]]:
    """Fill a database bit by bit: out of order, with a damaged line, a requeue and an attempt that has not started.

    Returns its content.
    """
    first, second = life.attempt(cell={"asked": "first"}), life.attempt(OTHER)
    life.start(second)
    sync(engine, life.runs, keys=[OTHER])
    life.start(first)
    life.steps(first, range(1, 9))
    with first.journal_path.open("ab") as journal:
        journal.write(b"torn")
    sync(engine, life.runs)
    life.end(first, "interrupted")
    score = {"task": "piqa", "metric": "acc", "value": 0.6, "stderr": None, "examples": 500, "shots": 0}
    with_journal(first, [("score", {**score, "task_version": "1.0", "harness": "lm_eval 0.4.13", "checkpoint": "x"})])
    sync(engine, life.runs)
    life.start(first, resumed_from=8)
    life.steps(first, range(5, 12))
    life.attempt(cell={"asked": "again"})
    sync(engine, life.runs, keys=[first.key])
    life.end(first, loss=float("nan"), perplexity=float("inf"))
    sync(engine, life.runs)
    return dump(engine)


def test_a_rebuilt_database_is_equal_to_the_one_that_grew(connect: Connect, url: str, life: Life) -> None:
    before = grown(connect(url), life)
    done = rebuild(url, life.runs)
    assert (done.attempts, done.damaged, done.problems) == (3, 1, ())
    assert dump(connect(url)) == before


def test_the_file_before_a_rebuild_is_kept(connect: Connect, sqlite_url: str, life: Life, tmp_path: Path) -> None:
    before = grown(connect(sqlite_url), life)
    rebuild(sqlite_url, life.runs)
    kept = [path for path in tmp_path.iterdir() if ".replaced-" in path.name]
    assert dump(connect(f"sqlite:///{kept[0]}")) == before
    assert not [path for path in tmp_path.iterdir() if "rebuild" in path.name]


def test_a_database_in_this_folder_is_rebuilt(life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life.whole()
    monkeypatch.chdir(tmp_path)
    assert rebuild("sqlite:///gpas.db", life.runs).attempts == 1
    assert (tmp_path / "gpas.db").stat().st_size > 0


@pytest.mark.parametrize("damage", ["not a database", "torn pages", "empty"])
def test_a_damaged_database_is_kept(connect: Connect, sqlite_url: str, life: Life, tmp_path: Path, damage: str) -> None:
    before = grown(connect(sqlite_url), life)
    path = tmp_path / "gpas.db"
    content = path.read_bytes()
    torn = content[:4096] + b"\xa5" * 20_000 + content[24_096:]
    path.write_bytes({"not a database": b"thesis" * 999, "torn pages": torn, "empty": b""}[damage])
    ruin = path.read_bytes()
    (tmp_path / "gpas.db-wal").write_bytes(b"the log of another life")
    path.chmod(0o640)
    rebuild(sqlite_url, life.runs)
    assert path.stat().st_mode & 0o777 == 0o640
    assert dump(connect(sqlite_url)) == before
    kept = [path.read_bytes() for path in tmp_path.glob("*.replaced-*")]
    assert ruin[4096:] in [content[4096:] for content in kept]  # the first page says which log is in use


def test_rebuild_waits(connect: Connect, url: str, life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = connect(url)
    before = grown(engine, life)
    monkeypatch.setattr(maintenance.session, "BUSY_SECONDS", 0.2)
    with session.writing(engine), pytest.raises(StoreError, match=r"held the lock for 0\.2 s; nothing is lost"):
        rebuild(url, life.runs)
    assert dump(engine) == before
    left = {path.name.split("-")[0] for path in tmp_path.iterdir()}
    assert left <= {"runs", "gpas.db"}


def test_a_file_that_another_process_holds_is_not_moved_away(
    connect: Connect, sqlite_url: str, life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = connect(sqlite_url)
    grown(engine, life)
    engine.dispose()
    monkeypatch.setattr(maintenance.session, "BUSY_SECONDS", 0.2)
    with closing(sqlite3.connect(tmp_path / "gpas.db", isolation_level=None)) as other:
        other.executescript("PRAGMA journal_mode = DELETE; BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match=r"held the lock for 0\.2 s; nothing is lost"):
            rebuild(sqlite_url, life.runs)
    assert not list(tmp_path.glob("*.replaced-*"))


def test_a_database_in_memory_is_rebuilt_in_one_transaction(life: Life) -> None:
    life.whole()
    life.attempt(OTHER).attempt_path.unlink()
    done = rebuild("sqlite://", life.runs)
    assert (done.attempts, done.events, len(done.problems)) == (1, 26, 1)


def test_a_backup_is_a_complete_database(connect: Connect, sqlite_url: str, life: Life, tmp_path: Path) -> None:
    engine = connect(sqlite_url)
    grown(engine, life)
    with engine.connect() as reader:
        reader.execute(text("SELECT * FROM attempt")).all()  # in use
        made = [backup(sqlite_url), backup(sqlite_url)]
    assert len(set(made)) == 2
    for path in made:
        assert path.parent == tmp_path
        assert dump(connect(f"sqlite:///{path}")) == dump(engine)
    assert not list(tmp_path.glob(".*"))


def test_databases_that_cannot_be_backed_up(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"user:\*\*\*@host/name: gpas can only copy SQLite files; .* pg_dump"):
        backup("postgresql://user:secret@host/name")
    with pytest.raises(StoreError, match="there is no database to back up"):
        backup(f"sqlite:///{tmp_path / 'gpas.db'}")
    (tmp_path / "gpas.db").write_bytes(b"thesis" * 999)
    with pytest.raises(StoreError, match="not an SQLite database"):
        backup(f"sqlite:///{tmp_path / 'gpas.db'}")
    assert [path.name for path in tmp_path.iterdir()] == ["gpas.db"]


@cases("store/cases.yaml")
def test_damage_is_found(connect: Connect, url: str, life: Life, harm: str, message: str) -> None:
    engine = connect(url)
    grown(engine, life)
    with engine.begin() as connection:
        connection.execute(text(harm))
    findings = [str(finding) for finding in check(url, life.runs)]
    assert len(findings) == 1
    assert message in findings[0]


def test_events_that_a_job_adds_during_a_check_are_no_defect(connect: Connect, sqlite_url: str, life: Life) -> None:
    engine = connect(sqlite_url)
    grown(engine, life)
    sync(engine, life.runs)
    began = time.time()
    journal = next(life.runs.glob("*/*/001/journal.jsonl"))
    with journal.open("ab") as file:
        file.write(encode({"n": 10**6, "t": began, "kind": "weather"}))
    os.utime(journal, (began + 1, began + 1))
    assert not [defect for defect in check(sqlite_url, life.runs, since=began) if "not yet ingested" in str(defect)]
    assert any("not yet ingested" in str(defect) for defect in check(sqlite_url, life.runs, since=began + 2))


def test_rows_of_no_attempt_are_found(connect: Connect, sqlite_url: str, life: Life, tmp_path: Path) -> None:
    """SQLite checks foreign keys only where a connection asks for it; Postgres always does."""
    grown(connect(sqlite_url), life)
    raw = sqlite3.connect(tmp_path / "gpas.db")
    raw.executescript("INSERT INTO metric VALUES (77, 'loss', 1.0)")
    raw.close()
    (finding,) = check(sqlite_url, life.runs)
    assert "1 rows belong to no attempt or stage; `gpas db rebuild`" in str(finding)


def test_directories_without_rows_and_rows_without_directories(connect: Connect, url: str, life: Life) -> None:
    grown(connect(url), life)
    shutil.rmtree(life.runs / "fe")
    life.whole("00" * 8)
    findings = [str(finding) for finding in check(url, life.runs)]
    assert len(findings) == 2
    assert findings[0].startswith(f"00/{'00' * 8}/001 is not in the database; `gpas db sync`")
    assert findings[1].startswith(f"fe/{OTHER}/001 is in the database but not in")


def test_events_that_were_lost_are_found(connect: Connect, url: str, life: Life) -> None:
    attempt = life.whole()
    content = bytearray(attempt.journal_path.read_bytes())
    content[len(content) // 2] ^= 1
    attempt.journal_path.write_bytes(content)
    sync(connect(url), life.runs)
    assert ["1 events are missing (1 damaged lines)" in str(finding) for finding in check(url, life.runs)] == [True]


def test_a_database_that_cannot_be_checked_is_a_finding(sqlite_url: str, life: Life, tmp_path: Path) -> None:
    assert "there is no database yet" in str(check(sqlite_url, life.runs)[0])
    (tmp_path / "gpas.db").write_bytes(b"thesis" * 999)
    assert "not an SQLite database" in str(check(sqlite_url, life.runs)[0])
    with pytest.raises(StoreError, match="not supported"):
        check("mysql://host/name", life.runs)


def test_a_rebuild_does_not_disturb_readers(engine: Engine, url: str, life: Life) -> None:
    grown(engine, life)
    with engine.connect() as reader:
        before = reader.execute(text("SELECT count(*) FROM curve")).scalar()
        life.whole("00" * 8)
        began = time.monotonic()
        assert rebuild(url, life.runs).attempts == 4
        assert time.monotonic() - began < maintenance.session.BUSY_SECONDS / 2
        assert reader.execute(text("SELECT count(*) FROM curve")).scalar() == before
    with engine.connect() as reader:
        assert reader.execute(text("SELECT count(*) FROM attempt")).scalar() == 4
    assert sync(engine, life.runs).attempts == 0
    assert check(url, life.runs) == []


def test_copies_have_the_databases_permissions(connect: Connect, sqlite_url: str, life: Life, tmp_path: Path) -> None:
    grown(connect(sqlite_url), life)
    (tmp_path / "gpas.db").chmod(0o600)
    rebuild(sqlite_url, life.runs)
    backup(sqlite_url)
    copies = [path for path in tmp_path.glob("gpas.db.*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in [tmp_path / "gpas.db", *copies]} == {0o600}
    assert len(copies) == 2


@pytest.mark.long
def test_checking_a_long_journal_takes_little_memory(connect: Connect, sqlite_url: str, life: Life) -> None:
    attempt = life.attempt()
    with attempt.journal_path.open("wb") as file:
        for n in range(30_000):
            file.write(encode({"n": n, "t": 1.0, "kind": "step", "step": n + 1, "loss": 2.5, "note": "x" * 40}))
    engine = connect(sqlite_url)
    assert sync(engine, life.runs).events == 30_000
    tracemalloc.start()
    assert check(sqlite_url, life.runs) == []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = attempt.journal_path.stat().st_size
    assert peak < size, f"{peak / 1e6:.0f} MB for {size / 1e6:.0f} MB of journal"


def test_another_projects_file_is_not_rebuilt(engine: Engine, url: str, life: Life, tmp_path: Path) -> None:
    before = grown(engine, life)
    other = type(life)(tmp_path / "other/runs")
    other.whole()
    with pytest.raises(StoreError, match="holds the results of another project"):
        rebuild(url, other.runs)
    assert dump(engine) == before
    assert not list(tmp_path.glob("*.replaced-*"))
    assert "another project" in str(check(url, other.runs)[0])


def event(kind: str, **fields: Any) -> Line:
    return Line({"n": 0, "t": 1760000000.0, "kind": kind, **fields})


def test_steps_and_evaluations_become_curves() -> None:
    speed = {"tokens_per_second": 7, "seconds_per_step": 0.1, "flops_per_second": 1e9, "mfu": 0.4, "memory": 2**30}
    speed["loss_scale"] = 512.0
    step = event("step", step=3, steps=9, loss=2.0, mean_loss=2.1, lr=1e-3, grad_norm=0.5, tokens=192, **speed)
    scores = dict.fromkeys(_EVALUATION_CURVES, 1.5)
    evaluation = event("evaluation", step=4, **scores, tokens=64, loss_reference=1.4)
    changes = project_events([step, evaluation])
    assert set(changes.curves) == {*STEP_CURVES, *_EVALUATION_CURVES.values()}
    assert (changes.curves["loss"], changes.curves["eval_loss"]) == ({3: 2.0}, {4: 1.5})
    assert changes.columns == {"last_step": 4}
    assert changes.metrics is None


@cases("store/cases.yaml", metrics=None, damaged=0)
def test_events_change_columns_curves_and_metrics(
    events: list[dict[str, Any]], columns: Any, curves: Any, metrics: Any, damaged: int
) -> None:
    """A curve is a list of pairs of a step and a value."""
    found = project_events([event(**one) for one in events])
    assert (found.columns, found.metrics, found.damaged) == (columns, metrics, damaged)
    assert found.curves == {name: dict(points) for name, points in curves.items()}


def test_layers_are_counted_from_zero() -> None:
    changes = project_events([event("layers", step=2, values={"gate": [0.5, None, "nan"]})])
    assert set(changes.layers["gate"]) == {(2, 0), (2, 2)}
    assert math.isnan(changes.layers["gate"][2, 2])


@cases("store/cases.yaml")
def test_a_malformed_event_is_counted_and_changes_nothing(bad: dict[str, Any]) -> None:
    changes = project_events([event(**bad), event("step", step=5, loss=1.0)])
    assert (changes.damaged, changes.columns) == (1, {"last_step": 5})
    assert (changes.curves, changes.layers, changes.metrics) == ({"loss": {5: 1.0}}, {}, None)


def test_numbers_from_a_journal() -> None:
    assert number("-inf") == -math.inf
    assert math.isnan(number("nan"))
    assert integer(2**40, 64) == 2**40
    with pytest.raises(ValueError, match="32 bits"):
        integer(2**40)
    assert string("a\0b\ud800") == "a\\0b\\ud800"


SCORE = {
    "task": "piqa", "metric": "acc", "value": 0.6, "stderr": 0.02, "examples": 500, "shots": 0,
    "task_version": "1.0", "harness": "lm_eval 0.4.13", "checkpoint": "x",
}  # fmt: skip


def line(**changed: object) -> Line:
    return Line({"n": 0, "t": 1760000000.0, "kind": "score", **SCORE, **changed})


def test_a_score_becomes_a_row_and_the_later_one_counts() -> None:
    lines = [line(value=value) for value in (0.5, 0.6)]
    assert list(project_events(lines).scores) == [("piqa", "acc")]
    assert project_events(lines).scores["piqa", "acc"]["value"] == 0.6


@pytest.mark.parametrize("wrong", [{"value": "much"}, {"examples": -1}, {"examples": 0.5}])
def test_a_malformed_score_is_counted(wrong: dict[str, object]) -> None:
    changes = project_events([line(**wrong)])
    assert changes.damaged == 1
    assert not changes.scores


def scored(life: Life, *scores: dict[str, object]) -> None:
    """Make an attempt at a stage of two tasks that journals `scores` and is interrupted."""
    attempt = life.attempt(stage="downstream", cell={"size": "60m", "downstream": {"tasks": ["piqa", "openbookqa"]}})
    with_journal(attempt, [("start", {"stage": "downstream"}), *(("score", {**SCORE, **score}) for score in scores)])
    life.end(attempt, "interrupted")


def test_scores_before_the_end_are_a_partial_result_of_all_attempts(connect: Connect, url: str, life: Life) -> None:
    """The newest score of a task counts."""
    engine = connect(url, create=True)

    def found() -> Any:
        sync(engine, life.runs)
        return read_results(engine, [KEY])[KEY]

    scored(life, {})
    assert (found().outcome, found().metrics) == (PARTIAL, {"accuracy/piqa": 60.0})
    assert found().stderr("accuracy/piqa") == pytest.approx(2.0)
    scored(life, {"value": 0.1}, {"task": "openbookqa", "value": 0.2})
    assert found().metrics == pytest.approx({"accuracy/piqa": 10, "accuracy/openbookqa": 20, "accuracy/average": 15})
    assert found().stderr("accuracy/average") == pytest.approx(100 * math.hypot(0.02, 0.02) / 2)
