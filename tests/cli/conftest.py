"""Fixtures of the tests of the face."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from face import Face

from gpas_cli.cli import console


@pytest.fixture(autouse=True)
def options() -> Iterator[None]:
    """Restore the global options after each test."""
    yield
    console.STATE.config = None
    console.STATE.as_json = False


@pytest.fixture
def face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Face:
    """Return a project without attempts and the `gpas` command in it."""
    return Face(tmp_path / "project", monkeypatch, capsys)
