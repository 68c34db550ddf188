"""`gpas run claims` with made-up results: verdicts, rounds, added seeds, interruptions and failures."""

import json
import random
from typing import Any

import pytest
from face import EXPERIMENTS, Face, Said

from gpas_cli.errors import Exit
from gpas_cli.extensions.campaigns import run_claims
from gpas_cli.grid.companions import seeds_path
from gpas_cli.grid.load import load

CLAIMS = """\
claims:
  helps:
    statement: GPAS lowers the perplexity of Pre-LN.
    grids: [small]
    subject: {norm: pre, gate: gpas}
    against: {gate: none}
    expect: lower
  helps-everywhere:
    statement: GPAS lowers the perplexity of every scheme.
    grids: [small]
    subject: {gate: gpas}
    against: {gate: none}
    by: [norm]
    expect: lower
"""
GRIDS = EXPERIMENTS.partition("claims:")[0]
LOCAL = ("--executor", "local", "--yes")


@pytest.fixture
def claimed(face: Face) -> Face:
    face.declare(GRIDS + CLAIMS)
    return face


def write_numbers(face: Face, effects: dict[str, float], spread: float = 0.2) -> None:
    """Give each scheme's GPAS cells a mean effect on perplexity, with some noise by seed."""
    chooser = random.Random(1)
    numbers = {}
    for norm in ("pre", "post"):
        for seed in range(1, 20):
            base = 8 + chooser.gauss(0, 1)
            numbers[f"{norm}-s{seed}"] = base
            numbers[f"{norm}-gpas-s{seed}"] = base + effects.get(norm, 0.0) + chooser.gauss(0, spread)
    (face.folder / "numbers.json").write_text(json.dumps(numbers))


def run(face: Face, *words: str, expect: Exit = Exit.DONE) -> Any:
    return face("run", "claims", *words, *LOCAL, "--json", expect=expect).json


def ran(face: Face) -> list[str]:
    """Return the names of the jobs that ran, in order; a cell that ran twice is there twice."""
    path = face.folder / "ran.txt"
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def test_a_true_claim_is_supported_and_a_second_run_does_nothing(claimed: Face) -> None:
    write_numbers(claimed, {"pre": -1.0})
    found = run(claimed, "helps")
    (claim,) = found["claims"]
    (part,) = claim["parts"]
    assert claim["verdict"] == "supported"
    assert part["seeds"] == list(range(1, len(part["seeds"]) + 1))
    assert 4 <= len(part["seeds"]) <= 8
    assert part["interval"][1] < 0
    assert part["e_for"] >= 20
    assert found["added"] == {"small": dict.fromkeys(("pre-gpas", "pre"), part["seeds"][2:])}
    assert sorted(ran(claimed)) == sorted(f"{name}-s{seed}" for name in ("pre", "pre-gpas") for seed in part["seeds"])
    again = run(claimed, "helps")
    assert again["rounds"] == 0
    assert again["claims"] == found["claims"]
    assert len(ran(claimed)) == 2 * len(part["seeds"])
    check_added_seeds(claimed, part)


def check_added_seeds(claimed: Face, decided: Any) -> None:
    """Check that added seeds are cells of the grid for every command."""
    status = claimed("status", "small", "--json", expect=None).json
    assert {f"pre-gpas-s{seed}" for seed in decided["seeds"]} <= {cell["name"] for cell in status["cells"]}
    table = claimed("table", "small").out
    assert "seed added to decide a claim" in table
    (part,) = claimed("claims", "helps", "--json").json["claims"][0]["parts"]
    assert (part["test"], part["verdict"]) == ("sequential", "supported")
    assert part["interval"] == decided["interval"]
    assert "sequential" in claimed("claims", "helps").out
    assert claimed("why", "pre-gpas-s3").code == 0
    assert "no job to start" in claimed("run", "grid", "small", "--where", "norm=pre", *LOCAL).out


def test_a_claim_without_an_effect_stays_undecided(claimed: Face) -> None:
    write_numbers(claimed, {"pre": 0.0})
    said = claimed("run", "claims", "helps", *LOCAL, "--max-seeds", "6", expect=Exit.INCOMPLETE)
    assert "helps is undecided with 6 seeds; --max-seeds 12 continues." in said.out
    assert len(ran(claimed)) == 12


def test_a_false_claim_is_contradicted(claimed: Face) -> None:
    write_numbers(claimed, {"pre": 1.0})
    found = run(claimed, "helps")
    assert found["claims"][0]["verdict"] == "contradicted"
    assert found["claims"][0]["parts"][0]["e_against"] >= 20


def test_one_part_that_does_not_hold_decides_the_claim(claimed: Face) -> None:
    write_numbers(claimed, {"pre": -1.0, "post": 3.0})
    found = run(claimed, "helps-everywhere")
    assert found["claims"][0]["verdict"] == "contradicted"
    verdicts = {part["labels"]["norm"]: part["verdict"] for part in found["claims"][0]["parts"]}
    assert verdicts["post"] == "contradicted"


def test_seeds_go_where_a_decision_is_likely(claimed: Face) -> None:
    """After four seeds each, the part with a large effect is decided; only the other one gets more."""
    write_numbers(claimed, {"pre": -5.0, "post": 0.0})
    found = run(claimed, "helps-everywhere", "--max-seeds", "6", expect=Exit.INCOMPLETE)
    parts = {part["labels"]["norm"]: part for part in found["claims"][0]["parts"]}
    assert parts["pre"]["verdict"] == "supported"
    assert len(parts["pre"]["seeds"]) < len(parts["post"]["seeds"]) == 6


def test_where_limits_what_is_run_and_not_what_is_judged(claimed: Face) -> None:
    write_numbers(claimed, {"pre": -5.0, "post": -5.0})
    found = run(claimed, "helps-everywhere", "--where", "norm=pre", expect=Exit.INCOMPLETE)
    parts = {part["labels"]["norm"]: part for part in found["claims"][0]["parts"]}
    assert parts["pre"]["verdict"] == "supported"
    assert parts["post"]["seeds"] == []
    assert not any("post" in name for name in ran(claimed))


def test_a_dry_run_changes_nothing(claimed: Face) -> None:
    found = claimed("run", "claims", "helps", *LOCAL, "--dry-run", "--json", expect=Exit.INCOMPLETE).json
    (following,) = found["next"]
    assert following["seeds"] == [1, 2, 3, 4]
    assert len(following["cells"]) == 8
    assert "small/pre-gpas-s4" in following["cells"]
    assert not claimed.runs.exists()
    assert not seeds_path(claimed.folder / "experiments.yaml").exists()


class Killed(BaseException):
    """Stands in for a SIGKILL of this process: nothing after it is carried out."""


@pytest.mark.long
def test_a_killed_command_resumes_to_the_same_evidence(
    claimed: Face, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Killed in the second round, when its seeds are written and only one of its jobs has run."""
    write_numbers(claimed, {"pre": -0.4})
    real = run_claims.run_to_end
    rounds = []

    def dying(scheduler: Any, here: Any, cells: Any, options: Any) -> Any:
        rounds.append(cells)
        if len(rounds) == 1:
            return real(scheduler, here, cells, options)
        real(scheduler, here, cells[:1], options)
        raise Killed

    monkeypatch.setattr(run_claims, "run_to_end", dying)
    with pytest.raises(Killed):
        claimed("run", "claims", "helps", *LOCAL)
    monkeypatch.setattr(run_claims, "run_to_end", real)
    resumed = run(claimed, "helps")
    straight = straight_run(claimed, tmp_path_factory)
    assert resumed["claims"] == straight["claims"]
    assert len(ran(claimed)) == len(set(ran(claimed)))
    assert load(claimed.folder / "experiments.yaml").seeds.keys() == {"small"}


def straight_run(face: Face, folders: pytest.TempPathFactory) -> Any:
    """Return the document of the same campaign in a project of its own, without an interruption."""
    other = Face(folders.mktemp("straight") / "project", GRIDS + CLAIMS)
    (other.folder / "numbers.json").write_text((face.folder / "numbers.json").read_text())
    return run(other, "helps")


def test_a_failed_run_stops_its_part_and_is_named(claimed: Face) -> None:
    write_numbers(claimed, {"pre": -1.0})
    (claimed.folder / "acts.json").write_text(json.dumps({"pre-gpas-s2": "fail"}))
    said: Said = claimed("run", "claims", "helps", *LOCAL, expect=Exit.FAILED)
    assert "small/pre-gpas-s2 (failed)" in said.out
    assert ran(claimed).count("pre-gpas-s2") == 1
    (claimed.folder / "acts.json").unlink()
    claimed("retry", "pre-gpas-s2", *LOCAL)
    assert run(claimed, "helps")["claims"][0]["verdict"] == "supported"


def test_a_run_that_diverges_prevents_support(claimed: Face) -> None:
    write_numbers(claimed, {"pre": -5.0})
    (claimed.folder / "acts.json").write_text(json.dumps({"pre-gpas-s2": "diverged"}))
    found = run(claimed, "helps", "--max-seeds", "6", expect=Exit.INCOMPLETE)
    (part,) = found["claims"][0]["parts"]
    assert part["verdict"] == "undecided"
    assert part["effects"][1] == "inf"
    assert len(part["seeds"]) == 6


def test_mistakes_are_named(claimed: Face) -> None:
    assert "did you mean 'helps'" in claimed("run", "claims", "help", expect=Exit.USAGE).err
    missing = claimed("run", "claims", "gpas-lowers-perplexity", "--toy", expect=Exit.USAGE).err
    assert "needs quickstart, which experiments.yaml does not declare" in missing
