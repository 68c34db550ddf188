"""The papers' claims: they fit the grids of the shipped experiments.yaml, and are selected by name, grid and source."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from gpas_cli.errors import GpasError, Problem
from gpas_cli.grid.claim import Claim
from gpas_cli.grid.claims import read_claims
from gpas_cli.grid.declared import Experiments
from gpas_cli.grid.document import read_document
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.grid.readers import root_of
from gpas_cli.project import packaged
from gpas_cli.report.checks import report_problems
from gpas_cli.report.claims.declared import FOLDER, all_claims, paper_claims, select_claims, undeclared_claims
from gpas_cli.report.claims.evaluate import evaluate
from gpas_cli.report.papers import SOURCES
from gpas_cli.report.recorded import Recorded

CLAIMS = [claim for sizes in paper_claims().values() for claim in sizes]
WITH_DIVERGED = {"large-rates-need-large-shortcuts"}
TITLES = [f"{claim.name}{' (toy)' if claim.toy else ''}" for claim in CLAIMS]


@cache
def shipped() -> Experiments:
    return load(packaged("experiments.yaml"))


@cache
def cells() -> Recorded:
    """Return the cells of all shipped grids, without results."""
    return Recorded(tuple(expand(shipped(), list(shipped().grids))))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_they_are_valid_as_claims_of_the_shipped_file(path) -> None:
    problems: list[Problem] = []
    part = root_of(read_document(path), problems).entries()["claims"]
    claims = read_claims(part, shipped().grids, shipped().grids)
    problems += report_problems(replace(shipped(), claims=claims))
    assert problems == []
    assert {claim.source.paper for sizes in claims.values() for claim in sizes} == {path.stem}
    assert path.stem in SOURCES


@pytest.mark.parametrize("claim", CLAIMS, ids=TITLES)
def test_every_comparison_finds_its_cells_and_bases(claim: Claim) -> None:
    verdict = evaluate(claim, cells())
    assert verdict.verdict == "undecided"
    assert verdict.missing
    assert verdict.command.startswith("gpas run grid ")
    compared = [part.comparison for part in verdict.parts]
    for comparison in claim.comparisons:
        assert comparison in compared, comparison.says
        labels = {axis: wanted for axis, wanted in comparison.subject.items() if axis in comparison.by}
        own = [part for part in verdict.parts if part.comparison is comparison]
        found = {(axis, part.labels[axis]) for part in own for axis in labels}
        assert found == {(axis, label) for axis, wanted in labels.items() for label in wanted}
    for part in verdict.parts:
        assert part.pairs, (part.title, part.reason)
        assert not part.reason
        # A published run that diverged has no number.
        assert part.published is not None or not part.comparison.published or claim.name in WITH_DIVERGED, part.title


@pytest.mark.parametrize("claim", CLAIMS, ids=TITLES)
def test_each_says_where_it_is_made(claim: Claim) -> None:
    assert claim.source.paper
    assert claim.source.where
    assert claim.statement.endswith(".")


@pytest.mark.parametrize(
    ("name", "effects"),
    [
        ("gpas-lowers-perplexity", {"Pre-LN, 71m": -0.74, "LNS, 1b": -0.77}),
        ("gpas-raises-accuracy", {"Pre-LN": 2.49, "DeepNorm": 9.71}),
        ("lns-lowers-perplexity", {"130m": -0.97, "1b": -1.31}),
        ("spikes-cost-perplexity", {"WikiText, embed plain": 1.29, "LAMBADA, embed detach": 1.35}),
        ("larger-rates-are-better", {"WikiText": -0.78, "LAMBADA": -0.56}),
        ("large-rates-need-large-shortcuts", {"lower at 1e-3, gpt-350m": -1.87, "higher at 1e-4, gpt-1.7b": 0.24}),
        ("stop-gradient-is-needed", {"gains less than 1 %": 21.34 / 21.35, "worse than GPAS": 21.34 / 20.35}),
        ("identity-and-tanh-at-350m", {"better at 350M, tanh": -0.26, "not better at 1B": 0.24}),
    ],
)
def test_the_published_effects_are_those_of_the_papers(name: str, effects: dict[str, float]) -> None:
    paper = next(claim for claim in paper_claims()[name] if not claim.toy)
    published = {part.title: part.published for part in evaluate(paper, cells()).parts}
    assert {title: published[title] for title in effects} == pytest.approx(effects)


def test_selection() -> None:
    names = [claim.name for claim in select_claims(shipped(), grids=["quickstart"], sources=["curse_of_depth"])]
    assert names
    assert set(names) <= set(paper_claims())
    assert all(claim.toy for claim in select_claims(shipped(), toy=True))
    one = select_claims(shipped(), ["gate-signs"])
    assert [(claim.name, claim.toy) for claim in one] == [("gate-signs", False), ("gate-signs", True)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"names": ["gate-sings"]}, "no claim 'gate-sings'; did you mean 'gate-signs'?"),
        ({"grids": ["quikstart"]}, "no grid 'quikstart'; did you mean 'quickstart'?"),
        ({"sources": ["gpsa"]}, "no source 'gpsa'; did you mean 'gpas'?"),
    ],
)
def test_an_unknown_name_gets_the_nearest(words: dict[str, list[str]], message: str) -> None:
    with pytest.raises(GpasError) as error:
        select_claims(shipped(), **words)
    assert str(error.value) == message


def test_claims_about_grids_that_a_file_does_not_declare_are_left_out_unless_named() -> None:
    few = replace(shipped(), grids={"quickstart": shipped().grids["quickstart"]})
    assert {grid for claim in select_claims(few) for grid in claim.grids} == {"quickstart"}
    assert [claim.toy for claim in select_claims(few, ["gate-signs"])] == [False, True]
    assert "gpas-lowers-perplexity-7b" in {claim.name for claim in undeclared_claims(few)}
    assert undeclared_claims(shipped()) == []


def test_a_claim_of_the_file_comes_first_and_replaces_one_of_the_same_name() -> None:
    own = Claim("gate-signs", "Mine.", ())
    claims = all_claims(replace(shipped(), claims={"gate-signs": (own,)}))
    assert next(iter(claims)) == "gate-signs"
    assert claims["gate-signs"] == (own,)


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if claim.toy], ids=lambda claim: claim.name)
def test_at_toy_size_no_statement_is_about_the_papers_sizes(claim: Claim) -> None:
    assert not re.search(r"\d[MB]\b|every size|1e-[34]", claim.statement)
