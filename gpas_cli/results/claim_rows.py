"""Verdicts on claims as a pandas frame."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from gpas_cli.report.claims.verdict import Verdict

_COLUMNS = (
    *("claim", "statement", "source", "where", "toy", "part", "labels", "verdict", "claim_verdict"),
    *("effect", "low", "high", "n", "p", "adjusted", "needed", "published", "reason", "command"),
)


def claims_frame(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    """Return one row for each part of each verdict; a claim without parts has one row."""
    import pandas as pd

    rows = [row for verdict in verdicts for row in _rows(verdict)]
    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype({"needed": "Int64", "n": "Int64"})


def _rows(verdict: Verdict) -> Iterator[dict[str, Any]]:
    claim = verdict.claim
    whole = {
        "claim": claim.name,
        "statement": claim.statement,
        "source": claim.source.paper,
        "where": claim.source.where,
        "toy": claim.toy,
        "claim_verdict": verdict.verdict,
        "command": verdict.command,
    }
    if not verdict.parts:
        yield {**whole, "verdict": verdict.verdict, "n": 0, "reason": verdict.reason}
    for part in verdict.parts:
        low, high = part.interval or (math.nan, math.nan)
        yield {
            **whole,
            "part": part.title,
            "labels": dict(part.labels),
            "verdict": part.verdict,
            "effect": part.effect,
            "low": low,
            "high": high,
            "n": part.n,
            "p": part.p,
            "adjusted": part.adjusted,
            "needed": part.needed,
            "published": part.published,
            "reason": part.reason,
        }
