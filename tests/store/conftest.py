"""A project's run directories, and databases that are closed after the test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dumps import dump
from face import quicken_databases
from life import Connect, Life
from postgres_server import needs_server, new_database, new_schema, running_server
from sqlalchemy import Engine

from gpas_cli.store import session
from gpas_cli.store.ingest import sync


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path / "runs")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Path]:
    """The folder of a running server's socket."""
    with running_server() as folder:
        yield folder


@pytest.fixture
def postgres_url(postgres_server: Path) -> str:
    """Return a new database on the server."""
    return new_database(postgres_server)


@pytest.fixture
def schema_url(postgres_server: Path) -> str:
    """Return a new schema on the server."""
    return new_schema(postgres_server)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test of the store that takes a `url` on SQLite and on Postgres.

    A test of what only a file has, such as its permissions, takes `sqlite_url`.
    """
    if "url" in metafunc.fixturenames:
        on_postgres = pytest.param("schema_url", marks=needs_server, id="postgres")
        metafunc.parametrize("url", [pytest.param("sqlite_url", id="sqlite"), on_postgres], indirect=True)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'gpas.db'}"


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a new database."""
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def connect() -> Iterator[Connect]:
    """`session.connect`, whose engines are closed after the test."""
    engines: list[Engine] = []

    def connect(url: str, **options: Any) -> Engine:
        engines.append(session.connect(url, **options))
        return engines[-1]

    yield connect
    for engine in engines:
        engine.dispose()


@pytest.fixture
def as_fresh(connect: Connect, life: Life, tmp_path: Path) -> Callable[[Engine], None]:
    """Return a check: the database has the rows of one that is made now from the run directories."""

    def check(engine: Engine) -> None:
        fresh = connect(f"sqlite:///{tmp_path / 'fresh.db'}")
        sync(fresh, life.runs)
        assert dump(engine) == dump(fresh)

    return check


@pytest.fixture
def engine(connect: Connect, url: str) -> Engine:
    return connect(url)


@pytest.fixture(autouse=True)
def _quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make no database anew whose making is not the subject."""
    if request.path.stem not in ("test_store_migrations", "test_store_session"):
        quicken_databases(monkeypatch)
