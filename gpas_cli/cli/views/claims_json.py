"""Verdicts on claims for `gpas claims --json`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gpas_cli.cli.console import json_number

if TYPE_CHECKING:
    from gpas_cli.report.claims.measure import Measured
    from gpas_cli.report.claims.pairs import Pair
    from gpas_cli.report.claims.verdict import Part, Verdict


def claim_as_mapping(verdict: Verdict) -> dict[str, Any]:
    """Return the fields of schemas.claims.ClaimJson."""
    claim = verdict.claim
    return {
        "name": claim.name,
        "statement": claim.statement,
        "source": vars(claim.source),
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


def _part(part: Part) -> dict[str, Any]:
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


def _seed(part: Part, pair: Pair) -> dict[str, Any]:
    effect = None if pair.effect is None else part.shown(pair.effect)
    return {
        "seed": pair.seed,
        "own": _number(pair.own),
        "base": _number(pair.base),
        "effect": None if effect is None else json_number(effect),
        "cells": [one.status.entry.id for one in pair.measured],
        "states": [one.status.state for one in pair.measured],
    }


def _number(one: Measured | None) -> Any:
    return None if one is None or one.value is None else json_number(one.value)
