"""`gpas status`: a summary per grid, the cells that need attention, what fits on a screen and is drawn again."""

import io
import re
from collections.abc import Iterator

import pytest
from face import EXPERIMENTS, START, TRAINED, Face, alive, end, step
from rich.console import Console, Group

from gpas_cli import period
from gpas_cli.cli import console, selection
from gpas_cli.cli.commands import status
from gpas_cli.cli.commands.status import View
from gpas_cli.cli.selection import observed


@pytest.fixture
def cells(face: Face) -> Iterator[Face]:
    """Of the eight cells one runs, one has failed and two are done, one of these with half the other's perplexity."""
    face.ended("pre-s1", "done", 8.0)
    face.ended("pre-s2", "done", 4.0)
    face.ended("post-s1", "failed", cause="no luck")
    with alive(face.attempt("post-s2", ("start", START), ("step", step(1)), ("step", step(2)))):
        yield face


def test_the_summary_fits_24_lines_with_each_name_whole(cells: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("post-s1", "post-gpas-s1", "post-gpas-s2", "pre-gpas-s1", "pre-gpas-s2"):
        cells.ended(name, "failed", cause="no luck " * 20)
    drawn = Console(file=io.StringIO(), width=80, height=14, color_system=None, force_terminal=True)
    monkeypatch.setattr(console, "_console", lambda _: drawn)
    cells("status")
    lines = drawn.file.getvalue().splitlines()
    assert len(lines) < 14
    listed = [line.split()[0] for line in lines if line.startswith("small/")]
    assert listed == ["small/post-s2", "small/pre-gpas-s1", "small/pre-gpas-s2"]
    assert any(line.startswith("and 3 more: 3 failed") for line in lines)


def test_of_a_single_large_grid_what_needs_attention_is_listed(cells: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    cells.declare(EXPERIMENTS.partition("  shares:")[0])
    assert cells("status").out.count("-s") == 8
    monkeypatch.setattr(status, "_LISTED_WHOLE", 7)
    text = cells("status").out
    assert [line.split()[0] for line in text.splitlines() if "-s" in line] == ["small/post-s2", "small/post-s1"]
    assert "`gpas status --all` lists every cell" in text
    assert cells("status", "--all").out.count("-s") == 8


def test_a_named_grid_lists_all_its_cells(cells: Face) -> None:
    text = cells("status", "small").out
    assert text.startswith("small\ncell")
    rows = {line.split()[0]: line for line in text.splitlines() if "-s" in line}
    assert len(rows) == 8
    assert re.search(r"finished \d+ s ago", rows["pre-s1"])
    assert re.search(r"ended \d+ s ago: no luck", rows["post-s1"])
    cells.attempt("post-s1", *TRAINED, ("outcome", end("interrupted")))
    assert re.search(r"post-s1 .* interrupted +ended \d+ s ago, saved at update 4\n", cells("status", "small").out)


@pytest.mark.parametrize("height", [9, 16, 40])
def test_the_brief_view_fits_the_screen(cells: Face, height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    selection.experiments.cache_clear()
    states = observed(None, None, started=False)
    drawn = Console(file=io.StringIO(), width=60, height=height, color_system=None, force_terminal=True)
    monkeypatch.setattr(console, "_console", lambda _: drawn)
    drawn.print(Group(*View(brief=True).parts(states)))
    lines = drawn.file.getvalue().splitlines()
    assert len(lines) < height or height == 9  # on a smaller screen the first lines have scrolled away
    assert "small/post-s2" in "".join(lines[: height - 1])  # what runs is shown on however small a screen


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
