"""`claims:` in experiments.yaml: what they are read as; all their mistakes are reported, with place and choice."""

import math

from cases import cases
from grids import complaints, read, whole

from gpas_cli.grid.declared import Claim, Comparison, Feature

GRID = """\
base: {size: quickstart, data: quickstart}
axes: {norm: [pre, lns], gate: [none, gpas], seed: [1, 2]}
"""
FILE = whole(GRID)  # of 6 lines
USUAL = {"grids": "[g]", "subject": "{gate: gpas}", "against": "{gate: none}", "expect": "lower"}


def file_with(**settings: str) -> str:
    """Return a file whose only claim, `c`, has these settings and the usual ones from line 10 on; "" omits one."""
    chosen = {key: value for key, value in {**USUAL, **settings}.items() if value}
    lines = "".join(f"    {key}: {value}\n" for key, value in chosen.items())
    return f"{FILE}claims:\n  c:\n    statement: GPAS helps.\n{lines}"


def claims(**settings: str) -> tuple[Claim, ...]:
    return read(file_with(**settings)).claims["c"]


def comparison(**settings: str) -> Comparison:
    (claim,) = claims(**settings)
    (made,) = claim.comparisons
    return made


def test_a_claim_compares_perplexities_unless_it_says_otherwise() -> None:
    made = comparison(by="[norm]")
    assert made.grids == ("g",)
    assert (made.subject, made.against, made.by) == ({"gate": ("gpas",)}, {"gate": "none"}, ("norm",))
    assert made.value == Feature(metric="perplexity")
    assert (made.compare, made.low, made.high, made.test, made.over) == ("difference", -math.inf, 0.0, "t", "seed")


@cases("grid/cases.yaml")
def test_what_is_expected_is_an_open_interval(settings: dict[str, str], bounds: list[float]) -> None:
    made = comparison(**settings)
    assert [made.low, made.high] == bounds


def test_parts_and_toy_replace_settings_of_the_claim() -> None:
    settings = {
        "expect": "",
        "parts": "[{says: down, expect: lower}, {says: up, subject: {gate: gpas, norm: lns}, expect: higher}]",
        "toy": "{grids: [g], by: [norm], expect: {below: 3}}",
    }
    paper, toy = claims(**settings)
    assert (paper.toy, toy.toy) == (False, True)
    assert [part.says for part in paper.comparisons] == ["down", "up"]
    assert [(part.low, part.high) for part in paper.comparisons] == [(-math.inf, 0), (0, math.inf)]
    assert paper.comparisons[1].subject == {"gate": ("gpas",), "norm": ("lns",)}
    assert [(part.by, part.high) for part in toy.comparisons] == [(("norm",), 3), (("norm",), 3)]


def test_toy_may_have_parts_of_its_own() -> None:
    _, toy = claims(toy="{parts: [{says: one, by: [norm]}]}")
    (part,) = toy.comparisons
    assert (part.says, part.by, part.high) == ("one", ("norm",), 0)


def test_a_number_from_a_curve() -> None:
    made = comparison(value="{curve: gate, take: max, layers: [pre, later], updates: 300}")
    assert made.value == Feature(curve="gate", take="max", layers=("pre", "later"), updates=300)
    assert made.value.title == "max of gate, layers pre and later, update 300"


@cases("grid/cases.yaml")
def test_mistakes_of_a_claim(settings: dict[str, str], place: str, says: str) -> None:
    found = complaints(file_with(**settings))
    assert any(line.startswith(f"e.yaml:{place}:") and says in line for line in found), found


def test_a_claim_needs_a_statement_and_a_name() -> None:
    text = file_with().replace("    statement: GPAS helps.\n", "").replace("  c:\n", "  my claim:\n")
    found = complaints(text)
    assert any("e.yaml:8:3" in line and "needs 'statement'" in line for line in found), found
    assert any("a claim's name has" in line and "write my_claim" in line for line in found), found


def test_all_mistakes_of_all_claims_are_reported_at_once() -> None:
    more = "  d:\n    statement: Two.\n    grids: [gg]\n    expect: lower\n"
    found = complaints(file_with(by="[nrom]", test="x") + more)
    assert len(found) == 4, found  # the last claim has no base for `lower` either


def test_a_grid_with_a_mistake_is_not_reported_as_missing() -> None:
    text = file_with().replace("norm: [pre, lns]", "norm: [pre, lsn]")
    assert all("no grid" not in line for line in complaints(text))
