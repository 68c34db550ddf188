"""`gpas history`, and the commands that add to it."""

from face import Face

from gpas_cli.store.history import FILE


def test_commands_that_change_cells_are_listed_with_their_user(face: Face) -> None:
    assert "no command has changed a cell yet" in face("history").out
    face.ended("pre-s1", "done", 9.0)
    face("forget", "pre-s1", "--why", "a wrong tokenizer", "--yes")
    face("forget", "pre-s1", "--undo")
    with (face.runs / FILE).open("a") as file:
        file.write('{"t": 1\n[]\n')  # a crash, or another program
    face("forget", "pre-s1", "--yes")
    lines = face("history").out.splitlines()
    assert [line.split("  ")[2:] for line in lines] == [
        ["forget", "small/pre-s1 (a wrong tokenizer)"], ["restore", "small/pre-s1"], ["forget", "small/pre-s1"]
    ]  # fmt: skip
    newest = face("history", "--limit", "1", "--json").json["commands"]
    assert [(deed["what"], deed["cells"], deed["how"]) for deed in newest] == [("forget", ["small/pre-s1"], "")]
