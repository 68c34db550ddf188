"""Fixtures for tests of tables, curves and claims."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine

from gpas_cli.store.schema import Base


@pytest.fixture
def engine() -> Iterator[Engine]:
    """Return an empty database in memory."""
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()
