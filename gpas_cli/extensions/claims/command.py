"""`gpas claims`: what the results say about the papers' claims and the user's own."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from gpas_cli.cli.console import print_json, say
from gpas_cli.cli.options import AsJson, complete_grid
from gpas_cli.cli.selection import entries, experiments, project, recorded_of
from gpas_cli.cli.views.columns import Cell, Columns
from gpas_cli.extensions.claims.declared import select_claims, tuned_claims, undeclared_claims
from gpas_cli.extensions.claims.evaluate import SIGN, evaluate
from gpas_cli.extensions.claims.options import Tuned, complete_claim
from gpas_cli.extensions.claims.sequential import SUPPORTED, UNDECIDED
from gpas_cli.extensions.claims.verdict import SEQUENTIAL, WORDS, ClaimsJson, Part, Verdict, claim_json, styled
from gpas_cli.files import replace_file
from gpas_cli.grid.declared import EACH_RUN, SPREAD, Claim
from gpas_cli.grid.document import spelled
from gpas_cli.report.papers import title_of
from gpas_cli.report.tables.entry_status import STATE_NAMES
from gpas_cli.spec.stage import CONVERGENCE
from gpas_cli.words import count, grouped, listed, significant, verb

_TESTS = {"t": "t", SIGN: "sign", SPREAD: SPREAD, EACH_RUN: "each run", SEQUENTIAL: "sequential"}
_SMALLEST_P = 1e-4
_NUMBERS = frozenset(("parts", "effect", "p", "seeds"))  # columns that are aligned on the right


def claims(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Claims to show in detail; by default, a line for each.", autocompletion=complete_claim),
    ] = None,
    grids: Annotated[
        list[str] | None,
        typer.Option(
            "--grid", "-g", help="Only claims about this grid. Repeat for more.", autocompletion=complete_grid
        ),
    ] = None,
    sources: Annotated[
        list[str] | None, typer.Option("--source", help="Only claims of this paper: gpas, curse_of_depth, ...")
    ] = None,
    toy: Annotated[
        bool | None, typer.Option("--toy/--paper-size", help="Only claims at toy size, or only at paper size.")
    ] = None,
    tuned: Tuned = False,
    appendix: Annotated[
        Path | None,
        typer.Option(
            "--appendix", metavar="FILE", help="Write claims, commands, hardware, hours, tolerances as Markdown."
        ),
    ] = None,
    price: Annotated[
        float | None, typer.Option("--price", min=0.0, help="With --appendix: the price of a GPU-hour.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Judge each claim, published or your own, by your results.

    Declare your claims in experiments.yaml under `claims`; the papers' claims are built in.

    With --appendix, writes what an artifact committee asks for.

    Example: gpas claims gpas-lowers-perplexity --toy

    Example: gpas claims --source gpas --appendix appendix.md --price 2.5
    """
    chosen = select_claims(experiments(), names or (), grids=grids or (), sources=sources or (), toy=toy)
    if tuned:
        chosen = tuned_claims(experiments(), chosen)
    verdicts = _verdicts(chosen) if chosen else []
    if appendix:
        from gpas_cli.extensions.claims.appendix import appendix as text_of  # and jinja2, which verdicts do without

        described = ((one, _source_text(one.claim), [*map(_tolerance, one.parts)]) for one in verdicts)
        replace_file(appendix, text_of(project(), described, price).encode())
        say(f"Wrote {appendix}: {count(len(verdicts), 'claim')}.")
        return
    if as_json:
        print_json(ClaimsJson(schema=1, claims=[claim_json(verdict) for verdict in verdicts]))
        return
    shown = _detailed(verdicts) if names and verdicts else overview(verdicts, undeclared_claims(experiments()))
    for part in shown:
        say(part)


def _verdicts(chosen: list[Claim]) -> list[Verdict]:
    declared = experiments().grids
    grids = [grid for claim in chosen for grid in claim.grids if grid in declared]
    values = [comparison.value for claim in chosen for comparison in claim.comparisons]
    curves = any(value.curve or value.metric in CONVERGENCE for value in values)
    with recorded_of(entries(list(dict.fromkeys(grids))), database=curves) as known:
        return [evaluate(claim, known) for claim in chosen]


def overview(verdicts: Sequence[Verdict], skipped: Sequence[Claim] = ()) -> Iterator[RenderableType]:
    """Yield a table of claims for each source and size, and a summary. `skipped`: claims about undeclared grids."""
    known = [verdict for verdict in verdicts if verdict.n[1]]
    known.sort(key=lambda each: each.claim.toy)
    groups = grouped(((verdict.claim.source.paper, verdict.claim.toy), verdict) for verdict in known)
    for (source, toy), group in groups.items():
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


def _source_title(source: str) -> str:
    return title_of(source, experiments().packs) if source else "Your claims"


def _source_text(claim: Claim) -> str:
    return ", ".join(filter(None, (_source_title(claim.source.paper), claim.source.where)))


def _claims_table(verdicts: Sequence[Verdict]) -> Columns:
    rows: list[dict[str, Cell]] = [
        {
            "claim": one.claim.name, "verdict": styled(one.verdict), "direction": one.direction,
            "parts": f"{one.counts()[SUPPORTED]}/{len(one.parts)}" if len(one.parts) > 1 else "",
            "effect": _span(one.effects, _number), "p": _p_text(one.p), "seeds": _span(one.n, str, "-"),
            "to decide it": next_text(one),
        }
        for one in verdicts
    ]  # fmt: skip
    return Columns.of(rows, _NUMBERS, droppable=("seeds", "p", "effect", "direction"))


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
        "`gpas run claims NAME` runs what is missing and adds seeds."
    )


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


def _number(value: float, digits: int = 3) -> str:
    """Return a number with this many significant digits: "-0.74", "1.58", "-1,390", "diverged" if it is infinite."""
    return significant(value, digits) if math.isfinite(value) else "diverged"


def _detailed(verdicts: Sequence[Verdict]) -> Iterator[RenderableType]:
    """Yield each claim with its parts, the numbers of each seed, and the next command to run."""
    for place, verdict in enumerate(verdicts):
        if place:
            yield ""
        yield from _claim(verdict)


def _claim(verdict: Verdict) -> Iterator[RenderableType]:
    claim = verdict.claim
    size = " at toy size" if claim.toy else ""
    tuned = ", tuned" if claim.tuned else ""
    title = Text.assemble((claim.name, "bold"), f"{size}{tuned}: ", styled(verdict.verdict))
    if verdict.p is not None and verdict.verdict == SUPPORTED and len(verdict.parts) > 1:
        title.append(f" (each of {len(verdict.parts)} parts, p at most {_p_text(verdict.p)})")
    yield title
    yield Padding(Text(claim.statement), (0, 0, 0, 2))
    if claim.source.where:
        quote = f": \N{LEFT DOUBLE QUOTATION MARK}{claim.source.quote}\N{RIGHT DOUBLE QUOTATION MARK}"
        yield Padding(Text(_source_text(claim) + (quote if claim.source.quote else ""), style="dim"), (0, 0, 0, 2))
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
            "part": part.title or "all", "verdict": styled(part.verdict), "direction": part.direction,
            "claimed": _claimed_text(part),
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
    return Columns.of(rows, [name for name in rows[0] if name not in ("part", "verdict", "direction", "test")])


def _tolerance(part: Part) -> tuple[str, str]:
    """Return the title of a part, and its claimed interval with the published effect and ours."""
    effects = {"published": part.published, "here": part.effect}
    known = [f"{_effect_text(part, effect)} {whose}" for whose, effect in effects.items() if effect is not None]
    return part.title or "tolerance", "; ".join((f"{_compared(part)} {_claimed_text(part)}", *known))


def _effect_text(part: Part, effect: float | None) -> str:
    """Return an effect with three digits, a ratio with four: ratios of interest are close to 1."""
    if effect is not None and math.isinf(effect) and part.comparison.value.metric in CONVERGENCE:
        return "never"
    return "" if effect is None else _number(effect, 4 if part.comparison.logarithmic else 3)


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
    return significant(value, 4)


def _notes(verdict: Verdict) -> Iterator[str]:
    """Yield what a reader must know about the numbers, one sentence each."""
    values = list(dict.fromkeys(f"{part.comparison.value.title}, {_compared(part)}" for part in verdict.parts))
    yield from (f"Compared: {value}." for value in values)
    reasons = grouped((part.reason, part.title or "all") for part in verdict.parts if part.reason)
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
    if verdict.claim.tuned:
        yield "The first seed chose the settings, and is left out."
    if verdict.claim.toy:
        yield "At toy size the verdict is about these small networks, not about the paper's."


def _compared(part: Part) -> str:
    words = {"difference": "difference from the base", "ratio": "ratio to the base", "value": "by itself"}
    across, best = part.comparison.across, part.comparison.best
    said = words.get(part.comparison.compare, SPREAD) + (f", at {across[1]} against {across[2]}" if across else "")
    return said + (f", of each the best {best}" if best else "")
