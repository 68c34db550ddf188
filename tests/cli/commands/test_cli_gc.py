"""`gpas gc`: lists by default, deletes by rule, and never what a run resumes from or a later stage needs."""

import re
from dataclasses import replace

from attempts import attempt_at
from face import TRAINED, Face, end
from scored import declare_scored

from gpas_cli.checkpoints import path_of
from gpas_cli.events import event_of
from gpas_cli.grid.load import load
from gpas_cli.grid.variant import vary
from gpas_cli.store.rundir import AttemptDir

ENDED = ("outcome", end("done"))


def with_checkpoints(attempt: AttemptDir, *steps: int) -> AttemptDir:
    for step in steps:
        folder = path_of(attempt.checkpoints, step)
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(bytes(10_000))
    return attempt


def left(attempt: AttemptDir) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in attempt.checkpoints.iterdir())


def test_checkpoints_that_a_stage_averages_stay_with_the_last_one(face: Face) -> None:
    cadence = replace(face.entry("pre-s1").cadence, keep=(2,))
    done = with_checkpoints(face.recorded(replace(face.entry("pre-s1"), cadence=cadence), *TRAINED, ENDED), 1, 2, 4)
    face("gc", "--delete", "--yes")
    assert left(done) == [2, 4]
    face("gc", "--rule", "finished", "--delete", "--yes")
    assert left(done) == []


def test_a_training_that_an_unfinished_stage_builds_on_keeps_its_last_checkpoint(face: Face) -> None:
    declare_scored(face)
    trained = [event_of({"kind": kind, **fields}) for kind, fields in TRAINED]
    done = event_of({"kind": "outcome", **end("done", metrics={"perplexity": 4.5})})
    first, second = face.entries("scored")
    needed = with_checkpoints(attempt_at(face.runs, first, [*trained, done]), 4)
    spare = with_checkpoints(attempt_at(face.runs, second, [*trained, done]), 4)
    attempt_at(face.runs, second, [*trained, event_of({"kind": "outcome", **end("done")})], place=1)
    face("gc", "scored", "--rule", "finished", "--delete", "--yes")
    assert (left(needed), left(spare)) == ([4], [])


def test_a_cell_of_settings_counts_in_no_grid(face: Face) -> None:
    face.ended("pre-s1", "done", 8.0)
    (varied,) = vary(load(face.folder / "experiments.yaml"), [face.entry("pre-s1")], ["optim.lr=5e-3"])
    face.recorded(varied, *TRAINED, ("outcome", end("done")))
    table = face("gc").out
    assert re.search(r"^small +8 ", table, re.MULTILINE)
    assert re.search(r"^\(declared by no grid\) +1 ", table, re.MULTILINE)
