"""`gpas status`: a summary per grid, the cells that need attention, what fits on a screen and is drawn again."""

import io
import re
from collections.abc import Iterator

import pytest
from cases import cases
from face import EXPERIMENTS, START, TRAINED, Face, alive, end, step
from rich.console import Console, Group
from scored import finish_cells

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


def test_without_names_each_grid_is_summed_up_and_what_needs_attention_is_listed(cells: Face) -> None:
    cells.recorded(cells.entry("lns-s1", "shares"), ("outcome", end("interrupted")))
    lines = cells("status").out.splitlines()
    assert lines[0].split() == ["grid", "cells", "done", "running", "interrupted", "failed", "missing"]
    assert lines[1].split()[:6] == ["small", "8", "2", "1", "1", "4"]
    assert lines[2].split() == ["shares", "6", "2", "1", "3"]
    listed = [line.split()[0] for line in lines if line.startswith(("small/", "shares/"))]
    assert listed == ["small/post-s2", "small/post-s1", "shares/lns-s1"]
    assert (
        "10 cells, 4 of which belong to several grids: 2 done, 1 running, 1 interrupted, 1 failed, 5 missing" in lines
    )
    assert "`gpas status GRID` lists the cells of a grid" in lines


def test_without_names_grids_that_nobody_started_take_one_line(cells: Face) -> None:
    """pre-s1 of `shares` is done, too, because the grid shares it with `small`."""
    text = cells("status").out
    assert "shares" not in text
    assert "1 more grid has no run of its own: `gpas status --all`" in text
    assert "8 cells: 2 done, 1 running, 1 failed, 4 missing" in text
    assert re.search(r"shares +6 +2 +4", cells("status", "--all").out)
    assert "nothing is running or needs attention" in cells("status", "--where", "norm=pre").out


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


def test_a_run_of_several_grids_is_listed_in_the_one_that_was_started(cells: Face) -> None:
    run = cells.recorded(cells.entry("pre-gpas-s1", "shares"), ("start", START), ("step", step(1)))
    with alive(run):
        listed = [line.split()[0] for line in cells("status").out.splitlines() if "gpas-s1" in line]
        assert listed == ["shares/pre-gpas-s1"]
        running = [line for line in cells("status", "--watch").out.splitlines() if "pre-gpas-s1" in line]
        assert len(running) == 1
        assert "shares/pre-gpas-s1" in running[0]
        assert "shares" not in cells("status", "small", "--watch").out


def test_doctor_and_status_count_the_same_cells(cells: Face) -> None:
    counted = "10 cells, 4 of which belong to several grids"
    assert counted in cells("status", "--all").out
    assert any(counted in finding["detail"] for finding in cells("doctor", "--json").json["findings"])
    document = cells("status", "--json").json
    states = {"done": 2, "running": 1, "failed": 1, "missing": 6}
    assert document["total"] == {"cells": 10, "rows": 14, "states": states}
    assert [(grid["grid"], grid["cells"]) for grid in document["grids"]] == [("small", 8), ("shares", 6)]
    assert {cell["grid"] for cell in document["cells"]} == {"small"}  # `shares` was not started


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


@cases("cli/cases.yaml")
def test_cells_are_filtered_and_sorted(cells: Face, words: tuple[str, ...], names: list[str]) -> None:
    lines = cells("status", "small", *words).out.splitlines()
    assert [line.split()[0] for line in lines if line.split() and "-s" in line.split()[0]] == names
    document = cells("status", "small", *words, "--json").json["cells"]
    assert [cell["name"] for cell in document] == [name.rpartition("/")[2] for name in names]


def test_unlisted_cells_are_counted(cells: Face) -> None:
    assert "and 6 more: 4 missing, 2 done" in cells("status", "small", "--sort", "state", "--limit", "2").out
    assert "no cell is cancelled" in cells("status", "--state", "cancelled").out


@cases("cli/cases.yaml")
def test_a_state_or_order_that_does_not_exist(face: Face, words: tuple[str, ...], message: str) -> None:
    assert message in face("status", *words, expect=2).err


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


def test_cells_at_different_stages_name_their_results(face: Face) -> None:
    face.ended("pre-s1", "done", 8.0)
    finish_cells(face)
    one = face("status", "scored").out
    assert re.search(r"cell +key +state +accuracy", one)
    assert re.search(r"pre-gpas +\w+ +done +46\.00 %", one)
    several = face("status", "scored", "small", "--sort", "name").out
    assert re.search(r"cell +key +state +result", several)
    assert re.search(r"scored/pre-gpas +\w+ +done +accuracy 46\.00 %", several)
    assert re.search(r"done +perplexity \d", several)


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
