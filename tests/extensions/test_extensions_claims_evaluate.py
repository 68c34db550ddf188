"""Verdicts on claims about made-up results."""

import itertools
import math
import random
from collections.abc import Mapping
from dataclasses import asdict, replace
from statistics import correlation, stdev, variance
from typing import Any

import pytest
from cases import cases
from curve_database import stand_in
from goldens import as_yaml, compact, compare, golden_cases
from report_cases import recorded_cells, tuples
from report_cells import comparison, entry, result

from gpas_cli import structure
from gpas_cli.errors import GpasError
from gpas_cli.extensions.claims.checks import feature_fault
from gpas_cli.extensions.claims.evaluate import evaluate, is_inside, sign_test, t_test
from gpas_cli.extensions.claims.measure import Measured, _effect, measure
from gpas_cli.extensions.claims.sequential import SUPPORTED
from gpas_cli.extensions.claims.verdict import Verdict, assess, claim_json
from gpas_cli.grid.declared import Claim, Declared, Entry, Feature
from gpas_cli.grid.document import Mark, Node
from gpas_cli.report import query
from gpas_cli.report.recorded import Recorded
from gpas_cli.report.tables.entry_status import EntryStatus
from gpas_cli.spec.model import SIZES
from gpas_cli.spec.parse import plain
from gpas_cli.statistics.stats import two_sided_p

INF = math.inf


def judged(case: Mapping[str, Any]) -> Verdict:
    """Return the verdict on a claim about the cells of a case. Seeds after `declared` are added ones."""
    changes = tuples(case.get("compare", {}))
    if "value" in changes:
        changes["value"] = Feature(**changes["value"])
    known = recorded_cells(case["cells"])
    if "declared" in case:
        settings = Node({}, Mark("e.yaml", 1, 1))
        added = [Declared("demo", settings, {}, one.cell.seed > case["declared"]) for one in known.entries]
        entries = (replace(one, declared=own) for one, own in zip(known.entries, added, strict=True))
        known = replace(known, entries=tuple(entries))
    return evaluate(Claim("c", "A claim.", (comparison(**changes),)), known)


LEFT_OUT = {"name", "statement", "source", "toy", "grids", "parts", "labels", "seeds", "missing", "cells"}


def line(document: Mapping[str, Any], **more: Any) -> str:
    """Return a document on one line, without what all cases have in common or what other lines show."""
    return as_yaml(compact({name: own for name, own in {**document, **more}.items() if name not in LEFT_OUT}))


def as_text(verdict: Verdict, sequential: bool) -> str:
    """Return the document of a verdict, its parts and their seeds, and the evidence of the sequential test."""
    document = structure.plain(claim_json(verdict))
    waiting = {run["cell"]: run["state"] for run in document["missing"]}
    lines = [line(document, waiting=waiting, direction=verdict.direction, counts=verdict.counts())]
    for part, of in zip(document["parts"], verdict.parts, strict=True):
        lines.append(line(part, bounds=of.bounds(), needed_text=of.needed_text))
        lines += [f"  {line(seed)}" for seed in part["seeds"]]
    if sequential:
        found = assess(verdict)
        lines.append(f"sequential: {found.verdict}\n")
        for one in found.parts:
            states = [status.state for status in one.waiting(one.seeds + one.pending)]
            used = {"used": one.seeds, "pending": one.pending, "waiting": states, "effects": one.effects}
            lines.append(line(asdict(one.evidence), verdict=one.verdict, effect=one.effect, shown=one.interval, **used))
    return "".join(lines)


@pytest.mark.parametrize("title", golden_cases("claims"))
def test_a_verdict_is_that_of_the_golden_file(title: str) -> None:
    case = golden_cases("claims")[title]
    try:
        found = as_text(judged(case), case.get("sequential", False))
    except GpasError as error:
        found = f"refused: {error}"
    compare("claims", title, found)


def test_standard_deviations_are_tested_in_the_form_of_morgan() -> None:
    case = golden_cases("claims")["standard deviations are compared seed by seed"]
    base, own = case["cells"].values()
    (part,) = judged(case).parts
    assert part.effect == pytest.approx(stdev(own) - stdev(base))
    ratio, r = variance(own) / variance(base), correlation(own, base)
    t = (ratio - 1) * math.sqrt(len(own) - 2) / (2 * math.sqrt(ratio * (1 - r * r)))
    assert part.p == pytest.approx(two_sided_p(t, len(own) - 2))


@pytest.mark.parametrize(("own", "base", "expected"), [(-INF, 50.0, -INF), (50.0, -INF, INF), (INF, 50.0, INF)])
def test_a_ratio_keeps_a_diverged_run_whichever_direction_is_better(own: float, base: float, expected: float) -> None:
    entries = [entry("pre", gate) for gate in ("gpas", "none")]
    statuses = [EntryStatus(one, 1, "key", "diverged", None) for one in entries]
    found = _effect(comparison(compare="ratio"), Measured(statuses[0], own), Measured(statuses[1], base))
    assert found == expected


def depths(exponents: dict[str, float], offset: float = 0.0) -> tuple[list[Entry], dict[str, Any]]:
    """Return cells of several depths, and losses on a law over them for each gate, which the seed shifts a little."""
    entries: list[Entry] = []
    results: dict[str, Any] = {}
    for gate, layers, seed in itertools.product(exponents, (2, 4, 8, 16), (1, 2, 3)):
        size = {**plain(SIZES["71m"]), "layers": layers}
        entries.append(entry("pre", gate, seed, axes={"size": f"{layers} layers"}, size=size))
        loss = offset + 4 * layers ** -(exponents[gate] + 0.001 * seed * (1 if gate == "gpas" else 0.5))
        results |= result(entries[-1], metrics={"loss": loss})
    return entries, results


@pytest.mark.parametrize(("take", "offset", "effects"), [("exponent", 0.0, 0.02), ("offset", 2.0, 0.0)])
def test_the_laws_of_subject_and_base_are_fitted_for_each_seed(take: str, offset: float, effects: float) -> None:
    entries, results = depths({"none": 0.1, "gpas": 0.12}, offset)
    value = Feature(metric="loss", along=("size",), take=take, x="layers")
    claim = Claim("c", "A claim.", (comparison(value=value, low=0.0, high=INF),))
    (part,) = evaluate(claim, Recorded(tuple(entries), {}, results)).parts
    assert part.n == 3
    assert part.effect == pytest.approx(effects, abs=0.002)
    assert (part.verdict == SUPPORTED) == (take == "exponent")
    assert value.title == f"{take} of loss over layers"
    lost = {key: one for key, one in results.items() if key != entries[4].cell.key}
    unfinished = evaluate(claim, Recorded(tuple(entries), {}, lost))
    assert [pair.effect is None for pair in unfinished.parts[0].pairs] == [False, True, False]
    assert [status.entry.id for status in unfinished.missing] == [entries[4].id]


@cases("extensions/cases.yaml")
def test_features_with_a_fault(feature: dict[str, Any], fault: str) -> None:
    found = feature_fault(Feature(**tuples(feature)))
    assert found.startswith(fault) if fault else not found


EFFECTS = [-0.62, -0.41, -0.55, -0.48]


@pytest.mark.parametrize("bound", [0.0, -0.4, -0.6])
def test_one_bound_is_the_two_sided_t_test(bound: float) -> None:
    from scipy.stats import ttest_1samp  # importing it takes two seconds

    p = float(ttest_1samp(EFFECTS, bound).pvalue)
    below = t_test(EFFECTS, -INF, bound, 0.95)
    above = t_test(EFFECTS, bound, INF, 0.95)
    assert below.p == above.p == pytest.approx(p)
    mean_is_below = sum(EFFECTS) / 4 < bound
    assert (below.inside, below.outside) == ((pytest.approx(p), 1) if mean_is_below else (1, pytest.approx(p)))
    assert (above.inside, above.outside) == (below.outside, below.inside)
    assert t_test(EFFECTS, bound, 9.0, 0.95).outside == pytest.approx(min(1, 2 * above.outside))


@pytest.mark.parametrize(("low", "high"), [(-INF, 0.0), (-0.3, INF), (-0.7, -0.3), (-0.52, -0.5), (0.1, 0.2)])
def test_it_decides_exactly_where_the_interval_does(low: float, high: float) -> None:
    draw = random.Random(7)
    for _ in range(300):
        effects = [draw.gauss(-0.5, 0.2) for _ in range(draw.randint(2, 6))]
        tested = t_test(effects, low, high, 0.95)
        start, end = tested.interval
        assert (tested.inside < 0.05) == (low < start and end < high)
        if math.isinf(low) or math.isinf(high):
            assert (tested.outside < 0.05) == (end < low or high < start)
        elif tested.outside < 0.05:  # with a factor of two for the two bounds
            assert end < low or high < start


def test_without_a_spread_there_is_no_p_value() -> None:
    for effects in ([-1.0], [-1.0, -1.0, -1.0]):
        tested = t_test(effects, -INF, 0.0, 0.95)
        assert (tested.p, tested.mean, tested.interval) == (None, -1.0, None)


def test_rounding_is_no_spread() -> None:
    """One more correct answer of 300 for both seeds, in percent: the differences differ in their last digits."""
    tested = t_test([0.3333333333333357, 0.3333333333333286], 0.0, INF, 0.95)
    assert (tested.p, tested.interval) == (None, None)
    draw = random.Random(3)
    for _ in range(2000):
        pairs = [(100 * (k + 1) / 300, 100 * k / 300) for k in draw.sample(range(299), 2)]
        effects = [own - base for own, base in pairs]
        for low, high in ((0.0, INF), (-INF, 0.0), (0.0, 1.0)):
            assert t_test(effects, low, high, 0.95, scale=max(pairs[0])).p is None


def test_a_difference_that_is_rounding_ties_with_its_bound() -> None:
    tied = [7e-15] * 6
    assert sign_test([*tied, INF], 0.0, INF, scale=50.0) == sign_test([INF], 0.0, INF)
    assert sign_test([0.0, -INF, -1], -INF, 0.0) == sign_test([-INF, -1], -INF, 0.0)
    assert is_inside(7e-15, 0.0, INF, 50.0) is None
    assert is_inside(7e-15, 0.0, INF, 1e-14) is True
    assert (is_inside(INF, 0.0, INF, 50.0), is_inside(-INF, 0.0, INF, 50.0)) == (True, False)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_effects_of_any_size_are_tested(size: float) -> None:
    tested = t_test([size * effect for effect in EFFECTS], -INF, 0.0, 0.95)
    assert tested.p == pytest.approx(t_test(EFFECTS, -INF, 0.0, 0.95).p)


@pytest.mark.parametrize(("effects", "k"), [([-INF] * 6, 6), ([-INF, -1, -1, -2, 1], 4), ([INF, 1, 1], 0)])
def test_diverged_runs_are_counted_by_sign(effects: list[float], k: int) -> None:
    tested = sign_test(effects, -INF, 0.0)
    n = len(effects)
    from scipy.stats import binomtest  # importing it takes two seconds

    assert tested.inside == pytest.approx(min(1, 2 * binomtest(k, n, alternative="greater").pvalue))
    assert tested.outside == pytest.approx(min(1, 2 * binomtest(n - k, n, alternative="greater").pvalue))


LAYERS = 12


def taken(monkeypatch: pytest.MonkeyPatch, values: list[float], **feature: object) -> float | None:
    """Return the number of a run that recorded `values` at the inputs of its layers and of the final norm."""
    lone = entry(size={"like": "71m", "layers": LAYERS}, axes={"size": "own"})
    recorded = {lone.cell.key: [(600, dict(enumerate(values)))]}
    monkeypatch.setattr(query, "layer_curves", lambda engine, keys, name, until: recorded)
    known = Recorded((lone,), results=result(lone, 30.0), engine=object())
    found = measure([lone], Feature(curve="output_variance", **feature), "seed", known)
    return found[lone.id].value


def test_the_output_of_a_layer_is_what_enters_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [10.0 * n for n in range(LAYERS + 1)]
    assert taken(monkeypatch, values, take="first") == 10.0
    assert taken(monkeypatch, values, take="last") == 120.0
    assert taken(monkeypatch, values, take="mean", layers=(3,)) == 30.0


def test_an_exponential_and_a_power_law_over_the_layers_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    exponential = [math.exp(0.2 * n) for n in range(LAYERS + 1)]
    assert taken(monkeypatch, exponential, take="exponential-aic") > 10
    power = [0.5, *(n**1.5 for n in range(1, LAYERS + 1))]
    assert taken(monkeypatch, power, take="exponential-aic") < -10
    assert taken(monkeypatch, [0.0] * (LAYERS + 1), take="exponential-aic") is None


def test_every_spike_counts_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    calm, wild = entry("lns"), entry("pre")
    spikes = {wild.cell.key: [(45, 8.3), (50, 49.3)]}
    stand_in(monkeypatch, lambda key, name: spikes.get(key, []), lambda key, name: [])
    results = {**result(calm, 30.0), **result(wild, 30.0)}
    known = Recorded((calm, wild), results=results, engine=object())
    found = measure([calm, wild], Feature(curve="spike_grad_norm", take="count"), "seed", known)
    assert [found[one.id].value for one in (calm, wild)] == [0.0, 2.0]
