"""Every command that reads the database prints the same bytes whether it is SQLite or Postgres."""

import math
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from cases import file_text, tables
from command_list import COMMANDS
from face import TRAINED, Face
from postgres_server import needs_server, new_database, running_server
from scored import finish_cells, finish_external, score

from gpas_cli import results

CLAIMS = file_text("experiments/claims_of_small.yaml")
# What each command is called with; a second time with --json, if it has that option.
READERS: dict[str, list[str]] = tables("cli/cases.yaml")["both_databases_agree"]
# They read files and settings alone, act on run directories, print the machine's load, or run until they are stopped.
OTHERS = {
    *("init", "bench", "train", "explain", "evaluate", "export", "doctor"),
    *("cancel", "retry", "forget", "figure convergence"),  # the last needs 400 updates or more
    *("theory bounds", "theory stability", "theory norms", "theory length", "theory depth", "theory coordinates"),
    *("data prepare", "data status", "data check", "data import-task", "db backup", "db merge"),
}
FRAMES: dict[str, tuple[str, ...]] = {  # of the notebook's interface, with the arguments of each
    "cells": (), "metrics": (), "curves": (), "layer_curves": (), "table": ("small",), "claims": (),
}  # fmt: skip
strftime = time.strftime
OPTIONS = {path.removeprefix("gpas "): {o for p in command.params for o in p.opts} for path, command in COMMANDS}


@pytest.mark.whole
def test_every_command_is_here() -> None:
    assert OPTIONS.keys() == READERS.keys() | OTHERS


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """Return the URL of a database whose collation is that of a language, as on most servers."""
    with running_server() as server:
        yield new_database(server, "TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'")


@pytest.mark.long
@needs_server
def test_both_databases_agree(face: Face, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undeclared = _project(face)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    clock = time.strftime("%H:%M:%S")
    monkeypatch.setattr(time, "strftime", lambda form, *at: clock if form == "%H:%M:%S" else strftime(form, *at))
    for command, calls in READERS.items():
        for words in calls:
            for more in ("", "--json") if "--json" in OPTIONS[command] else ("",):
                call = f"{command} {words} {more}".replace("UNDECLARED", undeclared)
                print(call)
                said, files = [], []
                for url in ("sqlite:///gpas.db", postgres_url):
                    monkeypatch.setenv("GPAS_DB", url)
                    said.append(face(*shlex.split(call), expect=None))
                    files.append({path.name: path.read_bytes() for path in _written(face.folder)})
                assert said[0].code in (0, 3), call
                assert said[0] == said[1], call
                assert files[0] == files[1], call
    for name, call in FRAMES.items():
        frames = []
        for url in ("sqlite:///gpas.db", postgres_url):
            monkeypatch.setenv("GPAS_DB", url)
            frames.append(getattr(results.open(face.folder), name)(*call))
        pd.testing.assert_frame_equal(*frames)


def _written(folder: Path) -> Iterator[Path]:
    yield from folder.glob("report.html")


def _project(face: Face) -> str:
    """Record runs of all kinds, and return the key of one whose cell is not declared."""
    finish_cells(face)
    declared = (face.folder / "experiments.yaml").read_text()
    face.declare(declared.replace("seed: [1, 2]", "seed: [1, 2, 3]", 1))
    face.ended("post-gpas-s3", "done", 5.0)
    key = face.entry("post-gpas-s3").key
    face.declare(declared + CLAIMS)
    for place, entry in enumerate(face.entries()):
        if not entry.name.startswith("post-s"):
            face.ended(entry.name, "done", 100.0 / 3 - place)
    face.ended("pre-s2", "failed", cause="died\0 of \ud800")
    face.ended("post-s1", "diverged", math.nan)
    face.attempt("post-s2", *TRAINED[:4], log="\u00e9t\u00e9\n")
    finish_external(face, "zeta", "ab" * 8, score("indent", 0.5), score("bracket", math.inf), score("Arc", 0.25))
    finish_external(face, "Alpha", "cd" * 8, score("indent", 0.75))
    return key
