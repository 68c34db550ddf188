"""The papers' claims on the shipped grids; the sequential evidence on claims, and the choice of the next seeds."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from grids import read, whole
from named_papers import PACKS, SOURCES, published, tables
from report_cells import DIFFERING, comparison, known
from shipped import EXPERIMENTS, everything

from gpas_cli.errors import GpasError, Problem
from gpas_cli.extensions.campaigns.campaign import Candidate, candidates, chances, chosen
from gpas_cli.extensions.claims import checks
from gpas_cli.extensions.claims.declared import all_claims, select_claims, undeclared_claims
from gpas_cli.extensions.claims.evaluate import evaluate
from gpas_cli.extensions.claims.verdict import ClaimEvidence, Verdict, assess
from gpas_cli.extensions.figures.paper_figures import FigureSpec, declared_figures, figures_of, request
from gpas_cli.grid.claims import read_claims
from gpas_cli.grid.declared import Claim, Comparison, Declared, Entry
from gpas_cli.grid.document import Mark, Node, read_document
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
    assert found == (Path(__file__).parents[1] / "golden/published_effects.txt").read_text("utf-8").splitlines()


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


LOWER = comparison()
BASE = 34.0
Effects = Sequence[float | str | None]


def verdict(effects: dict[str, Effects], comparison: Comparison = LOWER, *, declared: int = 99) -> Verdict:
    """Return the verdict on made-up effects by scheme, one for each seed; None is missing, a word is a state.

    The seeds after `declared` are added ones.
    """
    numbers: dict[tuple[str, str], Effects] = {}
    for norm, values in effects.items():
        bases = [BASE + seed for seed in range(1, len(values) + 1)]
        pairs = zip(bases, values, strict=True)
        numbers[norm, "none"] = bases
        numbers[norm, "gpas"] = [base + own if isinstance(own, float) else own for base, own in pairs]
    made = known(numbers)
    settings = Node({}, Mark("e.yaml", 1, 1))
    entries = tuple(
        replace(one, declared=Declared("demo", settings, {}, one.cell.seed > declared)) for one in made.entries
    )
    return evaluate(Claim("c", "A claim.", (comparison,)), replace(made, entries=entries))


def assessed(effects: dict[str, Effects], comparison: Comparison = LOWER) -> ClaimEvidence:
    return assess(verdict(effects, comparison))


CLEAR = (-0.9, -0.8, -1.0, -0.85, -0.95, -0.9)
NOISE = (0.3, -0.4, 0.2, -0.1, 0.35, -0.3)


def test_a_clear_effect_is_supported_in_seed_order() -> None:
    found = assessed({"pre": CLEAR})
    (part,) = found.parts
    assert (found.verdict, part.verdict) == ("supported", "supported")
    assert part.seeds == (1, 2, 3, 4, 5, 6)
    assert part.effects == pytest.approx(CLEAR)
    assert part.effect == pytest.approx(-0.9)
    assert part.interval[0] < -0.9 < part.interval[1] < 0


def test_seeds_after_one_without_a_number_are_not_used() -> None:
    """Runs may fail for reasons that have to do with their results: passing over them would choose results."""
    (part,) = assessed({"pre": (-0.9, "failed", *CLEAR)}).parts
    assert part.seeds == (1,)
    assert part.pending == tuple(range(2, 9))
    assert part.verdict == "undecided"
    assert [status.state for status in part.waiting((1, 2, 3))] == ["failed"]


def test_the_evidence_of_a_prefix_does_not_change() -> None:
    """A decision stays, whatever later seeds say: the test ended there."""
    early = assessed({"pre": CLEAR[:5]}).parts[0]
    late = assessed({"pre": (*CLEAR[:5], 3.0)}).parts[0]
    assert early.verdict == late.verdict == "supported"


def test_a_claim_needs_all_of_its_parts() -> None:
    assert assessed({"pre": CLEAR, "lns": NOISE}).verdict == "undecided"
    assert assessed({"pre": CLEAR, "lns": CLEAR}).verdict == "supported"
    assert assessed({"pre": CLEAR, "lns": tuple(-x for x in CLEAR)}).verdict == "contradicted"


def test_a_diverged_subject_prevents_support() -> None:
    (part,) = assessed({"pre": (*CLEAR, "diverged")}).parts
    assert part.effects[-1] == math.inf
    assert part.verdict == "undecided"
    assert part.effect == pytest.approx(-0.9)


def test_ratios_are_tested_as_logarithms_and_shown_as_ratios() -> None:
    comparison = replace(LOWER, compare="ratio", high=1.0)
    (part,) = assessed({"pre": CLEAR}, comparison).parts
    assert part.verdict == "supported"
    assert part.effect == pytest.approx(1 - 0.9 / 37.5, abs=0.002)
    assert part.interval[1] < 1


def test_a_claim_about_each_run_needs_no_test() -> None:
    each = replace(LOWER, test="each-run")
    assert assessed({"pre": CLEAR}, each).verdict == "supported"
    assert assessed({"pre": (-1.0, 0.1)}, each).verdict == "contradicted"


def test_added_seeds_change_the_test_of_gpas_claims() -> None:
    """Six seeds that were declared are a t test; the same six, four of which were added, are a sequential one."""
    usual = verdict({"pre": CLEAR}).parts[0]
    added = verdict({"pre": CLEAR}, declared=2).parts[0]
    sequential = assessed({"pre": CLEAR}).parts[0]
    assert (usual.test, added.test) == ("t", "sequential")
    assert added.p == pytest.approx(1 / sequential.evidence.inside)
    assert added.p > usual.p
    assert added.interval == sequential.interval
    # A small effect that a t test calls significant, and that may not be called so after looking.
    small = (-0.3, 0.05, -0.25, -0.15, -0.3)
    assert verdict({"pre": small}).verdict == "supported"
    assert verdict({"pre": small}, declared=2).verdict == "undecided"


def test_the_first_seeds_are_run_together() -> None:
    """No verdict is possible before the fourth seed; two of them are there or pending, and two are new."""
    (found,) = candidates([assessed({"pre": (-0.9, None)})], 0.05, 8)
    assert found.seeds == (2, 3, 4)
    (found,) = candidates([assessed({"pre": (-0.9, -0.2, -0.9, -0.1)})], 0.05, 8)
    assert found.seeds == (5,)
    (found,) = candidates([assessed({"pre": (-0.9, -0.2, -0.9, -0.1)})], 0.05, 6, step=5)
    assert found.seeds == (5, 6)


def test_no_seed_beyond_the_maximum_or_for_a_decided_part() -> None:
    assert candidates([assessed({"pre": NOISE})], 0.05, 6) == []
    assert candidates([assessed({"pre": CLEAR})], 0.05, 8) == []
    found = candidates([assessed({"pre": CLEAR, "lns": NOISE})], 0.05, 8)
    assert [candidate.at for candidate in found] == [(0, 1)]


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


def costing(found: list[Candidate], *hours: float) -> list[Candidate]:
    """Return the next round if the seeds of the parts cost so many hours."""
    return chosen([replace(one, gpu_hours=own) for one, own in zip(found, hours, strict=True)])


def test_a_cheap_part_goes_before_an_expensive_one() -> None:
    found = candidates([assessed({"pre": (-0.8, -0.5, -0.9), "lns": (-0.8, -0.5, -0.9)})], 0.05, 8)
    assert [candidate.at for candidate in costing(found, 1.0, 50.0)] == [(0, 0)]
    assert [candidate.at for candidate in costing(found, 50.0, 1.0)] == [(0, 1)]
    assert [candidate.at for candidate in costing(found, 1.5, 1.0)] == [(0, 1), (0, 0)]
    assert chosen([]) == []


def test_a_promising_part_goes_before_a_hopeless_one() -> None:
    found = candidates([assessed({"pre": (0.9, -0.8, 0.5, -0.6), "lns": (-0.8, -0.5, -0.9)})], 0.05, 6)
    assert [candidate.at for candidate in costing(found, 1.0, 1.0)] == [(0, 1)]


def test_the_further_seeds_are_shown_with_their_uncertainty() -> None:
    (part,) = verdict({"pre": (-0.9, 0.4, -0.7)}).parts
    fewest, most = part.needed_range
    assert fewest < part.needed
    assert most is None
    assert part.needed_text == f"{part.needed} ({fewest} or more)"
    assert verdict({"pre": CLEAR}).parts[0].needed_text == ""
    assert verdict({"pre": (-0.9,)}).parts[0].needed_text == ""


LAWS = {
    "{metric: loss, along: seed, take: exponent}": "an exponent needs 3 points, and 'seed' has 2",
    "{metric: loss, along: [norm], take: offset}": "an offset needs 4 points, and 'norm' has 2",
    "{metric: loss, along: sed, take: exponent}": "no axis 'sed'; did you mean 'seed'?",
    "{metric: loss, along: seed}": "a law is {metric: loss, along: AXIS, take: exponent or offset}",
}


@pytest.mark.parametrize("value", LAWS)
def test_a_law_without_enough_points_is_refused(value: str) -> None:
    grid = "base: {size: quickstart, data: quickstart}\naxes: {norm: [pre, lns], gate: [none, gpas], seed: [1, 2]}\n"
    claim = "statement: GPAS helps., grids: [g], subject: {gate: gpas}, against: {gate: none}, expect: lower"
    found = checks.problems(read(f"{whole(grid)}claims:\n  c: {{{claim}, value: {value}}}\n"), ())
    assert [problem.message for problem in found] == [LAWS[value]]
