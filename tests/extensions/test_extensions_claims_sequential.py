"""The sequential test against an independent integral, its error rate under adversarial stopping, and its power."""

import math

import numpy as np
import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import gammaln

from gpas_cli.extensions.claims.sequential import EFFECT_SCALE, Evidence, decide, evidence, fewest, log_e, log_evidence

LEVEL = 0.05
MOST_SEEDS = 8
GRIDS = 1000
PARTS = 4


def test_the_closed_form_is_the_mixed_likelihood_ratio_of_t() -> None:
    """Integrate the ratio of noncentral to central densities over effects ~ N(0, EFFECT_SCALE^2) numerically."""
    numbers = np.array([0.4, 1.1, -0.2, 0.9, 0.7])
    n = len(numbers)
    share = numbers.sum() / math.sqrt((numbers**2).sum())

    def ratio(effect: float) -> float:
        # The likelihood of numbers / |numbers_1|: the density of the numbers with the scale r integrated out under the
        # measure dr / r, up to a factor without the effect.
        inner, _ = quad(lambda r: r ** (n - 1) * math.exp(-r * r / 2 + r * share * effect), 0, 40)
        return inner * math.exp(-n * effect * effect / 2) / math.exp(gammaln(n / 2) + (n / 2 - 1) * math.log(2))

    def density(effect: float) -> float:
        return math.exp(-((effect / EFFECT_SCALE) ** 2) / 2) / (EFFECT_SCALE * math.sqrt(2 * math.pi))

    mixed, _ = quad(lambda effect: density(effect) * ratio(effect), -10, 10)
    assert math.exp(log_e(numbers)[-1]) == pytest.approx(mixed, rel=1e-6)


def test_the_first_number_is_no_evidence() -> None:
    assert log_e(np.array([5.0, 5.1]))[0] == 0


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=8), st.floats(0.01, 100))
def test_the_unit_does_not_matter(numbers: list[int], factor: float) -> None:
    found = evidence(numbers, high=0.0)
    scaled = evidence([x * factor for x in numbers], high=0.0)
    assert scaled.inside == pytest.approx(found.inside, rel=1e-6)
    assert scaled.outside == pytest.approx(found.outside, rel=1e-6)


@given(st.lists(st.floats(-5, 5).map(lambda x: round(x, 3)), min_size=2, max_size=8), st.floats(-2, 2))
def test_verdicts_are_read_off_the_confidence_sequence(numbers: list[float], bound: float) -> None:
    found = evidence(numbers, low=bound, level=LEVEL)
    limits = found.interval
    if min(abs(found.p_inside - LEVEL), abs(found.p_outside - LEVEL)) < 1e-6 or max(found.inside, found.outside) > 1e6:
        return
    assert (found.p_inside <= LEVEL) == (limits is not None and limits[0] > bound)
    assert (found.p_outside <= LEVEL) == (limits is not None and limits[1] < bound)


@cases("extensions/cases.yaml", low=-math.inf, high=math.inf, scale=0.0)
def test_numbers_are_evidence_for(
    numbers: list[float], low: float, high: float, scale: float, where: str | None
) -> None:
    """Of equal numbers `where` is null: a seed that changes nothing makes copies of one result, not several results."""
    found = evidence(numbers, low, high, LEVEL, scale)
    assert ("inside" if found.p_inside <= LEVEL else "outside" if found.p_outside <= LEVEL else "") == (where or "")
    assert (found.inside, found.outside, found.interval) == (1.0, 1.0, None) or where is not None


@pytest.mark.parametrize("size", [1e-200, 1e200, 1e308])
def test_numbers_of_any_size_give_the_same_evidence(size: float) -> None:
    numbers = [0.5, 0.7, 0.4, 0.9, 0.6, 0.55]
    found, usual = evidence([x * size for x in numbers], low=0.0), evidence(numbers, low=0.0)
    assert (found.inside, found.outside) == pytest.approx((usual.inside, usual.outside))


def test_nan_is_no_evidence() -> None:
    assert evidence([math.nan, -0.5, math.nan, -0.7], high=0.0) == evidence([-0.5, -0.7], high=0.0)
    assert evidence([math.nan] * 6, high=0.0).n == 0


def test_a_diverged_run_only_prevents_decisions() -> None:
    lower = [-0.5, -0.7, -0.4, -0.9, -0.6, -0.55]
    assert evidence(lower, high=0.0).p_inside <= LEVEL
    # The base diverged: left out.
    assert evidence([*lower, -math.inf], high=0.0) == evidence(lower, high=0.0)
    # The subject diverged: no support, however good the other seeds are.
    assert evidence([*lower, math.inf], high=0.0).inside == 1.0
    assert evidence([*lower, math.inf], low=0.0).p_outside == 1.0
    assert evidence([*lower, -math.inf], low=0.0).p_outside <= LEVEL
    assert evidence([math.inf], high=0.0).n == 0


def test_evidence_so_far_is_kept() -> None:
    numbers = [-0.5, -0.7, -0.4, -0.9, -0.6, 2.0]
    assert evidence(numbers, high=0.0).inside == evidence(numbers[:5], high=0.0).inside


@pytest.mark.parametrize("level", [0.05, 0.0125, 0.001])
def test_the_fewest_seeds_that_decide(level: float) -> None:
    n = fewest(level)
    best = np.full(n, 1.0)
    best[0] += 1e-3
    assert math.exp(log_e(best)[-1]) >= 1 / level
    assert math.exp(log_e(best)[-2]) < 1 / level


def test_a_claim_needs_all_parts_and_one_refutes_it() -> None:
    strong, weak = Evidence(5, inside=20.5), Evidence(5, inside=19.5)
    assert decide([strong, strong], LEVEL) == ("supported", ("supported", "supported"))
    assert decide([strong, weak], LEVEL) == ("undecided", ("supported", "undecided"))
    # One of two parts needs twice the evidence to contradict the claim.
    assert decide([weak, Evidence(5, outside=39.0)], LEVEL)[0] == "undecided"
    assert decide([weak, Evidence(5, outside=41.0)], LEVEL) == ("contradicted", ("undecided", "contradicted"))
    assert decide([], LEVEL) == ("undecided", ())


def _adaptive(numbers: np.ndarray, high: float = 0.0) -> tuple[int, int, np.ndarray]:
    """Return how many grids support and contradict the claim "every mean is below `high`", and each part's seeds.

    `numbers` has shape (grids, parts, seeds). Each grid begins with two seeds. Then the part nearest to a decision gets
    the next one, until the claim is decided or no part may have more: stopping as favourable to errors as can be.
    """
    inside, outside = log_evidence(numbers, -math.inf, high)
    supported = contradicted = 0
    used = np.full(numbers.shape[:2], 2)
    for grid in range(len(numbers)):
        while True:
            at = [(part, used[grid, part] - 1) for part in range(numbers.shape[1])]
            parts = [Evidence(n + 1, math.exp(inside[grid, p, n]), math.exp(outside[grid, p, n])) for p, n in at]
            verdict, verdicts = decide(parts, LEVEL)
            free = [part for part, n in at if n + 1 < numbers.shape[2] and verdicts[part] == "undecided"]
            if verdict != "undecided" or not free:
                supported += verdict == "supported"
                contradicted += verdict == "contradicted"
                break
            used[grid, max(free, key=lambda part: max(parts[part].inside, parts[part].outside))] += 1
    return supported, contradicted, used


def _limit(share: float, n: int = GRIDS) -> float:
    """Return the count that a binomial of probability `share` exceeds with a probability of about 0.001."""
    return share * n + 3.1 * math.sqrt(share * (1 - share) * n)


@pytest.mark.parametrize(("parts", "shared"), [(1, 0.0), (PARTS, 0.0), (PARTS, 1.0)])
def test_false_claims_on_null_grids(parts: int, shared: float) -> None:
    """At most 5 % of 1,000 grids without an effect decide a claim, although their seeds follow the evidence.

    With a shared base, the differences of the parts are correlated by one half.
    """
    random = np.random.default_rng(14)
    base = shared * random.normal(0, 1, (GRIDS, 1, MOST_SEEDS))
    supported, contradicted, used = _adaptive(random.normal(0, 1, (GRIDS, parts, MOST_SEEDS)) - base)
    assert supported + contradicted <= _limit(LEVEL)
    assert used.max() == MOST_SEEDS


def test_false_support_when_all_parts_but_one_are_true() -> None:
    """The hardest false claim: three parts have a large effect, and the error is that of the fourth."""
    random = np.random.default_rng(16)
    means = np.array([-4.0, -4.0, -4.0, 0.0])[:, None]
    supported, _, _ = _adaptive(random.normal(0, 1, (GRIDS, PARTS, MOST_SEEDS)) + means)
    assert supported <= _limit(LEVEL)


def test_the_level_holds_at_every_number_of_seeds() -> None:
    """One look after each of 300 seeds: the interval misses the true mean in at most 5 % of sequences."""
    random = np.random.default_rng(17)
    ever = log_e(random.normal(0, 1, (GRIDS, 300))).max(axis=-1) >= math.log(1 / LEVEL)
    assert ever.sum() <= _limit(LEVEL)


@pytest.mark.parametrize(("effect", "least"), [(1.0, 0.2), (1.5, 0.55), (2.0, 0.8), (3.0, 0.97)])
def test_power_with_eight_seeds(effect: float, least: float) -> None:
    """The share of true claims that are supported, and no more than 5 % contradicted."""
    random = np.random.default_rng(18)
    supported, contradicted, _ = _adaptive(random.normal(-effect, 1, (GRIDS, 1, MOST_SEEDS)))
    assert supported >= least * GRIDS
    assert contradicted <= _limit(LEVEL)


@pytest.mark.parametrize("noise", ["uniform", "laplace", "exponential"])
def test_the_level_holds_for_other_noise(noise: str) -> None:
    """The noise of two runs of a pair has one shape, so that its difference is symmetric, if not Gaussian."""
    random = np.random.default_rng(21)
    draw = getattr(random, noise)
    differences = draw(size=(5 * GRIDS, MOST_SEEDS)) - draw(size=(5 * GRIDS, MOST_SEEDS))
    wrong = log_e(differences).max(axis=-1) >= math.log(1 / LEVEL)
    assert wrong.mean() <= LEVEL
