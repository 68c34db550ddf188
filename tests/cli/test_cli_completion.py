"""Completion of values, typed into the real shells."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from face import Face

from gpas_cli.cli import options, selection
from gpas_cli.cli.bash_words import rejoined
from gpas_cli.cli.commands.figure import complete_paper
from gpas_cli.cli.commands.plan import complete_gpu
from gpas_cli.cli.commands.table import complete_table

SET_UP = {
    "bash": ('eval "$(_GPAS_COMPLETE=source_bash gpas)"', ["--norc", "--noprofile", "-i"]),
    "zsh": ('autoload -Uz compinit; compinit -u; bindkey -e; eval "$(_GPAS_COMPLETE=source_zsh gpas)"', ["-f", "-i"]),
    "fish": ("_GPAS_COMPLETE=source_fish gpas | source", ["--no-config", "-i"]),
}
LINES = {
    "gpas status quickstart --where norm=sa": "gpas status quickstart --where norm=sandwich",
    "gpas explain quickstart/pre-gpas-s": "gpas explain quickstart/pre-gpas-s",  # Several cells begin so.
    "gpas stat": "gpas status",
    "gpas run quickstart-ab": "gpas run quickstart-ablations",
    "gpas train pre-s1 optim.lr": "gpas train pre-s1 optim.lr=",
}


@pytest.mark.parametrize(
    ("words", "current", "whole"),
    [
        (["gpas", "status", "--where", "norm", "="], 4, (["gpas", "status", "--where", "norm="], 3, "norm=")),
        (["gpas", "status", "--where", "norm", "=", "s"], 5, (["gpas", "status", "--where", "norm=s"], 3, "norm=")),
        (["gpas", "table", "gpas", ":", "2"], 4, (["gpas", "table", "gpas:2"], 2, "gpas:")),
        (["gpas", "sta"], 1, (["gpas", "sta"], 1, "")),
        (["gpas", "plan", ""], 2, (["gpas", "plan", ""], 2, "")),
        (["gpas", "status", "--where", "a", "=", "b", ""], 6, (["gpas", "status", "--where", "a=b", ""], 4, "")),
    ],
)  # fmt: skip
def test_pieces_of_bash_are_words_again(words: list[str], current: int, whole: tuple[list[str], int, str]) -> None:
    assert rejoined(words, current) == whole


@pytest.mark.long
@pytest.mark.parametrize("shell", SET_UP)
def test_values_are_completed(shell: str, tmp_path: Path) -> None:
    """The Tab key completes what is unique; Ctrl-A and `echo` then print the line instead of running it."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environ = {"HOME": str(tmp_path), "PATH": path, "TERM": "dumb", "LC_ALL": "C.UTF-8"}
    subprocess.run(["gpas", "init"], cwd=tmp_path, env=environ, check=True, capture_output=True)
    set_up, options = SET_UP[shell]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(shutil.which(shell) or shell, [shell, *options], environ)
    try:
        os.write(terminal, f"{set_up}\n".encode())
        for number, (typed, completed) in enumerate(LINES.items()):
            os.write(terminal, f"{typed}\t\x01echo {number}: \x05\n".encode())
            assert f"{number}: {completed}" in said_until(terminal, f"\n{number}: ")
    finally:
        os.close(terminal)
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def said_until(terminal: int, mark: str, seconds: float = 60.0) -> str:
    """Return what the terminal shows until a line after the mark has ended."""
    said = ""
    end = time.monotonic() + seconds
    while mark not in said or "\n" not in said.rpartition(mark)[2]:
        ready, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"the shell has said only {said!r}"
        said += os.read(terminal, 4096).decode(errors="replace").replace("\r", "")
    return said


@pytest.mark.parametrize(
    ("complete", "begun", "offered"),
    [
        (options.complete_cell_or_setting, "optim.l", "optim.lr="),
        (options.complete_grid_or_setting, "optim.l", "optim.lr="),
        (options.complete_grid_or_setting, "sm", "small"),
        (options.complete_printed, "raptr:", "raptr:7"),
        (complete_table, "spike:", "spike:2"),
        (complete_paper, "gpas-3", "gpas-3a"),
        (complete_gpu, "H10", "H100"),
    ],
)  # fmt: skip
def test_each_kind_of_name_is_offered(
    face: Face, complete: Callable[[str], list[str]], begun: str, offered: str
) -> None:
    selection.experiments.cache_clear()
    assert offered in complete(begun)
    assert complete("no such name") == []
