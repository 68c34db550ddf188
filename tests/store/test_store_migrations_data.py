"""Every migration with data in every table: down and up again."""

from __future__ import annotations

from typing import Any

import pytest
from attempts import write_events
from life import Life
from second_revision import everything
from sqlalchemy import Engine, inspect

from gpas_cli.events import event_of
from gpas_cli.store import session
from gpas_cli.store.ingest import sync
from gpas_cli.store.schema import HEAD, Base

REVISIONS = [f"{n:04d}" for n in range(1, int(HEAD) + 1)]
SCORE = {
    "kind": "score", "task": "arc_easy", "metric": "acc", "value": 0.5, "stderr": 0.01, "examples": 100, "shots": 0,
    "task_version": "1", "harness": "lm_eval 0.4",
}  # fmt: skip


def go(engine: Engine, revision: str, *, down: bool) -> None:
    from alembic import command

    with session.for_writing(engine).begin() as connection:
        (command.downgrade if down else command.upgrade)(session.alembic_config(connection), revision)


def common(rows: dict[str, list[dict[str, Any]]], columns: dict[str, set[str]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the tables and columns that an older revision has as well."""
    return {
        name: sorted(({key: row[key] for key in row if key in columns[name]} for row in rows[name]), key=repr)
        for name in columns
    }


@pytest.mark.parametrize("older", REVISIONS[:-1])
def test_what_both_revisions_have_survives(url: str, life: Life, older: str) -> None:
    whole = life.whole()
    write_events(life.attempt(), [event_of(SCORE)])
    life.end(whole, outcome="diverged", loss=float("inf"), perplexity=float("nan"))
    engine = session.connect(url)
    sync(engine, life.runs)
    before = everything(engine)
    assert all(before.values()), "a table without rows"
    assert before.keys() == Base.metadata.tables.keys()
    go(engine, older, down=True)
    inspector = inspect(engine)
    names = {*inspector.get_table_names()} & before.keys()
    columns = {name: {column["name"] for column in inspector.get_columns(name)} for name in names}
    assert everything(engine) == common(before, columns)
    go(engine, "head", down=False)
    assert common(everything(engine), columns) == common(before, columns)
    assert everything(engine).keys() == before.keys()
    engine.dispose()
