"""The evidence of the sequential test as text for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from gpas_cli.cli.views.claims_json import VerdictWord
from gpas_cli.documents import DocumentJson, NumberJson
from gpas_cli.words import count, listed

if TYPE_CHECKING:
    from gpas_cli.cli.campaign import Campaign, Round, Rules
    from gpas_cli.cli.views.columns import Columns
    from gpas_cli.errors import Exit
    from gpas_cli.plan.estimate import Estimate
    from gpas_cli.report.claims.rounds import Candidate
    from gpas_cli.report.claims.sequential import ClaimEvidence, PartEvidence

STYLES = {"supported": "green", "contradicted": "red", "undecided": "yellow"}
NAMED = 6  # cells in one line


class EvidencePartJson(TypedDict):
    """The evidence on one part of a claim."""

    title: str
    labels: Annotated[dict[str, Any], "the labels on the axes `by`"]
    verdict: VerdictWord
    seeds: Annotated[list[int], "the seeds that the evidence is made of, in order"]
    effects: Annotated[list[NumberJson | None], "of these seeds; null if both runs diverged"]
    effect: Annotated[float | None, "the mean of the finite effects; of ratios, the geometric mean"]
    interval: Annotated[list[float] | None, "the confidence sequence; null: still unbounded"]
    e_for: Annotated[float, "e-value for the claimed interval; the part is supported from 1 / level on"]
    e_against: Annotated[float, "e-value against it"]
    pending: Annotated[list[int], "further seeds of the grids that are not all recorded"]


class EvidenceJson(TypedDict):
    """The evidence on one claim."""

    name: str
    statement: str
    toy: bool
    verdict: VerdictWord
    reason: str
    parts: list[EvidencePartJson]


class NextSeedsJson(TypedDict):
    """What the next round would run for one part."""

    claim: str
    part: str
    seeds: list[int]
    cells: list[str]
    gpu_hours: float
    core_hours: float
    chances: Annotated[list[float], "of a decision after 1, 2, ... further seeds, by the effects so far"]


class RunClaimsJson(DocumentJson):
    """The document of `gpas run claims`."""

    exit_code: int
    level: Annotated[float, "the probability of a wrong verdict, at most"]
    max_seeds: int
    rounds: Annotated[int, "rounds of runs in this invocation"]
    claims: list[EvidenceJson]
    added: Annotated[dict[str, dict[str, list[int]]], "seeds added by this invocation, by grid and cell"]
    next: Annotated[list[NextSeedsJson], "of --dry-run"]


def evidence_table(claims: Sequence[ClaimEvidence], rules: Rules) -> Columns:
    """Return a row for each claim and each of its parts: seeds, mean effect, interval and e-values."""
    from gpas_cli.cli.views.columns import Columns

    rows: list[tuple[Any, ...]] = []
    for claim in claims:
        whole = (claim.verdict, STYLES[claim.verdict])
        if len(claim.parts) == 1:
            rows.append((claim.claim.name, *_numbers(claim.parts[0], rules), whole))
            continue
        rows.append((claim.claim.name, "", "", "", "", "", whole))
        for part in claim.parts:
            rows.append((f"  {part.part.title}", *_numbers(part, rules), (part.verdict, STYLES[part.verdict])))
    percent = f"{100 * (1 - rules.level):g} % interval"
    headers = ("claim", "seeds", "effect", percent, "for", "against", "verdict")
    return Columns(headers, rows, right=frozenset(("seeds", "effect", "for", "against")))


def _numbers(part: PartEvidence, rules: Rules) -> tuple[str, str, str, str, str]:
    effect = "" if part.effect is None else f"{part.effect:+.4g}"
    limits = part.interval
    interval = "" if limits is None else f"{limits[0]:+.4g} to {limits[1]:+.4g}"
    seeds = f"{len(part.seeds)}/{max(rules.max_seeds, len(part.seeds))}"
    return seeds, effect, interval, _e(part.evidence.inside), _e(part.evidence.outside)


def _e(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else f"{value:.0e}" if value < 1e300 else "certain"


def round_lines(following: Round, state: Sequence[ClaimEvidence]) -> str:
    """Return what a round runs: a line for each part that gets seeds."""
    lines = []
    for one in following:
        number = len(one.part.seeds)
        seeds = f"{'seed' if number == 1 else 'seeds'} {listed([str(seed) for seed in one.part.seeds], NAMED)}"
        lines.append(
            f"{_title(one.part, state)}: {seeds}, {count(len(one.cells), 'cell')}, "
            f"{_device_time(one.cost)}; decides it with a chance of {100 * one.part.chances[number - 1]:.0f} %"
        )
    return "\n".join(["Next:", *(f"  {line}" for line in lines)] if lines else ["Nothing to run."])


def _device_time(guess: Estimate) -> str:
    """Return the estimated device time of a round's jobs, which may all be queued, running or over."""
    from gpas_cli.cli.views.plan import cost

    return f"about {cost(guess)}" if guess.gpu_hours or guess.core_hours else "no new job"


def _title(candidate: Candidate, state: Sequence[ClaimEvidence]) -> str:
    claim = state[candidate.at[0]].claim.name
    return f"{claim}, {candidate.part.part.title}" if candidate.part.part.title else claim


def conclusions(claims: Sequence[ClaimEvidence], stuck: Sequence[PartEvidence], rules: Rules) -> Iterator[str]:
    """Yield a sentence for each claim, and what prevents parts from getting more seeds."""
    for claim in claims:
        name = claim.claim.name
        if claim.reason:
            yield f"{name}: {claim.reason}"
        elif claim.verdict != "undecided":
            yield f"{name} is {claim.verdict}, by a test that errs with a probability of at most {rules.level:g}."
        elif all(len(part.seeds) >= rules.max_seeds for part in claim.parts if part.verdict == "undecided"):
            yield f"{name} is undecided with {rules.max_seeds} seeds; --max-seeds {2 * rules.max_seeds} continues."
        else:
            yield f"{name} is undecided."
    for part in stuck:
        blocking = {status.entry.id: status.state for status in part.waiting(part.pending[:1])}
        if blocking:
            cells = listed([f"{name} ({state})" for name, state in blocking.items()], NAMED)
            yield f"{part.part.title or part.part.comparison.says}: no number from {cells}; see `gpas why CELL`"


def document(campaign: Campaign, claims: Sequence[ClaimEvidence], following: Round, code: Exit) -> RunClaimsJson:
    """Return the document of a campaign."""
    return {
        "schema": 1,
        "exit_code": int(code),
        "level": campaign.rules.level,
        "max_seeds": campaign.rules.max_seeds,
        "rounds": campaign.rounds,
        "claims": [_claim(claim) for claim in claims],
        "added": campaign.added,
        "next": [
            {
                "claim": claims[one.part.at[0]].claim.name,
                "part": one.part.part.part.title,
                "seeds": list(one.part.seeds),
                "cells": [entry.id for entry in one.cells],
                "gpu_hours": one.cost.gpu_hours,
                "core_hours": one.cost.core_hours,
                "chances": list(one.part.chances),
            }
            for one in following
        ],
    }


def _claim(claim: ClaimEvidence) -> EvidenceJson:
    return {
        "name": claim.claim.name,
        "statement": claim.claim.statement,
        "toy": claim.claim.toy,
        "verdict": claim.verdict,
        "reason": claim.reason,
        "parts": [
            {
                "title": part.part.title,
                "labels": dict(part.part.labels),
                "verdict": part.verdict,
                "seeds": list(part.seeds),
                "effects": [None if x is None else part.part.shown(x) for x in part.effects],
                "effect": part.effect,
                "interval": list(part.interval) if part.interval else None,
                "e_for": part.evidence.inside,
                "e_against": part.evidence.outside,
                "pending": list(part.pending),
            }
            for part in claim.parts
        ],
    }
