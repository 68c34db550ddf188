"""`gpas forget`: results retire with the stages that build on them, stay on the disk, and can be restored."""

from face import Face
from scored import finish_cells

from gpas_cli.store.maintenance import rebuild
from gpas_cli.store.rundir import attempts


def states(face: Face, *names: str) -> dict[str, str]:
    cells = face("status", *names, "--json").json["cells"]
    return {f"{cell['grid']}/{cell['name']}": cell["state"] for cell in cells}


def test_stages_that_build_on_a_forgotten_one_are_forgotten_with_it_and_restored_after_a_rebuild(face: Face) -> None:
    finish_cells(face)
    said = face("forget", "scored/pre", "--stage", "pretrain", "--yes", "--json").json
    trained = face.entries("scored")[0].cell
    assert [stage["key"] for stage in said["stages"]] == [trained.trained.key, trained.key]
    assert states(face, "scored") == {"scored/pre": "missing", "scored/pre-gpas": "done"}
    rebuild(str(face.folder / "gpas.db"), face.runs)
    face("forget", "scored/pre", "--stage", "pretrain", "--undo")
    assert states(face, "scored") == {"scored/pre": "done", "scored/pre-gpas": "done"}


def test_by_default_only_the_last_stage_is_forgotten(face: Face) -> None:
    finish_cells(face)
    face("forget", "scored/pre", "--yes")
    cell = face.entries("scored")[0].cell
    assert attempts(face.runs, cell.trained.key)
    assert not attempts(face.runs, cell.key)
