"""What a command shows while it computes, and views that are drawn again and again."""

import io

import pytest
from face import EXPERIMENTS, START, Face, end
from rich.console import Console

from gpas_cli import period
from gpas_cli.cli import console, watch


def test_a_log_gets_few_messages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    monkeypatch.setattr(period.time, "monotonic", lambda: now)
    with console.working("measuring") as show:
        for number in range(20):
            show(f"update {number}")
            now += console.LOG_SECONDS / 10
    assert capsys.readouterr().err == "update 0\nupdate 10\n"


def test_a_view_follows_the_experiments_file_while_it_is_open(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid and runs that are added are shown; a mistake is shown until it is mended."""
    drawn = Console(file=io.StringIO(), width=100, height=40, color_system=None, force_terminal=True)
    frames: list[str] = []
    later = """\
  later:
    base: {size: toy, data: notes, optim: {lr: 1e-3, warmup: 1, steps: 4, batch: 2}}
    axes: {norm: [peri]}
"""
    changed = EXPERIMENTS.replace("claims:\n", f"{later}claims:\n")

    def sleep(seconds: float) -> None:
        frames.append(drawn.file.getvalue())  # type: ignore[attr-defined]
        drawn.file = io.StringIO()
        if len(frames) == 1:
            face.declare(changed)
            face.recorded(face.entry("peri", "later"), ("start", START), ("outcome", end("failed")))
        elif len(frames) == 2:
            face.declare("version: 1\n")
        elif len(frames) == 3:
            face.declare(changed)
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr(console, "_console", lambda _: drawn)
    monkeypatch.setattr(watch.time, "sleep", sleep)
    face.ended("pre-s1", "done", 4.5)
    face("status", "--watch")
    assert ["later" in frame for frame in frames] == [False, True, False, True]
    assert "grids" in frames[2]
