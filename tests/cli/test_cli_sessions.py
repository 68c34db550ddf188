"""Commands as users call them, one after the other: `commands/COMMAND.yaml` has the sessions."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cli_steps import Steps
from face import Face
from sessions import play, sessions


@sessions(*(f"cli/commands/{path.name}" for path in sorted(Path(__file__).parent.glob("commands/*.yaml"))))
def test_a_session(face: Face, monkeypatch: pytest.MonkeyPatch, session: list[Any]) -> None:
    with ExitStack() as others:
        play(Steps(face, patch=monkeypatch, others=others), session)
