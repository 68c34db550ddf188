"""Verdicts on claims as the page shows them: the documents of `gpas claims --json`, and the texts made of them."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpas_cli.grid.declared import Experiments
from gpas_cli.report.claims.declared import select_claims
from gpas_cli.report.claims.evaluate import evaluate
from gpas_cli.report.claims.verdict import WORDS, ClaimJson, ClaimPartJson, claim_json
from gpas_cli.report.papers import load
from gpas_cli.report.recorded import Recorded
from gpas_cli.words import count, listed

_DRAWING_WIDTH = 180.0  # of an interval, in its own units
_DRAWING_MARGIN = 0.08  # a fraction of the range of values, on both sides


def claims_of(experiments: Experiments, known: Recorded, grids: Sequence[str]) -> Iterator[ClaimJson]:
    """Yield the claims about these grids alone, whose cells `known` covers."""
    for claim in select_claims(experiments, grids=grids) if grids else ():
        if set(claim.grids) & set(experiments.grids) <= set(grids):
            yield claim_json(evaluate(claim, known))


def _numbered(claims: Sequence[ClaimJson], wanted: bool = True) -> list[ClaimJson]:
    """Return the claims with a number, or those without one."""
    return [claim for claim in claims if any(part["n"] for part in claim["parts"]) is wanted]


def _source(claim: ClaimJson) -> str:
    source = claim["source"]
    paper = str(load(source.paper)["short"]) if source.paper else "experiments.yaml"
    return f"{paper}, {source.where}" if source.where else paper


def _remarks(claim: ClaimJson) -> list[str]:
    """Return what is said of the whole claim: the claimed range if its parts share it, verdicts of parts, a reason."""
    counts = Counter(part["verdict"] for part in claim["parts"])
    verdicts = [f"{counts[word]} of {len(claim['parts'])} parts {word}"
                for word in WORDS if counts[word]]  # fmt: skip
    several = len(claim["parts"]) > 1
    return [text for text in (_common_range(claim), ", ".join(verdicts) if several else "", claim["reason"]) if text]


def _part_remarks(part: ClaimPartJson, claim: ClaimJson) -> list[str]:
    further = part["needed"] if part["verdict"] == "undecided" else None
    remark = part["reason"] or (f"about {count(further, 'more seed')} would decide" if further else "")
    return [text for text in ("" if _common_range(claim) else _claimed(part), remark) if text]


def _common_range(claim: ClaimJson) -> str:
    ranges = {_claimed(part) for part in claim["parts"]}
    return ranges.pop() if len(ranges) == 1 else ""


def _missing(claim: ClaimJson) -> str:
    names = list(dict.fromkeys(one["cell"] for one in claim["missing"]))
    return f"{count(len(names), 'cell')} without this number: {listed(names)}" if names else ""


def _claimed(part: ClaimPartJson) -> str:
    """Return the claimed range in words: "perplexity, difference below 0"."""
    low, high = part["low"], part["high"]
    if low is None:
        return f"{part['value']}, {part['compare']} below {high:g}"
    return f"{part['value']}, {part['compare']} {f'above {low:g}' if high is None else f'between {low:g} and {high:g}'}"


def _effect(part: ClaimPartJson) -> str:
    ends = part["interval"]
    return _short(part["effect"]) + (f" [{_short(ends[0])}, {_short(ends[1])}]" if ends else "")


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}".replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True)
class _Drawing:
    """Positions from 0 to `width`: the claimed range, the effect, its interval, and the published effect."""

    claimed: tuple[float, float]
    effect: float
    interval: tuple[float, float] | None
    published: float | None
    width: float = _DRAWING_WIDTH


def _drawing(part: ClaimPartJson, claim: ClaimJson) -> _Drawing | None:
    """Return the drawing of a part, on one scale with the parts that compare the same number; None without a number."""
    if part["effect"] is None or not math.isfinite(part["effect"]):
        return None
    alike = [one for one in claim["parts"] if (one["compare"], one["value"]) == (part["compare"], part["value"])]
    shown: list[float] = [value for one in alike for value in (one["low"], one["high"], one["effect"], one["published"],
             *(one["interval"] or ())) if value is not None and math.isfinite(value)]  # fmt: skip
    margin = (max(shown) - min(shown) or 1.0) * _DRAWING_MARGIN
    first, last = min(shown) - margin, max(shown) + margin

    def place(value: float) -> float:
        return round(_DRAWING_WIDTH * (min(max(value, first), last) - first) / (last - first), 1)

    low, high, ends, published = part["low"], part["high"], part["interval"], part["published"]
    return _Drawing(
        claimed=(place(first if low is None else low), place(last if high is None else high)),
        effect=place(part["effect"]),
        interval=(place(ends[0]), place(ends[1])) if ends else None,
        published=None if published is None else place(published),
    )


_FUNCTIONS = (_numbered, _source, _remarks, _part_remarks, _missing, _effect, _short, _drawing)
FILTERS: dict[str, Callable[..., Any]] = {function.__name__[1:]: function for function in _FUNCTIONS}
