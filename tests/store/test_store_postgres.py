"""What only a Postgres server does; the other tests of the store run on one too (`url` in conftest.py)."""

import math
from pathlib import Path

import pytest
from attempts import write_events
from dumps import dump
from life import OTHER, Connect, Life
from postgres_server import needs_server, new_database
from sqlalchemy import Engine, select, text

from gpas_cli.errors import StoreError
from gpas_cli.events import Layers, Outcome, Score
from gpas_cli.report import query
from gpas_cli.report.query import LAST, layer_curves
from gpas_cli.report.recorded import read_results
from gpas_cli.store import session
from gpas_cli.store.ingest import Ingested, sync
from gpas_cli.store.schema import AttemptRow, MetricRow

pytestmark = needs_server


def test_the_content_is_that_of_sqlite(connect: Connect, postgres_url: str, life: Life, tmp_path: Path) -> None:
    server, file = connect(postgres_url), connect(f"sqlite:///{tmp_path / 'gpas.db'}")
    attempt = life.attempt()
    life.start(attempt, host="node\0seven", environment={"note": "\0\ud800"})
    life.steps(attempt, range(1, 9))
    for engine in (server, file):
        assert sync(engine, life.runs) == Ingested(attempts=1, events=13)
        assert sync(engine, life.runs) == Ingested()
    life.start(attempt)
    life.steps(attempt, range(5, 12))
    life.end(attempt, "diverged", loss=math.nan, perplexity=math.inf, **{'bits "{x},\\y': -math.inf})
    life.whole(OTHER, cell={"asked": [None, 1e-3, "Grüße"]})
    for engine in (server, file):
        assert sync(engine, life.runs).attempts == 2
    assert dump(server) == dump(file)
    with server.connect() as connection:
        loss = connection.scalar(
            select(MetricRow.value).join(AttemptRow).where(MetricRow.name == "loss", AttemptRow.outcome == "diverged")
        )
        assert connection.execute(text("SELECT value FROM metric WHERE value = 'Infinity'")).scalar() == math.inf
    assert math.isnan(loss)


@pytest.mark.parametrize("until", [None, LAST, 5, 99_999_999_999])
def test_queries_give_the_same_in_the_same_order(
    connect: Connect, postgres_server: Path, life: Life, tmp_path: Path, until: int | None
) -> None:
    """Whatever the order of rows on the server's disk, and whatever language it sorts text by."""
    url = new_database(postgres_server, "TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'")
    server, file = connect(url), connect(f"sqlite:///{tmp_path / 'gpas.db'}")
    attempt = life.attempt()
    life.start(attempt)
    layers = [Layers(step, {"gate": [0.1 * step, math.nan, math.inf]}) for step in (1, 3, 2, 5)]
    scores = [
        Score(task, by, 0.5, None, 9, 0, "1", "h") for task in ("indent", "Arc", "_b") for by in ("acc_norm", "acc")
    ]
    ends = [Outcome("done", 5, metrics={"loss": 1.0, "Zeta": 2.0, "_a": 3.0, "b/c": 4.0})]
    for events in (layers, scores, ends, layers[:2], scores[:3], ends):  # the second time, rows are replaced
        write_events(attempt, events)
        for engine in (server, file):
            sync(engine, life.runs)
    asked = [attempt.key]

    def read(engine: Engine) -> list[object]:
        found = [read_results(engine, asked), layer_curves(engine, asked, "gate", until=until)]
        return [repr(found), query.attempts(engine, attempt.key)[0]["metrics"].__repr__()]

    assert read(server) == read(file)


def test_a_missing_database_is_reported(postgres_server: Path) -> None:
    with pytest.raises(StoreError, match='database "nothing" does not exist'):
        session.connect(f"postgresql://gpas@/nothing?host={postgres_server}")


def test_a_server_that_goes_away_is_reported(connect: Connect, postgres_url: str) -> None:
    engine = connect(postgres_url)
    with engine.connect() as victim, engine.connect() as killer:
        pid = victim.execute(text("SELECT pg_backend_pid()")).scalar()
        killer.execute(text(f"SELECT pg_terminate_backend({pid})"))
        with pytest.raises(StoreError, match="nothing is lost: run the command again once the server answers"):
            victim.execute(text("SELECT 1"))
