"""Following a log: no line is cut in two, and none is lost."""

from __future__ import annotations

from pathlib import Path

from gpas_cli.cli.logs import _text


def test_a_line_that_is_being_written_is_told_when_it_is_whole(tmp_path: Path) -> None:
    path, offsets = tmp_path / "log.txt", dict[Path, int]()
    told: list[list[str]] = []
    for piece in ("one\ntw", "o\n", "", "three"):
        with path.open("a") as file:
            file.write(piece)
        told.append(list(_text(path, offsets, False)))
    assert told == [["one"], ["two"], [], []]
    assert list(_text(path, offsets, True)) == ["three"]
