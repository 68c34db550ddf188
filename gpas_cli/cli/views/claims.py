"""Verdicts on claims and the evidence of the sequential test, for a terminal of any width; the JSON of a campaign."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, TypedDict

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from gpas_cli.cli.views.columns import Cell, Columns
from gpas_cli.cli.views.plan import occupied
from gpas_cli.documents import DocumentJson, From, NumberJson, filled
from gpas_cli.errors import Exit, GpasError
from gpas_cli.grid.declared import EACH_RUN, Claim
from gpas_cli.grid.document import spelled
from gpas_cli.report.claims.campaign import Campaign, Round, Rules
from gpas_cli.report.claims.evaluate import SIGN
from gpas_cli.report.claims.verdict import SEQUENTIAL, WORDS, ClaimEvidence, Part, PartEvidence, Verdict, VerdictWord
from gpas_cli.report.papers import load
from gpas_cli.report.tables.entry_status import STATE_NAMES
from gpas_cli.statistics.sequential import CONTRADICTED, SUPPORTED, UNDECIDED
from gpas_cli.words import count, listed, verb

_STYLES = {SUPPORTED: "green", CONTRADICTED: "red", UNDECIDED: "yellow"}
_TESTS = {"t": "t", SIGN: "sign", EACH_RUN: "each run", SEQUENTIAL: "sequential"}
_SMALLEST_P = 1e-4
_NUMBERS = frozenset(("parts", "effect", "p", "seeds"))  # columns that are aligned on the right


def overview(verdicts: Sequence[Verdict], skipped: Sequence[Claim] = ()) -> Iterator[RenderableType]:
    """Yield a table of claims for each source and size, and a summary. `skipped`: claims about undeclared grids."""
    known = [verdict for verdict in verdicts if verdict.n[1]]
    for (source, toy), group in _grouped(known).items():
        yield Text(f"{_source_title(source)}{', at toy size' if toy else ''}", style="bold")
        yield _claims_table(group)
        yield ""
    if len(known) < len(verdicts):
        yield Text("No result yet", style="bold")
        yield _waiting_table([verdict for verdict in verdicts if not verdict.n[1]])
        yield ""
    yield _summary(verdicts)
    if skipped:
        names = dict.fromkeys(claim.name for claim in skipped)
        words = f"{count(len(names), 'claim')} of papers about grids that are not declared here"
        yield Text(f"Not shown: {words}, such as {next(iter(names))}.", style="dim")


def _grouped(verdicts: Sequence[Verdict]) -> dict[tuple[str, bool], list[Verdict]]:
    groups: dict[tuple[str, bool], list[Verdict]] = {}
    for verdict in sorted(verdicts, key=lambda each: each.claim.toy):
        groups.setdefault((verdict.claim.source.paper, verdict.claim.toy), []).append(verdict)
    return groups


def _source_title(source: str) -> str:
    try:
        return str(load(source)["short"]) if source else "Your claims"
    except GpasError:  # a claim of the user's own file may cite any paper
        return source


def _claims_table(verdicts: Sequence[Verdict]) -> Columns:
    headers = ("claim", "verdict", "parts", "effect", "p", "seeds", "to decide it")
    rows = [
        (one.claim.name, _styled(one.verdict),
         f"{one.counts()[SUPPORTED]}/{len(one.parts)}" if len(one.parts) > 1 else "",
         _span(one.effects, number), _p_text(one.p), _span(one.n, str, "-"), next_text(one))
        for one in verdicts
    ]  # fmt: skip
    return Columns(headers, rows, right=_NUMBERS, droppable=("seeds", "p", "effect"))


def _waiting_table(verdicts: Sequence[Verdict]) -> Columns:
    rows = [
        (one.claim.name, "toy" if one.claim.toy else "", next_text(one), one.command or one.reason) for one in verdicts
    ]
    return Columns(("claim", "size", "runs", "command"), rows, droppable=("command",))


def _summary(verdicts: Sequence[Verdict]) -> Text:
    if not verdicts:
        return Text("No claim matches these grids, this source and this size.")
    counts = Counter(verdict.verdict for verdict in verdicts)
    words = ", ".join(f"{counts[word]} {word}" for word in WORDS)
    return Text(
        f"{count(len(verdicts), 'claim')}: {words}. `gpas claims NAME` shows the parts, the seeds and the command; "
        "`gpas run claims NAME --until decided` runs what is missing and adds seeds."
    )


def _styled(verdict: str) -> tuple[str, str]:
    """Return a verdict and its colour."""
    return verdict, _STYLES[verdict]


def _span(ends: tuple[Any, Any] | None, shown: Callable[[Any], str], between: str = " to ") -> str:
    """Return a number, or the smallest and the largest of several parts; "" for none."""
    return between.join(dict.fromkeys(map(shown, ends or ())))


def next_text(verdict: Verdict) -> str:
    """Return what is missing to decide a claim: runs, or further seeds."""
    if verdict.verdict != UNDECIDED:
        return ""
    if verdict.missing:
        states = Counter(STATE_NAMES.get(status.state, status.state) for status in verdict.missing)
        (first, number), *others = states.items()
        return ", ".join([f"{count(number, 'run')} {first}", *(f"{n} {state}" for state, n in others)])
    if verdict.needed is not None:
        return f"{count(verdict.needed, 'more seed')}"
    return verdict.reason or "more seeds"


def _p_text(p: float | None) -> str:
    """Return a p value with two digits: "0.013", "<0.0001", "" for none."""
    if p is None:
        return ""
    return f"<{_SMALLEST_P:g}" if p < _SMALLEST_P else f"{p:.2g}"


def number(value: float, digits: int = 3) -> str:
    """Return a number with this many significant digits: "-0.74", "1.58", "-1,390", "diverged" if it is infinite."""
    if not math.isfinite(value):
        return "diverged"
    return f"{value:.{digits}g}" if abs(value) < 10**digits or abs(value) < 1e-4 else f"{value:,.0f}"


def detailed(verdicts: Sequence[Verdict]) -> Iterator[RenderableType]:
    """Yield each claim with its parts, the numbers of each seed, and the next command to run."""
    for place, verdict in enumerate(verdicts):
        if place:
            yield ""
        yield from _claim(verdict)


def _claim(verdict: Verdict) -> Iterator[RenderableType]:
    claim = verdict.claim
    size = " at toy size" if claim.toy else ""
    tuned = ", tuned" if claim.tuned else ""
    title = Text.assemble((claim.name, "bold"), f"{size}{tuned}: ", _styled(verdict.verdict))
    if verdict.p is not None and verdict.verdict == SUPPORTED and len(verdict.parts) > 1:
        title.append(f" (each of {len(verdict.parts)} parts, p at most {_p_text(verdict.p)})")
    yield title
    yield Padding(Text(claim.statement), (0, 0, 0, 2))
    if claim.source.where:
        quote = f": \N{LEFT DOUBLE QUOTATION MARK}{claim.source.quote}\N{RIGHT DOUBLE QUOTATION MARK}"
        source = f"{_source_title(claim.source.paper)}, {claim.source.where}"
        yield Padding(Text(source + (quote if claim.source.quote else ""), style="dim"), (0, 0, 0, 2))
    if verdict.reason:
        yield Padding(Text(verdict.reason), (0, 0, 0, 2))
    if verdict.parts:
        yield from ("", _parts(verdict.parts), "", _seeds_table(verdict.parts), "")
    for line in _notes(verdict):
        yield Padding(Text(line, style="dim"), (0, 0, 0, 2))
    if verdict.command:
        yield Text.assemble("  next: ", (verdict.command, "bold"))


def _parts(parts: Sequence[Part]) -> Columns:
    """Return a table of the parts, with the published effects and the adjusted p values if there are any."""
    sources = list(dict.fromkeys(source for part in parts for source in part.printed))
    rows: list[dict[str, Cell]] = [
        {
            "part": part.title or "all", "verdict": _styled(part.verdict), "claimed": _claimed_text(part),
            "effect": _effect_text(part, part.effect),
            "95 % interval": " to ".join(_effect_text(part, end) for end in part.interval or ()),
            **{
                _source_title(source) if place else "published": _effect_text(part, part.printed.get(source))
                for place, source in enumerate(sources)
            },
            "seeds": f"{part.n}/{len(part.pairs)}",
            "test": _TESTS.get(part.test, part.test), "p": _p_text(part.p),
            "p (Holm)": _p_text(part.adjusted if len(parts) > 1 else None),
            "more seeds": part.needed_text,
        }
        for part in parts
    ]  # fmt: skip
    return Columns.of(rows, [name for name in rows[0] if name not in ("part", "verdict", "test")])


def _effect_text(part: Part, effect: float | None) -> str:
    """Return an effect with three digits, a ratio with four: ratios of interest are close to 1."""
    return "" if effect is None else number(effect, 4 if part.comparison.logarithmic else 3)


def _claimed_text(part: Part) -> str:
    """Return the claimed interval: "< 0", "> 0.99", "0.35 to 0.65"."""
    low, high = part.comparison.low, part.comparison.high
    if math.isinf(low):
        return f"< {high:g}"
    return f"> {low:g}" if math.isinf(high) else f"{low:g} to {high:g}"


def _seeds_table(parts: Sequence[Part]) -> Columns | str:
    """Return the number of every seed: of the subject, of its base, and the effect."""
    measured = [part for part in parts if any(one.value is not None for pair in part.pairs for one in pair.measured)]
    if not measured:
        return ""
    compared = any(pair.base is not None for part in measured for pair in part.pairs)
    rows = []
    for part in measured:
        for place, pair in enumerate(part.pairs):
            cells = ["" if place else part.title or "all", spelled(pair.seed), pair.own.status.entry.name]
            cells.append(_value(pair.own.value, pair.own.status.state))
            if compared:
                base = pair.base
                cells += [base.status.entry.name, _value(base.value, base.status.state)] if base else ["", ""]
                cells.append("" if pair.effect is None else _effect_text(part, part.shown(pair.effect)))
            rows.append(cells)
    headers = ("part", "seed", "cell", "value", *(("base", "its value", "effect") if compared else ()))
    return Columns(headers, rows, right=frozenset(("seed", "value", "its value", "effect")))


def _value(value: float | None, state: str) -> str:
    if value is None or math.isinf(value):
        return STATE_NAMES.get(state, state)
    return f"{value:.4g}"


def _notes(verdict: Verdict) -> Iterator[str]:
    """Yield what a reader must know about the numbers, one sentence each."""
    values = list(dict.fromkeys(f"{part.comparison.value.title}, {_compared(part)}" for part in verdict.parts))
    yield from (f"Compared: {value}." for value in values)
    reasons: dict[str, list[str]] = {}
    for part in verdict.parts:
        if part.reason:
            reasons.setdefault(part.reason, []).append(part.title or "all")
    for reason, titles in reasons.items():
        yield f"{'all parts' if len(titles) == len(verdict.parts) > 1 else listed(titles, 3)}: {reason}."
    if len(verdict.parts) > 1 and any(part.p is not None for part in verdict.parts):
        yield (
            "A part is decided by its p value after Holm's correction for "
            f"{count(len(verdict.parts), 'part')}; the claim needs every part to hold, without a correction."
        )
    diverged = sum(part.diverged for part in verdict.parts)
    if diverged:
        yield f"{count(diverged, 'run')} diverged; a diverged run counts as worse than any number."
    if verdict.missing:
        names = [f"{status.entry.id} ({STATE_NAMES.get(status.state, status.state)})" for status in verdict.missing]
        yield f"{count(len(names), 'run')} {verb(len(names), 'has', 'have')} no number yet: {listed(names, 4)}."
    if verdict.claim.toy:
        yield "At toy size the verdict is about these small networks, not about the paper's."


def _compared(part: Part) -> str:
    words = {"difference": "difference from the base", "ratio": "ratio to the base", "value": "by itself"}
    across, best = part.comparison.across, part.comparison.best
    said = words[part.comparison.compare] + (f", at {across[1]} against {across[2]}" if across else "")
    return said + (f", of each the best {best}" if best else "")


_NAMED = 6  # cells in one line


class _EvidencePartJson(TypedDict):
    """The evidence on one part of a claim."""

    title: Annotated[str, From("part.title")]
    labels: Annotated[dict[str, Any], "the labels on the axes `by`", From("part.labels")]
    verdict: VerdictWord
    seeds: Annotated[list[int], "the seeds that the evidence is made of, in order"]
    effects: Annotated[list[NumberJson | None], "of these seeds; null if both runs diverged", From("shown")]
    effect: Annotated[float | None, "the mean of the finite effects; of ratios, the geometric mean"]
    interval: Annotated[list[float] | None, "the confidence sequence; null: still unbounded"]
    e_for: Annotated[
        float, "e-value for the claimed interval; the part is supported from 1 / level on", From("evidence.inside")
    ]
    e_against: Annotated[float, "e-value against it", From("evidence.outside")]
    pending: Annotated[list[int], "further seeds of the grids that are not all recorded"]


class _EvidenceJson(TypedDict):
    """The evidence on one claim."""

    name: Annotated[str, From("claim.name")]
    statement: Annotated[str, From("claim.statement")]
    toy: Annotated[bool, From("claim.toy")]
    verdict: VerdictWord
    reason: str
    parts: list[_EvidencePartJson]


class _NextSeedsJson(TypedDict):
    """What the next round would run for one part."""

    claim: str
    part: Annotated[str, From("part.part.title")]
    seeds: list[int]
    cells: list[str]
    gpu_hours: float
    core_hours: float
    chances: Annotated[list[float], "of a decision after 1, 2, ... further seeds, by the effects so far"]


class RunClaimsJson(DocumentJson):
    """The document of `gpas run claims`."""

    exit_code: int
    level: Annotated[float, "the probability of a wrong verdict, at most", From("rules.level")]
    max_seeds: Annotated[int, From("rules.max_seeds")]
    rounds: Annotated[int, "rounds of runs in this invocation"]
    claims: list[_EvidenceJson]
    added: Annotated[dict[str, dict[str, list[int]]], "seeds added by this invocation, by grid and cell"]
    next: Annotated[list[_NextSeedsJson], "of --dry-run"]


def evidence_table(claims: Sequence[ClaimEvidence], rules: Rules) -> Columns:
    """Return a row for each claim and each of its parts: seeds, mean effect, interval and e-values."""
    rows: list[tuple[Any, ...]] = []
    for claim in claims:
        whole = _styled(claim.verdict)
        if len(claim.parts) == 1:
            rows.append((claim.claim.name, *_numbers(claim.parts[0], rules), whole))
            continue
        rows.append((claim.claim.name, "", "", "", "", "", whole))
        for part in claim.parts:
            rows.append((f"  {part.part.title}", *_numbers(part, rules), _styled(part.verdict)))
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
        number = len(one.seeds)
        name = ", ".join(filter(None, (state[one.at[0]].claim.name, one.part.part.title)))
        hours = (one.gpu_hours, one.core_hours)  # none of jobs that are all queued, running or over
        cost = f"about {occupied(*hours)}" if any(hours) else "no new job"
        seeds = f"{'seed' if number == 1 else 'seeds'} {listed([str(seed) for seed in one.seeds], _NAMED)}"
        lines.append(
            f"{name}: {seeds}, {count(len(one.cells), 'cell')}, "
            f"{cost}; decides it with a chance of {100 * one.chances[number - 1]:.0f} %"
        )
    return "\n".join(["Next:", *(f"  {line}" for line in lines)] if lines else ["Nothing to run."])


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
            cells = listed([f"{name} ({state})" for name, state in blocking.items()], _NAMED)
            yield f"{part.part.title or part.part.comparison.says}: no number from {cells}; see `gpas why CELL`"


def document(campaign: Campaign, claims: Sequence[ClaimEvidence], following: Round, code: Exit) -> RunClaimsJson:
    """Return the document of a campaign."""
    seeds = [
        filled(_NextSeedsJson, one, claim=claims[one.at[0]].claim.name, cells=[entry.id for entry in one.cells])
        for one in following
    ]
    return filled(RunClaimsJson, campaign, exit_code=int(code), claims=claims, next=seeds)
