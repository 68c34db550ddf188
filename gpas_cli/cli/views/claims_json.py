"""Verdicts on claims for `gpas claims --json`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from gpas_cli.documents import DocumentJson, NumberJson

if TYPE_CHECKING:
    from gpas_cli.report.claims.measure import Measured
    from gpas_cli.report.claims.pairs import Pair
    from gpas_cli.report.claims.verdict import Part, Verdict


VerdictWord = Annotated[str, ("supported", "contradicted", "undecided")]


class ClaimSourceJson(TypedDict):
    """Where the claim is made."""

    paper: Annotated[str, "a source of published numbers such as gpas; empty for a claim of your own"]
    where: Annotated[str, "section, table or figure"]
    quote: str


class ClaimSeedJson(TypedDict):
    """One seed of one part."""

    seed: Annotated[Any, "the label on the axis of seeds"]
    own: Annotated[NumberJson | None, "the number of the subject; inf or -inf for a run that diverged"]
    base: Annotated[NumberJson | None, "that of the base; null too if values are compared"]
    effect: Annotated[
        NumberJson | None, "difference, ratio or value; null if a number is missing or both runs diverged"
    ]
    cells: Annotated[
        list[str],
        "grid/name of the subject, of the base, of those that `best` compares them with, and the same for `across`",
    ]
    states: list[str]


class ClaimPartJson(TypedDict):
    """One comparison at one combination of labels."""

    title: str
    labels: Annotated[dict[str, Any], "the labels on the axes `by`"]
    compare: Annotated[str, ("difference", "ratio", "value")]
    value: Annotated[str, "the number that is compared, in words"]
    low: Annotated[float | None, "the claimed interval of the effect; null: unbounded"]
    high: float | None
    verdict: VerdictWord
    test: Annotated[str, ("t", "sign", "each-run", "sequential"), "sequential: seeds were added to decide the claim"]
    effect: Annotated[float | None, "the mean over seeds; of ratios, the geometric mean"]
    interval: Annotated[list[float] | None, "its 95 % interval"]
    p: Annotated[float | None, "two-sided, for the side of the claimed interval on which the effect is"]
    adjusted_p: Annotated[float | None, "by Holm over the parts of the claim"]
    n: Annotated[int, "seeds with an effect"]
    needed: Annotated[int | None, "further seeds that decide with a probability of 80 % at today's effect and spread"]
    needed_range: Annotated[list[int | None], "the same at the ends of the effect's 80 % interval"]
    diverged: Annotated[int, "runs that diverged"]
    published: Annotated[float | None, "the effect in the source"]
    reason: Annotated[str, "why there is no test, or how it was decided without one"]
    seeds: list[ClaimSeedJson]


class MissingRunJson(TypedDict):
    """A run without the number."""

    cell: str
    key: str
    state: str


class ClaimJson(TypedDict):
    """One claim at one size."""

    name: str
    statement: str
    source: ClaimSourceJson
    toy: Annotated[bool, "whether the cells are of toy size, whatever the claim is about"]
    grids: list[str]
    verdict: VerdictWord
    reason: str
    p: Annotated[
        float | None, "the largest p of the parts, all of which must hold; if contradicted, the smallest adjusted"
    ]
    needed: Annotated[int | None, "further seeds with which every part would be decided"]
    parts: list[ClaimPartJson]
    missing: list[MissingRunJson]
    command: Annotated[str, "brings the claim nearer to a verdict; empty if it is decided or its runs are under way"]


class ClaimsJson(DocumentJson):
    """`gpas claims --json`."""

    claims: list[ClaimJson]


def claim_json(verdict: Verdict) -> ClaimJson:
    """Return the verdict on a claim for JSON."""
    claim = verdict.claim
    return {
        "name": claim.name,
        "statement": claim.statement,
        "source": {"paper": claim.source.paper, "where": claim.source.where, "quote": claim.source.quote},
        "toy": claim.toy,
        "grids": list(claim.grids),
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "p": verdict.p,
        "needed": verdict.needed,
        "parts": [_part(part) for part in verdict.parts],
        "missing": [{"cell": one.entry.id, "key": one.key, "state": one.state} for one in verdict.missing],
        "command": verdict.command,
    }


def _part(part: Part) -> ClaimPartJson:
    comparison = part.comparison
    return {
        "title": part.title,
        "labels": dict(part.labels),
        "compare": comparison.compare,
        "value": comparison.value.title,
        "low": comparison.low if math.isfinite(comparison.low) else None,
        "high": comparison.high if math.isfinite(comparison.high) else None,
        "verdict": part.verdict,
        "test": part.test,
        "effect": part.effect,
        "interval": list(part.interval) if part.interval else None,
        "p": part.p,
        "adjusted_p": part.adjusted,
        "n": part.n,
        "needed": part.needed,
        "needed_range": list(part.needed_range),
        "diverged": part.diverged(),
        "published": part.published,
        "reason": part.reason,
        "seeds": [_seed(part, pair) for pair in part.pairs],
    }


def _seed(part: Part, pair: Pair) -> ClaimSeedJson:
    effect = None if pair.effect is None else part.shown(pair.effect)
    return {
        "seed": pair.seed,
        "own": _number(pair.own),
        "base": _number(pair.base),
        "effect": effect,
        "cells": [one.status.entry.id for one in pair.measured],
        "states": [one.status.state for one in pair.measured],
    }


def _number(one: Measured | None) -> float | None:
    return one.value if one else None
