"""`gpas run claims` with made-up results: verdicts, rounds, added seeds, interruptions and failures.

`gpas run tuned` and claims about tuned cells.
"""

import json
import random
from typing import Any

import pytest
from cases import cases, file_text
from face import EXPERIMENTS, Face, Said
from goldens import as_yaml, compact, compare, golden_cases

from gpas_cli.errors import Exit
from gpas_cli.extensions.campaigns import run_claims
from gpas_cli.extensions.campaigns.halving import Method, Trial, rounds
from gpas_cli.grid.companions import seeds_path
from gpas_cli.grid.load import load

CLAIMS = file_text("experiments/campaigns.yaml")
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


@pytest.mark.parametrize("title", golden_cases("campaigns"))
def test_a_campaign_is_that_of_the_golden_file(claimed: Face, title: str) -> None:
    case = golden_cases("campaigns")[title]
    write_numbers(claimed, case["effects"])
    (claimed.folder / "acts.json").write_text(json.dumps(case.get("acts", {})))
    said = claimed("run", "claims", *case["words"], *LOCAL, expect=None)
    found = claimed("run", "claims", *case["words"], *LOCAL, "--json", expect=None).json
    last = said.out.rpartition("verdict")[2].partition("\n")[2]  # the evidence after the last round
    assert found["rounds"] == 0, "the second time"
    text = f"exit {said.code}\n{last}{as_yaml(compact(found), flow=None)}ran: {' '.join(sorted(ran(claimed)))}"
    compare("campaigns", title, text)


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
    began = []

    def dying(scheduler: Any, here: Any, cells: Any, options: Any) -> Any:
        began.append(cells)
        if len(began) == 1:
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


def test_mistakes_are_named(claimed: Face) -> None:
    assert "did you mean 'helps'" in claimed("run", "claims", "help", expect=Exit.USAGE).err
    missing = claimed("run", "claims", "gpas-lowers-perplexity", "--toy", expect=Exit.USAGE).err
    assert "needs quickstart, which experiments.yaml does not declare" in missing


def write_rates(face: Face, best: dict[str, float]) -> None:
    """Give each training of Pre-LN a perplexity that grows with the distance, in factors, of its rate from the best."""
    numbers = {}
    for name, rate in best.items():
        for factor in (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64):
            value = float(f"{1e-3 * factor:.6g}")
            distance = max(value / rate, rate / value)
            for words in ("", "+steps1+warmup0"):
                numbers[f"{name}-s1+lr{value:g}{words}"] = 8 + distance
            numbers[f"{name}-s1"] = 8 + max(1e-3 / rate, rate / 1e-3)
    (face.folder / "numbers.json").write_text(json.dumps(numbers))


def test_rounds_get_fewer_and_longer() -> None:
    assert rounds(2) == [(2, 1)]
    assert rounds(3) == [(3, 4), (2, 1)]
    assert rounds(8) == [(8, 4), (4, 2), (2, 1)]


def test_the_best_of_a_round_has_a_worse_neighbour_on_both_sides_in_that_round() -> None:
    """Short trainings prefer 4 and 8; whole ones 2, which the last round reaches from above."""
    method = Method("pre", None, 4.0, (1.0, 2.0, 4.0, 8.0))  # type: ignore[arg-type]
    method.trials = [Trial(value, 4, abs(value - 5.9)) for value in method.values]
    assert method.beyond() is None
    for value in method.ranked()[:2]:
        method.trials.append(Trial(value, 1, abs(value - 2)))
    tried = []
    while (value := method.beyond()) is not None:
        tried.append(value)
        method.trials.append(Trial(value, 1, abs(value - 2)))
    assert (tried, method.best, method.at_edge) == ([2.0, 1.0], 2.0, False)
    assert method.values == (1.0, 2.0, 4.0, 8.0)


@pytest.mark.parametrize("title", golden_cases("tuned"))
def test_a_search_is_that_of_the_golden_file(face: Face, title: str) -> None:
    """It runs twice: the second time is free, but for trials that failed."""
    case = golden_cases("tuned")[title]
    write_rates(face, case["rates"])
    (face.folder / "acts.json").write_text(json.dumps(case.get("acts", {})))
    words = ("run", "tuned", "small", *case["words"], *LOCAL)
    found = compact(face(*words, "--json", expect=None).json)
    said = face(*words, expect=None)
    file = face.folder / "experiments.tuned.yaml"
    jobs = sorted(line.rpartition(" ")[0] for line in (face.folder / "ran.txt").read_text().splitlines())
    text = said.out[said.out.index("Validation perplexity by") :] + said.err + as_yaml(found, flow=None)
    compare("tuned", title, "\n".join([text, file.read_text() if file.exists() else "nothing is tuned", *jobs]))


@pytest.mark.long
def test_claims_about_tuned_cells(face: Face) -> None:
    refused = face("claims", "gate-lowers", "--tuned", expect=Exit.USAGE).err
    assert "small is not tuned; `gpas run tuned small`" in refused
    write_rates(face, {"pre": 2e-3, "pre-gpas": 5e-4, "post": 1e-3, "post-gpas": 2e-3})
    said = face("run", "claims", "gate-lowers", "--tuned", "--max-seeds", "2", *LOCAL, "--json", expect=Exit.INCOMPLETE)
    assert [part["seeds"] for part in said.json["claims"][0]["parts"]] == [[1, 2], [1, 2]]
    assert "Validation perplexity by optim.lr" in said.err
    (claim,) = face("claims", "gate-lowers", "--tuned", "--json").json["claims"]
    effects = [[seed["effect"] is not None for seed in part["seeds"]] for part in claim["parts"]]
    assert effects == [[False, True]] * 2  # seed 1 chose the rates
    assert claim["command"] == "gpas run claims gate-lowers --tuned --max-seeds 8"
    assert "gate-lowers, tuned: undecided" in face("claims", "gate-lowers", "--tuned").out
    untuned = face("claims", "gate-lowers", "--json").json["claims"][0]["parts"][0]
    assert [seed["own"] is not None for seed in untuned["seeds"]] == [True, False]  # a trial at the declared rate


@cases("extensions/cases.yaml")
def test_what_cannot_be_tuned_is_refused(face: Face, words: list[str], expected: str) -> None:
    assert expected in face("run", "tuned", *words, *LOCAL, expect=Exit.USAGE).err


def test_a_dry_run_says_what_the_search_costs(face: Face) -> None:
    said = face("run", "tuned", "small", "--dry-run")
    assert "4 methods, each with 5 values of optim.lr: 5 in 1/4 of the updates, 2 in whole trainings" in said.out
    assert "20 jobs to start" in said.out
    assert not (face.folder / "ran.txt").exists()
