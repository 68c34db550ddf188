"""Completion of values, typed into the real shells."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cases import cases, tables
from face import Face

from gpas_cli.cli.app import rejoined

SET_UP = {
    "bash": ('eval "$(_GPAS_COMPLETE=source_bash gpas)"', ["--norc", "--noprofile", "-i"]),
    "zsh": ('autoload -Uz compinit; compinit -u; bindkey -e; eval "$(_GPAS_COMPLETE=source_zsh gpas)"', ["-f", "-i"]),
    "fish": ("_GPAS_COMPLETE=source_fish gpas | source", ["--no-config", "-i"]),
}
LINES = tables("cli/cases.yaml")["values_are_completed"]


@cases("cli/cases.yaml")
def test_pieces_of_bash_are_words_again(words: list[str], current: int, whole: list[object]) -> None:
    assert [*rejoined(words, current)] == whole


@pytest.mark.long
@pytest.mark.parametrize("shell", SET_UP)
def test_values_are_completed(shell: str, tmp_path: Path) -> None:
    """The Tab key completes what is unique; Ctrl-A and `echo` then print the line instead of running it."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environ = {"HOME": str(tmp_path), "PATH": path, "TERM": "dumb", "LC_ALL": "C.UTF-8"}
    subprocess.run(["gpas", "init", "--papers"], cwd=tmp_path, env=environ, check=True, capture_output=True)
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


@pytest.mark.whole
@cases("cli/cases.yaml")
def test_each_kind_of_name_is_offered(face: Face, monkeypatch: pytest.MonkeyPatch, typed: str, offered: str) -> None:
    """Commands that are not imported yet, their options, and the names of what the project declares."""
    key = face.entry("pre-s1").key
    found = completed(face, monkeypatch, *typed.replace("KEY", key[:6]).split())
    assert offered.replace("KEY", key) in found if offered else not found


def completed(face: Face, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """Return what bash is offered for the last of these words after `gpas`."""
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # or the program is "python -m pytest"
    monkeypatch.setenv("_GPAS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "\n".join(("gpas", *words)))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    return face().out.split()


def test_labels_are_offered_without_running_a_plugin(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    face.edit("version: 1", "version: 1\nplugins: [mine.py]", 1)
    face.edit("norm: [pre, post]", "norm: [pre, mine]")
    assert completed(face, monkeypatch, "status", "--where", "norm=m") == ["norm=mine"]
