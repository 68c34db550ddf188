"""The document of `gpas claims`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from gpas_cli.cli.schemas.common import DocumentJson, NumberJson

VerdictWord = Literal["supported", "contradicted", "undecided"]


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
    compare: Literal["difference", "ratio", "value"]
    value: Annotated[str, "the number that is compared, in words"]
    low: Annotated[float | None, "the claimed interval of the effect; null: unbounded"]
    high: float | None
    verdict: VerdictWord
    test: Annotated[Literal["t", "sign", "each-run", "sequential"], "sequential: seeds were added to decide the claim"]
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
