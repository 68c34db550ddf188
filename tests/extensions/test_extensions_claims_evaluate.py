"""Verdicts on claims about made-up results."""

import itertools
import math
import random
from statistics import correlation, stdev, variance
from typing import Any

import pytest
from curve_database import stand_in
from report_cells import Numbers, comparison, entry, known, result

from gpas_cli.errors import GpasError
from gpas_cli.extensions.claims.checks import feature_fault
from gpas_cli.extensions.claims.evaluate import evaluate, is_inside, sign_test, t_test
from gpas_cli.extensions.claims.measure import Measured, _effect, measure
from gpas_cli.extensions.claims.sequential import CONTRADICTED, SUPPORTED, UNDECIDED
from gpas_cli.extensions.claims.verdict import Verdict
from gpas_cli.grid.declared import Claim, Comparison, Entry, Feature
from gpas_cli.report import query
from gpas_cli.report.recorded import Recorded
from gpas_cli.report.tables.entry_status import EntryStatus
from gpas_cli.spec.model import SIZES
from gpas_cli.spec.parse import plain
from gpas_cli.statistics.stats import two_sided_p

INF = math.inf
CLEAR = {("pre", "none"): (34.0, 34.3, 34.1), ("pre", "gpas"): (33.1, 33.5, 33.2)}


def verdict(numbers: Numbers, *comparisons: Comparison, **changes: Any) -> Verdict:
    return evaluate(Claim("c", "A claim.", comparisons or (comparison(**changes),)), known(numbers))


def test_a_clear_difference_supports_the_claim() -> None:
    found = verdict(CLEAR)
    (part,) = found.parts
    assert (found.verdict, part.verdict, part.title, part.n) == (SUPPORTED, SUPPORTED, "Pre-LN", 3)
    assert part.effect == pytest.approx(-0.8667, abs=1e-4)
    assert part.interval[0] < part.effect < part.interval[1] < 0
    assert part.p == part.adjusted == found.p < 0.01
    assert (found.missing, found.command) == ((), "")
    assert [(pair.seed, round(pair.effect, 6)) for pair in part.pairs] == [(1, -0.9), (2, -0.8), (3, -0.9)]


def test_a_clear_difference_the_other_way_contradicts_it() -> None:
    swapped = {("pre", "none"): CLEAR["pre", "gpas"], ("pre", "gpas"): CLEAR["pre", "none"]}
    found = verdict(swapped)
    assert (found.verdict, found.command) == (CONTRADICTED, "")
    assert found.p < 0.01


def test_a_small_difference_leaves_it_undecided_and_says_how_many_seeds_would_decide() -> None:
    found = verdict({("pre", "none"): (34.0, 34.3, 34.1), ("pre", "gpas"): (33.9, 34.35, 33.8)})
    (part,) = found.parts
    assert found.verdict == UNDECIDED
    assert part.needed == found.needed > 1
    assert found.command == "gpas run claims c --max-seeds 8"


@pytest.mark.parametrize("numbers", [(30.0,), (30.0, None, None)])
def test_one_seed_never_decides(numbers: tuple[float | None, ...]) -> None:
    found = verdict({("pre", "none"): (34.0, 34.3, 34.1)[: len(numbers)], ("pre", "gpas"): numbers})
    (part,) = found.parts
    assert (found.verdict, part.p, part.effect, part.needed) == (UNDECIDED, None, -4.0, None)
    assert part.reason == "one seed: a test needs two or more"
    assert part.direction == found.direction == "same sign, 1 seed (-4)"


@pytest.mark.parametrize(
    ("own", "changes", "expected"),
    [
        (33.0, {"published": {"gpas": "table2_perplexity"}}, "same sign, 1 seed (-1, published -0.74)"),
        (35.0, {"published": {"gpas": "table2_perplexity"}}, "opposite sign, 1 seed (1, published -0.74)"),
        (33.0, {"compare": "ratio", "high": 1.0, "printed": 0.9}, "same sign, 1 seed (0.9706, published 0.9)"),
        (35.0, {"compare": "ratio", "high": 1.0, "printed": 0.9}, "opposite sign, 1 seed (1.029, published 0.9)"),
        (34.1, {"low": 0.0, "high": INF}, "same sign, 1 seed (0.1)"),
        (34.1, {"against": {}, "compare": "value", "low": 0.0, "high": 34.0}, "outside, 1 seed (34.1)"),
    ],
)
def test_one_seed_shows_a_direction_which_is_no_verdict(own: float, changes: dict[str, Any], expected: str) -> None:
    found = verdict({("pre", "none"): (34.0,), ("pre", "gpas"): (own,)}, **changes)
    assert (found.verdict, found.direction, found.counts()[SUPPORTED]) == (UNDECIDED, expected, 0)


def test_the_directions_of_several_parts_are_counted() -> None:
    numbers = {
        (norm, gate): (34.0 + (gate == "gpas") * by,)
        for norm, by in (("pre", -1), ("lns", 1), ("mix", -2))
        for gate in ("none", "gpas")
    }
    assert verdict(numbers).direction == "2 same sign, 1 opposite sign, 1 seed"
    assert (
        verdict(CLEAR).direction == verdict({("pre", "none"): ("diverged",), ("pre", "gpas"): (30.0,)}).direction == ""
    )


def test_seeds_are_paired() -> None:
    drift = {("pre", "none"): (30.0, 40.0, 50.0), ("pre", "gpas"): (29.5, 39.55, 49.45)}
    assert verdict(drift).verdict == SUPPORTED


def spread(own: tuple[float | str, ...], base: tuple[float, ...]) -> Verdict:
    numbers = {("pre", "none"): base, ("pre", "gpas"): own}
    return verdict(numbers, compare="spread", test="spread")


def test_standard_deviations_are_compared_seed_by_seed() -> None:
    own, base = (30.1, 29.9, 30.2, 29.85, 30.0), (34.0, 36.0, 31.0, 35.0, 38.0)
    (part,) = spread(own, base).parts
    assert part.effect == pytest.approx(stdev(own) - stdev(base))
    ratio, r = variance(own) / variance(base), correlation(own, base)  # Morgan's form of the test
    t = (ratio - 1) * math.sqrt(len(own) - 2) / (2 * math.sqrt(ratio * (1 - r * r)))
    assert (part.verdict, part.p) == (SUPPORTED, pytest.approx(two_sided_p(t, len(own) - 2)))
    assert spread(base, own).verdict == CONTRADICTED
    assert (part.test, part.needed, spread((1.0, 4.0, 2.0), base[:3]).verdict) == ("spread", None, UNDECIDED)


@pytest.mark.parametrize("own", [(1.0, 3.0), (1.0, 3.0, "diverged"), (2.0, 2.0, 2.0), (35.0, 37.0, 32.0)])
def test_a_standard_deviation_without_enough_numbers_is_not_tested(own: tuple[float | str, ...]) -> None:
    """Too few seeds, one that diverged, no spread, and the same one as that of the base."""
    (part,) = spread(own, (34.0, 36.0, 31.0)[: len(own)]).parts
    assert (part.verdict, part.p) == (UNDECIDED, None)
    assert part.reason.startswith("a standard deviation is tested over three seeds or more")


def test_missing_runs_are_named_with_the_command_that_runs_them() -> None:
    numbers = {**CLEAR, ("lns", "none"): (30.0, None, 30.0), ("lns", "gpas"): (29.0, None, "running")}
    found = verdict(numbers)
    assert found.verdict == UNDECIDED
    assert {status.entry.name: status.state for status in found.missing} == {
        "71m-lns-none-2": "missing",
        "71m-lns-gpas-2": "missing",
        "71m-lns-gpas-3": "running",
    }
    assert found.command == "gpas run grid demo --where norm=lns --where seed=2"


@pytest.mark.parametrize(
    ("state", "command"),
    [
        *(
            (state, "gpas retry demo/71m-pre-gpas-1 demo/71m-pre-gpas-2")
            for state in ("failed", "cancelled", "unknown")
        ),
        ("done", "gpas db sync"),
        ("queued", ""),
    ],
)
def test_what_helps_depends_on_the_state(state: str, command: str) -> None:
    assert verdict({("pre", "none"): (34.0, 34.3), ("pre", "gpas"): (state, state)}).command == command


def test_every_part_must_hold_and_one_against_it_contradicts() -> None:
    worse = {("lns", "none"): (30.0, 30.2, 30.1), ("lns", "gpas"): (31.0, 31.25, 31.1)}
    found = verdict({**CLEAR, **worse})
    assert (found.verdict, found.counts()) == (CONTRADICTED, {SUPPORTED: 1, CONTRADICTED: 1, UNDECIDED: 0})
    unclear = {("lns", "none"): (30.0, 30.2, 30.1), ("lns", "gpas"): (29.9, 30.4, 30.0)}
    assert verdict({**CLEAR, **unclear}).verdict == UNDECIDED


def test_single_parts_are_corrected_for_their_number_but_the_claim_that_all_hold_is_not() -> None:
    # One part has p = 0.016; with seven unclear ones beside it, its adjusted p is eight times as large.
    weak = {"none": (34.0, 34.3, 34.1), "gpas": (33.4, 33.4, 33.45)}
    names = ("lns", "post", "sandwich", "mix", "deepnorm", "peri", "b2t")
    unclear = {(norm, gate): (30.0, 30.1, 29.8 + 0.2 * (gate == "none")) for norm in names for gate in ("none", "gpas")}
    found = verdict({**{("pre", gate): values for gate, values in weak.items()}, **unclear})
    first = found.parts[0]
    assert first.p < 0.05 < first.adjusted == pytest.approx(8 * first.p)
    assert first.verdict == UNDECIDED
    every = {(norm, gate): weak[gate] for norm in ("pre", *names) for gate in weak}
    found = verdict(every)
    assert found.parts[0].adjusted > 0.05
    assert found.verdict == SUPPORTED
    assert {part.verdict for part in found.parts} == {SUPPORTED}
    assert found.p == pytest.approx(first.p)


def test_a_diverged_run_is_worse_than_any_number() -> None:
    six = tuple(30.0 + seed for seed in range(6))
    found = verdict({("pre", "none"): ("diverged",) * 6, ("pre", "gpas"): six})
    (part,) = found.parts
    assert (found.verdict, part.test, part.effect, part.diverged) == (SUPPORTED, "sign", None, 6)
    assert part.p == pytest.approx(2 / 2**6)
    assert found.missing == ()
    found = verdict({("pre", "none"): six, ("pre", "gpas"): ("diverged",) * 6})
    assert found.verdict == CONTRADICTED


def test_a_run_that_was_not_finite_at_once_is_no_evidence() -> None:
    about = comparison(
        value=Feature(metric="diverged"), against={}, compare="value", test="each-run", low=0.5, high=INF
    )
    numbers = {("pre", "gpas"): ("not finite",)}
    found = verdict(numbers, about)
    assert (found.verdict, found.parts[0].diverged) == (UNDECIDED, 0)
    assert [status.state for status in found.missing] == ["not finite"]
    assert found.command == f"gpas retry --done {found.missing[0].entry.id}"
    assert verdict({**numbers, ("pre", "none"): (30.0,)}).parts[0].effect is None


def test_two_diverged_runs_of_a_seed_say_nothing() -> None:
    found = verdict({("pre", "none"): ("diverged", "diverged"), ("pre", "gpas"): ("diverged", 30.0)})
    (part,) = found.parts
    assert [pair.effect for pair in part.pairs] == [None, -INF]
    assert found.verdict == UNDECIDED


def test_of_ratios_the_geometric_mean_is_shown() -> None:
    found = verdict(CLEAR, compare="ratio", high=1.0)
    (part,) = found.parts
    ratios = [own / base for own, base in zip(CLEAR["pre", "gpas"], CLEAR["pre", "none"], strict=True)]
    assert part.effect == pytest.approx(math.prod(ratios) ** (1 / 3))
    assert found.verdict == SUPPORTED
    assert part.bounds() == (-INF, 0.0)


@pytest.mark.parametrize(("low", "high", "expected"), [(0.95, 1.05, SUPPORTED), (1.0, 1.05, CONTRADICTED)])
def test_a_ratio_between_two_bounds_is_an_equivalence_test(low: float, high: float, expected: str) -> None:
    assert verdict(CLEAR, compare="ratio", low=low, high=high).verdict == expected


def test_one_question_more_for_each_of_two_seeds_decides_nothing() -> None:
    numbers = {("pre", "none"): (100 * 151 / 300, 100 * 163 / 300), ("pre", "gpas"): (100 * 152 / 300, 100 * 164 / 300)}
    for low, high in ((0.0, INF), (-INF, 0.0), (0.2, 0.5)):
        found = verdict(numbers, low=low, high=high)
        (part,) = found.parts
        assert (found.verdict, part.p, part.interval, part.needed) == (UNDECIDED, None, None, None)
        assert part.reason == "the effects of all seeds are equal, so that their spread is unknown"


def test_ratios_that_are_equal_up_to_rounding_have_no_spread() -> None:
    bases = (3.3, 7.7, 11.1, 13.7)
    numbers = {("pre", "none"): bases, ("pre", "gpas"): tuple(1.1 * base for base in bases)}
    found = verdict(numbers, compare="ratio", low=1.0, high=INF)
    assert (found.verdict, found.parts[0].p) == (UNDECIDED, None)


@pytest.mark.parametrize(
    ("base", "own", "expected"),
    [(0.1 + 0.2, 0.3, CONTRADICTED), ("diverged", 30.0, SUPPORTED)],  # a difference of rounding is none
)
def test_one_run_decides_a_claim_about_each_run(base: float | str, own: float, expected: str) -> None:
    numbers = {("pre", "none"): (base,), ("pre", "gpas"): (own,)}
    assert verdict(numbers, test="each-run").verdict == expected


@pytest.mark.parametrize(("own", "base", "expected"), [(-INF, 50.0, -INF), (50.0, -INF, INF), (INF, 50.0, INF)])
def test_a_ratio_keeps_a_diverged_run_whichever_direction_is_better(own: float, base: float, expected: float) -> None:
    entries = [entry("pre", gate) for gate in ("gpas", "none")]
    statuses = [EntryStatus(one, 1, "key", "diverged", None) for one in entries]
    found = _effect(comparison(compare="ratio"), Measured(statuses[0], own), Measured(statuses[1], base))
    assert found == expected


def test_a_seed_whose_number_is_nan_is_left_out_and_counted() -> None:
    nan = math.nan
    six = tuple(30.0 + seed for seed in range(6))
    found = verdict({("pre", "none"): six, ("pre", "gpas"): (nan,) * 6})
    (part,) = found.parts
    assert (found.verdict, part.n, part.p, found.missing) == (UNDECIDED, 0, None, ())
    assert part.reason == "6 seeds left out: the number is NaN"
    found = verdict({gate: (*numbers, nan) for gate, numbers in CLEAR.items()})
    (part,) = found.parts
    assert (found.verdict, part.n, part.reason) == (SUPPORTED, 3, "1 seed left out: the number is NaN")
    assert part.p == verdict(CLEAR).parts[0].p
    found = verdict({("pre", "none"): ("diverged",) * 6, ("pre", "gpas"): (nan, *six[1:])})
    assert found.parts[0].n == 5
    each = verdict({("pre", "none"): (30.0, 30.0), ("pre", "gpas"): (29.0, nan)}, test="each-run")
    assert (each.verdict, each.parts[0].reason) == (
        UNDECIDED,
        "decided by each run, without a test; 1 seed left out: the number is NaN",
    )


def test_numbers_without_a_ratio_are_counted_and_huge_ratios_are_numbers() -> None:
    found = verdict({("pre", "none"): (3.0, 4.0), ("pre", "gpas"): (2.0, 0.0)}, compare="ratio", high=1.0)
    assert found.parts[0].reason.endswith("1 seed left out: the number is NaN or not positive")
    found = verdict({("pre", "none"): (3.0, 4.0), ("pre", "gpas"): (2.0, 1e300)}, compare="ratio", high=1.0)
    assert math.isfinite(found.parts[0].interval[1])


def test_a_claim_about_each_run_is_decided_without_a_test() -> None:
    gone = {"value": Feature(metric="diverged"), "against": {}, "compare": "value", "test": "each-run", "low": 0.5}
    about = comparison(**gone, subject={"gate": ("none",)}, high=INF)
    numbers = {("pre", "none"): ("diverged",), ("pre", "gpas"): (30.0,)}
    found = verdict(numbers, about)
    assert (found.verdict, found.parts[0].p, found.parts[0].test) == (SUPPORTED, None, "each-run")
    assert found.parts[0].reason == "decided by each run, without a test"
    assert verdict({("pre", "none"): ("diverged", 31.0)}, about).verdict == CONTRADICTED
    assert verdict({("pre", "none"): ("diverged", None)}, about).verdict == UNDECIDED


def test_the_interaction_across_two_labels() -> None:
    schemes = {("lns", "none"): (30.0, 30.2, 30.1), ("lns", "gpas"): (29.9, 30.15, 30.02)}
    found = verdict({**CLEAR, **schemes}, across=("norm", "pre", "lns"), by=())
    (part,) = found.parts
    assert [round(pair.effect, 6) for pair in part.pairs] == [-0.8, -0.75, -0.82]
    assert found.verdict == SUPPORTED
    assert len(part.pairs[0].measured) == 4


def test_a_subject_without_a_base_is_said() -> None:
    found = verdict({("pre", "gpas"): (30.0, 31.0)})
    assert (found.verdict, found.parts[0].reason) == (UNDECIDED, "demo/71m-pre-gpas-1 has no base in demo")


def test_a_claim_without_cells_is_undecided() -> None:
    assert verdict(CLEAR, grids=("other",)).reason == "no cell of grid other is declared here"
    assert verdict(CLEAR, subject={"gate": ("tanh",)}).reason == "no cell of demo is a subject of this claim"


def test_two_subjects_with_one_seed_are_refused() -> None:
    numbers = {**CLEAR, ("lns", "none"): (30.0,), ("lns", "gpas"): (29.0,)}
    with pytest.raises(GpasError, match="are both subjects with seed 1; add norm to `by`, or to `subject`"):
        verdict(numbers, by=())


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(GpasError, match="unknown metric 'perplexty'; did you mean 'perplexity'"):
        verdict(CLEAR, value=Feature(metric="perplexty"))


def test_the_published_effect_stands_beside_ours() -> None:
    found = verdict(CLEAR, published={"gpas": "table2_perplexity"})
    assert found.parts[0].published == pytest.approx(-0.74)
    found = verdict(CLEAR, published={"gpas": "table2_perplexity"}, compare="ratio", high=1.0)
    assert found.parts[0].published == pytest.approx(33.49 / 34.23)
    assert verdict(CLEAR, printed=0.5).parts[0].published == 0.5


def test_the_best_of_several_rates_counts_for_the_subject_and_for_the_base() -> None:
    numbers = {("none", 1e-3): 34.0, ("none", 2e-3): 33.5, ("gpas", 1e-3): 33.2, ("gpas", 2e-3): 33.4}
    entries: list[Entry] = []
    results: dict[str, Any] = {}
    for (gate, lr), value in numbers.items():
        for seed in (1, 2):
            optim = {"lr": lr, "warmup": 1000, "steps": 10_000}
            entries.append(entry("pre", gate, seed, axes={"optim.lr": lr}, optim=optim))
            results |= result(entries[-1], value + 0.1 * seed + (0.01 if gate == "gpas" and seed == 2 else 0))
    claim = Claim("c", "A claim.", (comparison(best="optim.lr"),))
    found = evaluate(claim, Recorded(tuple(entries), {}, results))
    assert found.verdict == SUPPORTED
    assert [round(pair.effect, 6) for pair in found.parts[0].pairs] == [-0.3, -0.29]
    without = {key: one for key, one in results.items() if key != entries[2].cell.key}
    unfinished = evaluate(claim, Recorded(tuple(entries), {}, without))
    assert [pair.effect is None for pair in unfinished.parts[0].pairs] == [True, False]
    assert [status.entry.id for status in unfinished.missing] == [entries[2].id]


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


@pytest.mark.parametrize(
    ("feature", "fault"),
    [
        (Feature(metric="loss", along=("size",)), "a law is {metric: loss, along: AXIS, take: exponent or offset}"),
        (Feature(metric="loss", take="exponent"), "a law is {metric: loss, along: AXIS, take: exponent or offset}"),
        (Feature(curve="gate", along=("size",), take="offset"), "a law is {metric: loss, along: AXIS"),
        (Feature(metric="loss", along=("size",), take="offset"), ""),
    ],
)
def test_a_law_needs_a_metric_an_axis_and_what_is_taken_from_it(feature: Feature, fault: str) -> None:
    assert feature_fault(feature).startswith(fault)


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


def test_nan_is_no_evidence() -> None:
    nan = math.nan
    assert (sign_test([nan] * 6, -INF, 0.0).inside, sign_test([nan] * 6, -INF, 0.0).outside) == (1, 1)
    assert sign_test([nan, -INF, -1.0], -INF, 0.0) == sign_test([-INF, -1.0], -INF, 0.0)
    assert t_test([nan, *EFFECTS], -INF, 0.0, 0.95) == t_test(EFFECTS, -INF, 0.0, 0.95)
    assert t_test([nan], -INF, 0.0, 0.95).p is None


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


@pytest.mark.parametrize(("low", "high", "mean"), [(-INF, 0.0, 0.0), (-0.5, 0.5, 0.5), (-0.5, 0.5, -0.5)])
def test_a_true_null_is_rejected_no_more_often_than_said(low: float, high: float, mean: float) -> None:
    draw = random.Random(11)
    runs = 4000
    tested = [t_test([draw.gauss(mean, 1) for _ in range(3)], low, high, 0.95) for _ in range(runs)]
    slack = 3 * math.sqrt(0.025 * 0.975 / runs)
    assert sum(one.inside <= 0.05 for one in tested) / runs <= 0.025 + slack
    assert sum(one.outside <= 0.05 for one in tested) / runs <= 0.025 + slack


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


def test_a_law_over_layers_is_taken_at_one_update() -> None:
    law = Feature(curve="output_variance", take="exponential-aic", updates="all")
    assert "a law of growth over layers is taken at one update" in feature_fault(law)


def test_every_spike_counts_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    calm, wild = entry("lns"), entry("pre")
    spikes = {wild.cell.key: [(45, 8.3), (50, 49.3)]}
    stand_in(monkeypatch, lambda key, name: spikes.get(key, []), lambda key, name: [])
    results = {**result(calm, 30.0), **result(wild, 30.0)}
    known = Recorded((calm, wild), results=results, engine=object())
    found = measure([calm, wild], Feature(curve="spike_grad_norm", take="count"), "seed", known)
    assert [found[one.id].value for one in (calm, wild)] == [0.0, 2.0]
    fault = feature_fault(Feature(curve="spike_grad_norm", take="count", updates=300))
    assert fault == "a count is of all updates; leave out updates"
