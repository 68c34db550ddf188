"""`claims:` in experiments.yaml: what they are read as; all their mistakes are reported, with place and choice."""

import math

import pytest
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


@pytest.mark.parametrize(
    ("settings", "bounds"),
    [
        ({"expect": "higher"}, (0, math.inf)),
        ({"expect": "{below: -0.5}"}, (-math.inf, -0.5)),
        ({"expect": "{between: [-0.1, 0.1]}"}, (-0.1, 0.1)),
        ({"expect": "lower", "compare": "ratio"}, (-math.inf, 1)),
        ({"expect": "{above: 0.99}", "compare": "ratio"}, (0.99, math.inf)),
        ({"expect": "negative", "against": ""}, (-math.inf, 0)),
        ({"expect": "higher", "compare": "spread"}, (0, math.inf)),
    ],
)
def test_what_is_expected_is_an_open_interval(settings: dict[str, str], bounds: tuple[float, float]) -> None:
    made = comparison(**settings)
    assert (made.low, made.high) == bounds


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


MISTAKES = {
    "unknown key": ({"expcet": "lower"}, "14:5", "claims.c.expcet: unknown key 'expcet'; did you mean 'expect'?"),
    "unknown grid": ({"grids": "[gg]"}, "10:12", "no grid 'gg'; did you mean 'g'?"),
    "no grid": ({"grids": ""}, "8:3", "is required: the grids whose cells are compared"),
    "unknown axis": ({"subject": "{gait: gpas}"}, "11:15", "no axis 'gait'; did you mean 'gate'?"),
    "unknown label": ({"subject": "{gate: gpsa}"}, "11:21", "'gpsa' is not a value of this axis; did you mean 'gpas'?"),
    "two bases": ({"against": "{gate: [none, gpas]}"}, "12:14", "gate has 2 labels; a base has one"),
    "unknown axis of by": ({"by": "[nrom]"}, "14:9", "no axis 'nrom'; did you mean 'norm'?"),
    "unknown axis of over": ({"over": "sede"}, "14:11", "no axis 'sede'; did you mean 'seed'?"),
    "unknown axis of best": ({"best": "sede"}, "14:11", "claims.c.best: no axis 'sede'; did you mean 'seed'?"),
    "best of one label": ({"best": "size"}, "14:11", "size has one label, quickstart; the best of an axis is"),
    "nothing expected": ({"expect": ""}, "8:3", "is required: lower, higher, or a bound such as {below: 0}"),
    "unknown expectation": ({"expect": "lowr"}, "13:13", "unknown word 'lowr'; did you mean 'lower'?"),
    "expectation of another kind": ({"expect": "negative"}, "13:13", "unknown word 'negative'; valid: lower, higher"),
    "two bounds": ({"expect": "{below: 1, above: 0}"}, "13:13", "needs one of below, above and between"),
    "a bound that is no number": ({"expect": "{below: x}"}, "13:21", "'x' is not a number"),
    "empty interval": ({"expect": "{between: [1, 0]}"}, "13:13", "1 is not below 0"),
    "ratio below 0": ({"compare": "ratio", "expect": "{between: [-1, 2]}"}, "13:13", "bounds of a ratio are above 0"),
    "a bound of a spread": ({"compare": "spread", "expect": "{below: 1}"}, "13:13", "valid: lower, higher"),
    "a spread over runs": ({"compare": "spread", "test": "each-run"}, "15:11", "have a test of their own"),
    "a spread of the best": ({"compare": "spread", "best": "seed"}, "15:11", "have a test of their own"),
    "unknown kind": ({"compare": "rate"}, "14:14", "unknown word 'rate'; did you mean 'ratio'?"),
    "values with a base": ({"compare": "value", "expect": "{above: 1}"}, "14:14", "compares values, without 'against'"),
    "unknown test": ({"test": "each-rnu"}, "14:11", "unknown word 'each-rnu'; did you mean 'each-run'?"),
    "curve without a name": ({"value": "{take: max}"}, "14:12", "needs 'curve', a name as in `gpas figure --what`"),
    "value without a setting": ({"value": "{}"}, "14:12", "needs 'curve', a name as in `gpas figure --what`"),
    "unknown feature": ({"value": "{curve: gate, take: maxi}"}, "14:32", "unknown value 'maxi'; did you mean 'max'?"),
    "unknown layers": ({"value": "{curve: gate, layers: deep}"}, "14:34", "'deep'; did you mean 'deeper'?"),
    "layer 0": ({"value": "{curve: gate, layers: 0}"}, "14:34", "0 is too small; at least 1"),
    "layers are true": ({"value": "{curve: gate, layers: true}"}, "14:34", "is not a list of strings or whole numbers"),
    "unknown updates": ({"value": "{curve: gate, updates: al}"}, "14:35", "did you mean 'all'?"),
    "across one label": ({"across": "{norm: [pre]}"}, "14:13", "is not an axis with two labels"),
    "across an unknown label": ({"across": "{norm: [pre, lnss]}"}, "14:26", "did you mean 'lns'?"),
    "toy is checked too": ({"toy": "{by: [nrom]}"}, "14:15", "claims.c.toy.by: no axis 'nrom'; did you mean 'norm'?"),
    "parts are checked too": ({"parts": "[{by: [nrom]}]"}, "14:18", "claims.c.parts.1.by: no axis 'nrom'"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    settings, place, words = MISTAKES[name]
    found = complaints(file_with(**settings))
    assert any(line.startswith(f"e.yaml:{place}:") and words in line for line in found), found


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
