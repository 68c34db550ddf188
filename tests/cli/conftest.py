"""Fixtures of the tests of the face."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from face import Face


@pytest.fixture
def face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Face:
    """A project without attempts and the `gpas` command in it."""
    return Face(tmp_path / "project", monkeypatch, capsys)
