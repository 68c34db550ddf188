"""Verdicts on claims as a data frame, for notebooks: `gpas_cli.results.claims`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpas_cli.extensions.claims.declared import select_claims
from gpas_cli.extensions.claims.evaluate import evaluate
from gpas_cli.extensions.claims.verdict import ClaimJson, claim_json

if TYPE_CHECKING:
    import pandas as pd

    from gpas_cli.results import Results


_CLAIM_COLUMNS = (
    *("claim", "statement", "source", "where", "toy", "part", "labels", "verdict", "claim_verdict"),
    *("effect", "low", "high", "n", "p", "adjusted", "needed", "published", "direction", "reason", "command"),
)


def claims(results: Results, *names: str, grids: Sequence[str] = (), toy: bool | None = None) -> pd.DataFrame:
    """Return one row for each part of each claim, the papers' and the file's, as `gpas claims` judges them.

    verdict: of the part; claim_verdict: of the whole claim. effect, low, high: the mean effect and its
    95 % interval; p, adjusted: of the test, and by Holm over the parts; needed: further seeds that the test needs.
    `toy` selects claims at toy size or, if False, at paper size. Raises GpasError for an unknown name.
    """
    chosen = select_claims(results.experiments, names, grids=grids, toy=toy)
    of = dict.fromkeys(grid for claim in chosen for grid in claim.grids if grid in results.grids)
    if not of:
        return _claims_frame([])
    with results.recorded(list(of), ()) as known:
        return _claims_frame([claim_json(evaluate(claim, known)) for claim in chosen])


def _claims_frame(claims: Sequence[ClaimJson]) -> pd.DataFrame:
    """Return one row for each part of each claim; a claim without parts has one row."""
    import pandas as pd

    rows = [row for claim in claims for row in _claim_rows(claim)]
    return pd.DataFrame(rows, columns=list(_CLAIM_COLUMNS)).astype({"needed": "Int64", "n": "Int64"})


def _claim_rows(claim: ClaimJson) -> Iterator[dict[str, Any]]:
    whole = {**vars(claim), **vars(claim.source), "claim": claim.name, "source": claim.source.paper,
             "claim_verdict": claim.verdict, "needed": None, "p": None}  # fmt: skip
    if not claim.parts:
        yield {**whole, "n": 0}
    for part in claim.parts:
        low, high = part.interval or (math.nan, math.nan)
        yield {**whole, **vars(part), "part": part.title, "low": low, "high": high, "adjusted": part.adjusted_p}
