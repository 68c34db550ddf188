"""A project's run directories, and databases that are closed after the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from life import Connect, Life
from sqlalchemy import Engine

from gpas_cli.store import session


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path / "runs")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'gpas.db'}"


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
def engine(connect: Connect, url: str) -> Engine:
    return connect(url)
