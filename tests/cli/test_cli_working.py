"""What a command shows of its own work: in a log, few lines."""

from __future__ import annotations

import pytest

from gpas_cli import period
from gpas_cli.cli import working as module


def test_a_log_gets_the_first_message_and_then_one_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(period.time, "monotonic", lambda: now)
    with module.working("measuring") as show:
        for number in range(20):
            show(f"update {number}")
            now += module.LOG_SECONDS / 10
    assert capsys.readouterr().err == "update 0\nupdate 10\n"
