"""The papers' claims on the shipped grids; the sequential evidence on claims, and the choice of the next seeds."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from cases import cases, file_text
from grids import read, whole
from named_papers import PACKS, SOURCES, published, tables
from report_cases import recorded_cells, tuples
from report_cells import DIFFERING, comparison
from shipped import EXPERIMENTS, everything

from gpas_cli.errors import GpasError, Problem
from gpas_cli.extensions.campaigns.campaign import candidates, chances, chosen
from gpas_cli.extensions.claims import checks
from gpas_cli.extensions.claims.declared import all_claims, select_claims, undeclared_claims
from gpas_cli.extensions.claims.evaluate import evaluate
from gpas_cli.extensions.claims.verdict import ClaimEvidence, assess
from gpas_cli.extensions.figures.paper_figures import FigureSpec, declared_figures, figures_of, request
from gpas_cli.grid.claims import read_claims
from gpas_cli.grid.declared import Claim, Entry
from gpas_cli.grid.document import read_document
from gpas_cli.grid.packs import Pack
from gpas_cli.grid.settings import root_of
from gpas_cli.report.checks import report_problems
from gpas_cli.report.labels import facts
from gpas_cli.report.papers.recipes import deviations, recipes
from gpas_cli.report.recorded import Recorded

CLAIMS = select_claims(EXPERIMENTS)
WITH_DIVERGED = {"large-rates-need-large-shortcuts"}
TITLES = [f"{claim.name}{' (toy)' if claim.toy else ''}" for claim in CLAIMS]


@cache
def cells() -> Recorded:
    """Return the cells of all shipped grids, without results."""
    return Recorded(everything())


@pytest.mark.parametrize(
    "pack", [PACKS[name] for name in SOURCES if PACKS[name].has("claims")], ids=lambda pack: pack.name
)
def test_they_are_valid_as_claims_of_the_shipped_file(pack: Pack) -> None:
    problems: list[Problem] = []
    part = root_of(read_document(pack.document("claims")), problems).entries()["claims"]
    claims = read_claims(part, EXPERIMENTS.grids, EXPERIMENTS.grids, PACKS)
    problems += report_problems(replace(EXPERIMENTS, claims=claims))
    assert problems == []
    assert {claim.source.paper for sizes in claims.values() for claim in sizes} == {pack.name}


@pytest.mark.parametrize("claim", CLAIMS, ids=TITLES)
def test_every_comparison_finds_its_cells_and_bases(claim: Claim) -> None:
    verdict = evaluate(claim, cells())
    assert verdict.verdict == "undecided"
    assert verdict.missing
    assert verdict.command.startswith("gpas run grid ")
    compared = [part.comparison for part in verdict.parts]
    for one in claim.comparisons:
        assert one in compared, one.says
        labels = {axis: wanted for axis, wanted in one.subject.items() if axis in one.by}
        own = [part for part in verdict.parts if part.comparison is one]
        found = {(axis, part.labels[axis]) for part in own for axis in labels}
        assert found == {(axis, label) for axis, wanted in labels.items() for label in wanted}
    for part in verdict.parts:
        assert part.pairs, (part.title, part.reason)
        assert part.reason in ("", "one seed is declared, and a test needs two or more")
        # A published run that diverged has no number.
        assert part.published is not None or not part.comparison.published or claim.name in WITH_DIVERGED, part.title


@pytest.mark.parametrize("claim", CLAIMS, ids=TITLES)
def test_each_says_where_it_is_made_and_at_toy_size_nothing_about_the_papers_sizes(claim: Claim) -> None:
    assert claim.source.paper
    assert claim.source.where
    assert claim.statement.endswith(".")
    assert not (claim.toy and re.search(r"\d[MB]\b|every size|1e-[34]", claim.statement))


def test_the_published_effects_are_those_of_the_papers() -> None:
    """The effects in the golden file were calculated from the papers' tables; those of two sources are side by side."""
    found = [
        f"{title} | {part.title} | {part.published:.6g} | "
        + ", ".join(f"{source} {own:.6g}" for source, own in part.printed.items())
        for title, claim in zip(TITLES, CLAIMS, strict=True)
        for part in evaluate(claim, cells()).parts
        if part.published is not None
    ]
    assert found == file_text("golden/published_effects.txt").splitlines()


# Settings of whole grids that the papers state for these runs alone.
OWN_RECIPES = {
    "curse-figure1": {"optim.steps"},  # "trained for 10,000 steps", Figure 1
    "curse-figure5": {"optim.steps"},
    "raptr-bert-stability": {"optim.steps", "depth.drawn"},  # "trained for 50k steps with (L-1) RAPTR", Figure 2
    "raptr-bert-layerdrop": {"optim.steps"},  # as many updates as have the work of the paths
}


STRAYS: dict[tuple[str, str], set[str]] = {}  # what `strays` has found, by source and cell


def strays(source: str, one: Entry) -> set[str]:
    """Return the settings in which a cell differs from the recipe of its paper that is nearest to it.

    Axes of its grid are left out, which the paper varies too, and tables of other networks, whose recipes say nothing
    about it.
    """
    if (source, one.id) not in STRAYS:
        labels = facts(one)
        found = [
            {each.setting for each in deviations([one], table)} - {*one.axes, *DIFFERING[source]}
            for table in (published(source, name) for name in tables(source))
            if any(
                {"optim.batch", "data.batches"} & of.settings_of(table.in_own_words(labels)).keys()
                for of in recipes(table)
            )
        ]
        STRAYS[source, one.id] = min(found, key=len) - OWN_RECIPES.get(one.grid, set())
    return STRAYS[source, one.id]


@pytest.mark.parametrize("claim", [one for one in CLAIMS if not one.toy], ids=lambda claim: claim.name)
def test_a_claim_is_judged_on_cells_of_its_papers_recipe(claim: Claim) -> None:
    for part in evaluate(claim, cells()).parts:
        compared = {one.status.entry.id: one.status.entry for pair in part.pairs for one in pair.measured}
        assert not set().union(*(strays(claim.source.paper, one) for one in compared.values())), part.title
        for pack, name in part.comparison.published.items():
            for side in ([pair.own for pair in part.pairs], [pair.base for pair in part.pairs if pair.base]):
                entries = [each.status.entry for one in side for each in (one, *one.others)]
                differing = deviations(entries, published(pack, name)) if entries else ()
                assert {one.setting for one in differing} <= DIFFERING[pack.name], (part.title, pack.name)


def test_a_cell_of_another_paper_strays_from_the_recipe() -> None:
    other = next(one for one in cells().entries if one.id == "figure7/lns")
    assert strays("curse_of_depth", other) == {"norm.apply", "init.embed_std", "optim.warmup"}


@pytest.mark.parametrize("figure", declared_figures(PACKS).values(), ids=lambda figure: figure.name)
def test_a_figure_is_drawn_from_cells_of_its_papers_recipe(figure: FigureSpec) -> None:
    source = next(name for name in SOURCES if figure.name in figures_of(PACKS[name]))
    entries = request(figure, EXPERIMENTS).entries
    assert entries
    assert {one.id: strays(source, one) for one in entries} == {one.id: set() for one in entries}


def test_selection() -> None:
    names = [claim.name for claim in select_claims(EXPERIMENTS, grids=["quickstart"], sources=["curse_of_depth"])]
    assert names
    assert set(names) <= set(all_claims(EXPERIMENTS))
    assert all(claim.toy for claim in select_claims(EXPERIMENTS, toy=True))
    one = select_claims(EXPERIMENTS, ["gate-signs"])
    assert [(claim.name, claim.toy) for claim in one] == [("gate-signs", False), ("gate-signs", True)]


@cases("extensions/cases.yaml")
def test_an_unknown_name_gets_the_nearest(words: dict[str, list[str]], message: str) -> None:
    with pytest.raises(GpasError) as error:
        select_claims(EXPERIMENTS, **words)
    assert str(error.value) == message


def test_claims_about_grids_that_a_file_does_not_declare_are_left_out_unless_named() -> None:
    few = replace(EXPERIMENTS, grids={"quickstart": EXPERIMENTS.grids["quickstart"]})
    assert {grid for claim in select_claims(few) for grid in claim.grids} == {"quickstart"}
    assert [claim.toy for claim in select_claims(few, ["gate-signs"])] == [False, True]
    assert "gpas-lowers-perplexity-7b" in {claim.name for claim in undeclared_claims(few)}
    assert {claim.source.paper for claim in undeclared_claims(EXPERIMENTS)} == {"normformer", "residual"}


def test_a_claim_of_the_file_comes_first_and_replaces_one_of_the_same_name() -> None:
    own = Claim("gate-signs", "Mine.", ())
    claims = all_claims(replace(EXPERIMENTS, claims={"gate-signs": (own,)}))
    assert next(iter(claims)) == "gate-signs"
    assert claims["gate-signs"] == (own,)


def assessed(effects: Mapping[str, Sequence[float | str | None]]) -> ClaimEvidence:
    """Return the evidence of made-up effects by scheme, one for each seed; None is missing, a word is a state."""
    cells: dict[str, list[Any]] = {}
    for norm, values in effects.items():
        cells[norm] = [34.0 + seed for seed in range(1, len(values) + 1)]
        pairs = zip(cells[norm], values, strict=True)
        cells[f"{norm}+gpas"] = [base + own if isinstance(own, float) else own for base, own in pairs]
    return assess(evaluate(Claim("c", "A claim.", (comparison(),)), recorded_cells(cells)))


@cases("extensions/cases.yaml", step=1)
def test_the_next_seeds_of_parts(
    effects: dict[str, list[float | None]], most: int, step: int, seeds: list[list[list[int]]]
) -> None:
    """No verdict is possible before the fourth seed: the missing ones are run together."""
    found = candidates([assessed(effects)], 0.05, most, step)
    assert tuple((one.at, one.seeds) for one in found) == tuples(seeds)


@cases("extensions/cases.yaml")
def test_the_part_that_is_run_first(
    effects: dict[str, list[float]], most: int, hours: list[list[float]], parts: list[list[int]]
) -> None:
    found = candidates([assessed(effects)], 0.05, most)
    for own, expected in zip(hours, parts, strict=True):
        costing = [replace(one, gpu_hours=hours) for one, hours in zip(found, own, strict=True)]
        assert [one.at[1] for one in chosen(costing)] == expected


def test_the_chance_grows_with_the_effect_and_with_seeds() -> None:
    small = assessed({"pre": (-0.5, 0.2, -0.6, 0.1)}).parts[0]
    large = assessed({"pre": (-0.8, -0.5, -0.9)}).parts[0]
    slight = chances(small, 0.05, 1, 4)
    good = chances(large, 0.05, 1, 4)
    assert slight == tuple(sorted(slight))
    assert good == tuple(sorted(good))
    assert good[-1] > 2 * slight[-1]
    assert chances(large, 0.05, 1, 4) == good  # the same on every machine and in every invocation
    blocked = assessed({"pre": (-0.8, -0.5, -0.9, "diverged")}).parts[0]
    assert chances(blocked, 0.05, 1, 4)[-1] < 0.05  # no number of seeds supports the claim any more


@cases("extensions/cases.yaml")
def test_a_law_without_enough_points_is_refused(value: str, message: str) -> None:
    grid = "base: {size: quickstart, data: quickstart}\naxes: {norm: [pre, lns], gate: [none, gpas], seed: [1, 2]}\n"
    claim = "statement: GPAS helps., grids: [g], subject: {gate: gpas}, against: {gate: none}, expect: lower"
    found = checks.problems(read(f"{whole(grid)}claims:\n  c: {{{claim}, value: {value}}}\n"), ())
    assert [problem.message for problem in found] == [message]
