"""`gpas forget`: results retire with the stages that build on them, stay on the disk, and can be restored."""

from face import Face
from scored import finish_cells

from gpas_cli.store.maintenance import rebuild
from gpas_cli.store.rundir import attempts


def states(face: Face, *names: str) -> dict[str, str]:
    cells = face("status", *names, "--json").json["cells"]
    return {f"{cell['grid']}/{cell['name']}": cell["state"] for cell in cells}


def test_a_forgotten_result_is_in_no_table_and_runs_again(face: Face) -> None:
    face.attempt("pre-s1")  # interrupted, before the attempt with the result
    done = face.ended("pre-s1", "done", 8.0)
    face.ended("pre-s2", "done", 4.0)
    (done.path / "kept.txt").write_text("still here")
    assert "6.00" in face("table").out
    said = face("forget", "small/pre-s1", "--why", "wrong text", "--yes")
    assert "small/pre-s1: done: perplexity 8.00" in said.out
    assert "small/pre-s1: forgotten (2 attempts)" in said.out
    assert states(face, "small")["small/pre-s1"] == "missing"
    assert "its result was forgotten" in face("status", "small").out
    printed = face("table").out
    assert "4.00" in printed
    assert "6.00" not in printed
    assert "directories are gone" not in printed
    assert (done.path.with_name(".forgotten-002") / "kept.txt").read_text() == "still here"
    assert face.ended("pre-s1", "done", 2.0).number == 3


def test_undoing_restores_numbers_and_directories(face: Face) -> None:
    done = face.ended("pre-s1", "done", 8.0)
    face("table")
    before = face("table", "--json").json
    face("forget", "small/pre-s1", "--yes")
    assert "restored (1 attempt)" in face("forget", "small/pre-s1", "--undo").out
    assert face("table", "--json").json == before
    assert sorted(path.name for path in done.path.iterdir()) == ["attempt.json", "journal.jsonl", "log.txt"]
    assert "no result of small/pre-s1 was forgotten" in face("forget", "small/pre-s1", "--undo", expect=2).err


def test_stages_that_build_on_a_forgotten_one_are_forgotten_with_it_and_restored_after_a_rebuild(face: Face) -> None:
    finish_cells(face)
    said = face("forget", "scored/pre", "--stage", "pretrain", "--yes", "--json").json
    trained = face.entries("scored")[0].cell
    assert [stage["key"] for stage in said["stages"]] == [trained.trained.key, trained.key]
    assert states(face, "scored") == {"scored/pre": "missing", "scored/pre-gpas": "done"}
    rebuild(str(face.folder / "gpas.db"), face.runs)
    restored = face("forget", "scored/pre", "--stage", "pretrain", "--undo").out
    assert restored == "scored/pre: restored (1 attempt)\n" * 2
    assert states(face, "scored") == {"scored/pre": "done", "scored/pre-gpas": "done"}


def test_by_default_only_the_last_stage_is_forgotten(face: Face) -> None:
    finish_cells(face)
    face("forget", "scored/pre", "--yes")
    cell = face.entries("scored")[0].cell
    assert attempts(face.runs, cell.trained.key)
    assert not attempts(face.runs, cell.key)


def test_what_cannot_be_forgotten_is_refused_and_nothing_changes(face: Face) -> None:
    assert "name cells or a grid" in face("forget", expect=2).err
    assert "nothing to forget: small/pre-s1 has no attempt" in face("forget", "small/pre-s1", expect=2).err
    face.ended("pre-s1", "done", 8.0)
    assert "has no stage 'finetune'" in face("forget", "small/pre-s1", "--stage", "finetune", expect=2).err
    assert states(face, "small")["small/pre-s1"] == "done"


def test_why_shows_what_was_forgotten(face: Face) -> None:
    face.ended("pre-s1", "done", 8.0)
    face("forget", "small/pre-s1", "--why", "wrong text", "--yes")
    said = face("why", "small/pre-s1").out
    assert "attempt 1: forgotten: it was done; by " in said
    assert said.rstrip().splitlines()[-2].endswith(": wrong text")
    assert face("why", "small/pre-s1", "--json").json["stages"][0]["forgotten"][0]["why"] == "wrong text"
