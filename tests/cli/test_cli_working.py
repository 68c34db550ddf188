"""What a command shows while it computes, and views that are drawn again and again."""

import io

import pytest
from face import Face
from rich.console import Console

from gpas_cli import period
from gpas_cli.cli import console
from gpas_cli.cli.commands import status


def test_a_log_gets_few_messages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    monkeypatch.setattr(period.time, "monotonic", lambda: now)
    with console.working("measuring") as show:
        for number in range(20):
            show(f"update {number}")
            now += console.LOG_SECONDS / 10
    assert capsys.readouterr().err == "update 0\nupdate 10\n"


def test_a_view_is_drawn_again_until_it_is_interrupted(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Console(file=io.StringIO(), width=100, height=40, color_system=None, force_terminal=True)
    frames: list[str] = []

    def sleep(seconds: float) -> None:
        frames.append(drawn.file.getvalue())  # type: ignore[attr-defined]
        drawn.file = io.StringIO()
        if len(frames) == 2:
            raise KeyboardInterrupt
        face.ended("pre-s2", "failed")

    monkeypatch.setattr(console, "_console", lambda _: drawn)
    monkeypatch.setattr(status.time, "sleep", sleep)
    face.ended("pre-s1", "done", 4.5)
    face("status", "--watch")
    assert ["1 failed" in frame for frame in frames] == [False, True]
