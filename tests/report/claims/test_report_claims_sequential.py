"""The sequential evidence on claims, and the choice of the seeds to run next, from made-up results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from report_cells import entry, result

from gpas_cli.grid.claim import Claim, Comparison, Feature
from gpas_cli.grid.document import Mark, Node
from gpas_cli.grid.entry import Declared
from gpas_cli.report.claims.campaign import candidates, chances, chosen
from gpas_cli.report.claims.evaluate import evaluate
from gpas_cli.report.claims.sequential import ClaimEvidence, assess
from gpas_cli.report.claims.verdict import Verdict
from gpas_cli.report.recorded import Recorded

LOWER = Comparison(
    says="", grids=("demo",), subject={"gate": ("gpas",)}, against={"gate": "none"},
    value=Feature(metric="perplexity"), high=0.0, by=("norm",),
)  # fmt: skip
BASE = 34.0
Effects = Sequence[float | str | None]


def verdict(effects: dict[str, Effects], comparison: Comparison = LOWER, *, declared: int = 99) -> Verdict:
    """Return the verdict on made-up effects by scheme, one for each seed; None is missing, a word is a state.

    The seeds after `declared` are added ones.
    """
    entries: list[Any] = []
    results: dict[str, Any] = {}
    states: dict[str, tuple[str, float | None]] = {}
    settings = Node({}, Mark("e.yaml", 1, 1))
    for norm, values in effects.items():
        for seed, effect in enumerate(values, 1):
            base, own = (
                replace(cell, declared=Declared("demo", settings, {}, seed > declared))
                for cell in (entry(norm, "none", seed), entry(norm, "gpas", seed))
            )
            entries += [base, own]
            results |= result(base, BASE + seed)
            if effect == "diverged":
                results |= result(own, outcome="diverged")
            elif isinstance(effect, str):
                states[own.cell.key] = (effect, None)
            elif effect is not None:
                results |= result(own, BASE + seed + effect)
    return evaluate(Claim("c", "A claim.", (comparison,)), Recorded(tuple(entries), states, results))


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
    assert usual.p is not None
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


def test_only_declared_seeds() -> None:
    assert candidates([assessed({"pre": NOISE})], 0.05, 8, declared_only=True) == []
    (found,) = candidates([assessed({"pre": (*NOISE, None, None)})], 0.05, 8, declared_only=True)
    assert found.seeds == (7, 8)


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


def test_a_cheap_part_goes_before_an_expensive_one() -> None:
    found = candidates([assessed({"pre": (-0.8, -0.5, -0.9), "lns": (-0.8, -0.5, -0.9)})], 0.05, 8)
    assert [candidate.at for candidate in chosen(found, [1.0, 50.0])] == [(0, 0)]
    assert [candidate.at for candidate in chosen(found, [50.0, 1.0])] == [(0, 1)]
    assert [candidate.at for candidate in chosen(found, [1.5, 1.0])] == [(0, 1), (0, 0)]
    assert chosen([], []) == []


def test_a_promising_part_goes_before_a_hopeless_one() -> None:
    found = candidates([assessed({"pre": (0.9, -0.8, 0.5, -0.6), "lns": (-0.8, -0.5, -0.9)})], 0.05, 6)
    assert [candidate.at for candidate in chosen(found, [1.0, 1.0])] == [(0, 1)]


def test_the_further_seeds_are_shown_with_their_uncertainty() -> None:
    (part,) = verdict({"pre": (-0.9, 0.4, -0.7)}).parts
    assert part.needed is not None
    fewest, most = part.needed_range
    assert fewest is not None
    assert fewest < part.needed
    assert most is None
    assert part.needed_text == f"{part.needed} ({fewest} or more)"
    assert verdict({"pre": CLEAR}).parts[0].needed_text == ""
    assert verdict({"pre": (-0.9,)}).parts[0].needed_text == ""
