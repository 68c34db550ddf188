"""The rows of one attempt: memory that does not depend on the length of its journal, and curves of any length."""

import tracemalloc

import pytest
from life import KEY, OTHER, Connect, Life
from sqlalchemy import Engine, text

from gpas_cli.store import attempt_rows, session
from gpas_cli.store.attempt_rows import Stored, store_attempt
from gpas_cli.store.ingest import sync
from gpas_cli.store.journal import encode
from gpas_cli.store.rundir import AttemptDir


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


def test_a_transaction_ends_after_the_limit(engine: Engine, life: Life) -> None:
    attempt = life.whole()
    size = attempt.journal_path.stat().st_size
    with session.writing(engine) as connection:
        assert store_attempt(connection, attempt, limit=size) == Stored(True, 26, 0, complete=False)
    with session.writing(engine) as connection:
        assert store_attempt(connection, attempt, limit=size) == Stored(False, 0, 0, complete=True)
