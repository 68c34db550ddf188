"""Cells with settings of the command line: what a run of them prints at its end, and which commands show them."""

from face import Face


def test_the_settings_of_a_run_show_its_cells_in_other_commands(face: Face) -> None:
    words = ("small", "optim.lr=7e-3", "--where", "norm=pre", "--where", "seed=1")
    run = face("run", "grid", *words, "--yes").out
    assert "2 done. Table: gpas table small optim.lr=7e-3 --where norm=pre --where seed=1" in run
    assert "pre-s1+lr0.007" in face("status", "--undeclared").out
    assert "pre-s1+lr0.007" in face("status", *words).out
    assert "2 cells: 2 done" in face("plan", *words).out
    table = face("table", *words).out
    assert "optim.lr=0.007 on the command line" in table
    cells = face("status", *words, "--json").json["cells"]
    assert len(cells) == 2
    assert all(f"{cell['metrics']['perplexity']:.2f}" in table for cell in cells)
    assert face("status", *words, "--json").json["grids"][0]["states"] == {"done": 2}


def test_a_grid_named_as_a_cell_is_called_a_grid(face: Face) -> None:
    said = face("explain", "small", expect=2)
    assert "'small' is a grid; name one of its cells: pre-s1, pre-s2, pre-gpas-s1, pre-gpas-s2" in said.err


def test_a_mistake_in_a_setting_is_named_once(face: Face) -> None:
    said = face("plan", "small", "optim.lr=abc", "norm=lsn", "gate={like: gpas, init: x}", expect=2).err
    assert said.splitlines() == [
        "gpas: norm=lsn: unknown scheme 'lsn'; did you mean 'lns'?",
        "gate={like: gpas, init: x}: gate.init: 'x' is not a number or a list of numbers",
        "optim.lr=abc: 'abc' is not a number",
    ]
