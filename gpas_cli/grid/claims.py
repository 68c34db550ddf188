"""Read `claims:`, the statements that `gpas claims` checks, and check the grids and labels that they name."""

import math
from collections.abc import Collection, Mapping
from dataclasses import fields, replace

from gpas_cli.errors import Problem, nearest
from gpas_cli.grid.declared import EACH_RUN, PAIRED_T, SPREAD, Claim, Comparison, Feature, Grid, Source
from gpas_cli.grid.document import Label, identity, mapping, spelled
from gpas_cli.grid.packs import Pack
from gpas_cli.grid.read import AxisLabels, check_choice, labels_of, read_published, read_where
from gpas_cli.grid.settings import Entries, Part, children, name_fault
from gpas_cli.structure import Frozen

_OUTER_KEYS = ("statement", "source", "parts", "toy")
_COMPARISON_KEYS = (
    *("grids", "subject", "against", "value", "compare", "expect", "by", "over", "best", "across", "test"),
    *("published", "printed"),
)
_KINDS = ("difference", "ratio", "value", SPREAD)
_TESTS = (PAIRED_T, EACH_RUN)
# Words for `expect` by kind of comparison: which side of the neutral number the effect is on.
_SIDES = {"lower": -1, "higher": 1, "negative": -1, "positive": 1}
_BOUNDS = ("below", "above", "between")


class _Context(Frozen):
    """The names of the declared grids, None for the claims of papers, the valid grids, and the known papers."""

    names: Collection[str] | None
    grids: Mapping[str, Grid]
    packs: Mapping[str, Pack]


def read_claims(
    part: Part, names: Collection[str] | None, grids: Mapping[str, Grid], packs: Mapping[str, Pack]
) -> dict[str, tuple[Claim, ...]]:
    """Return the claims by name, each at the size of its grids and, if it has `toy`, at toy size.

    names: declared grids; grids: the valid ones. names=None skips checking grids and labels. Claims with a problem are
    left out.
    """
    context = _Context(names, grids, packs)
    found: dict[str, tuple[Claim, ...]] = {}
    for name, child in part.entries().items():
        before = len(part.problems)
        claims = _read_claim(name, child, context)
        if len(part.problems) == before:
            found[name] = claims
    return found


def _read_claim(name: str, part: Part, context: _Context) -> tuple[Claim, ...]:
    if fault := name_fault(name):
        part.report(fault.replace("a grid's", "a claim's"), part.key)
    parts = part.entries((*_OUTER_KEYS, *_COMPARISON_KEYS))
    if "statement" not in parts and isinstance(part.value, dict):
        part.report("needs 'statement': what is claimed, in a sentence", part.key)
    statement = parts["statement"].sentence()
    source = _read_source(parts["source"])
    own = _comparison(parts)
    listed = _read_parts(parts["parts"])
    layers = [[own, each] for each in listed] or [[own]]
    claims = []
    if "toy" not in parts or "grids" in own or any("grids" in each for each in listed):
        claims.append(Claim(name, statement, _read_all(layers, part, context), source, False, part.key))
    if "toy" in parts:
        said, comparisons = _read_toy(parts["toy"], own, listed, context)
        claims.append(Claim(name, said or statement, comparisons, source, True, part.key))
    return tuple(claims)


def _read_toy(part: Part, own: Entries, listed: list[Entries], context: _Context) -> tuple[str, tuple[Comparison, ...]]:
    """Return the statement at toy size, "" for the claim's, and the comparisons.

    The comparisons are the claim's with the settings of `toy`, or the parts of `toy`.
    """
    parts = part.entries(("statement", "parts", *_COMPARISON_KEYS))
    settings = _comparison(parts)
    if toys := _read_parts(parts["parts"]):
        layers = [[own, settings, each] for each in toys]
    else:
        layers = [[own, each, settings] for each in listed] or [[own, settings]]
    return parts["statement"].sentence(), _read_all(layers, part, context)


def _comparison(parts: Entries) -> Entries:
    """Return the settings of comparisons among the entries of a claim."""
    found = Entries(parts.part)
    found.update({key: part for key, part in parts.items() if key in _COMPARISON_KEYS})
    return found


def _read_parts(part: Part) -> list[Entries]:
    listed = (replace(item, path=(*part.path, place)) for place, item in enumerate(part.items(), 1))
    return [item.entries(("says", *_COMPARISON_KEYS)) for item in listed]


def _read_source(part: Part) -> Source:
    if isinstance(part.value, str):
        return Source(where=part.sentence())
    found = part.instance(Source) or Source()
    return replace(found, where=" ".join(found.where.split()), quote=" ".join(found.quote.split()))


def _read_all(layers: list[list[Entries]], part: Part, context: _Context) -> tuple[Comparison, ...]:
    return tuple(_read_comparison(over, part, context) for over in layers)


def _read_comparison(layers: list[Entries], part: Part, context: _Context) -> Comparison:
    """Return one comparison from layers of settings; later layers replace the settings of earlier ones."""
    parts = Entries(replace(layers[-1].part, mark=part.key))
    for layer in layers:
        parts.update(layer)
    grids = _read_grids(parts["grids"], context.names)
    labels = _labels(grids, context)
    subject = read_where(parts["subject"], labels).labels
    against = read_where(parts["against"], labels).labels
    for axis, chosen in against.items():
        if len(chosen) > 1:
            parts["against"].report(f"{axis} has {len(chosen)} labels; a base has one")
    compare = _choice(parts["compare"], _KINDS, "difference" if against else "value")
    if (compare == "value") == bool(against):
        words = "needs 'against': the labels of the base" if not against else "compares values, without 'against'"
        parts["compare"].report(words)
    for key in [one for one in ("across", "best", "test") if one in parts and compare == SPREAD]:
        parts[key].report("standard deviations have a test of their own, over all seeds of two cells; leave it out")
    low, high = _bounds(parts["expect"], compare)
    return Comparison(
        says=parts["says"].sentence(),
        grids=grids,
        subject=subject,
        value=_feature(parts["value"]),
        against={axis: chosen[0] for axis, chosen in against.items()},
        compare=compare,
        low=low,
        high=high,
        by=tuple(_checked_axis(parts["by"], name, labels) for name in parts["by"].texts()),
        over=_checked_axis(parts["over"], parts["over"].text("seed"), labels),
        best=_best(parts["best"], labels),
        across=_across(parts["across"], labels),
        test=SPREAD if compare == SPREAD else _choice(parts["test"], _TESTS, PAIRED_T),
        published=read_published(parts["published"], context.packs),
        printed=_number(parts["printed"]) if "printed" in parts else None,
        mark=part.key,
        marks={key: each.mark for key, each in parts.items()},
    )


def _read_grids(part: Part, known: Collection[str] | None) -> tuple[str, ...]:
    names = part.texts()
    if not names:
        part.report("is required: the grids whose cells are compared")
    for name in names:
        if known is not None and name not in known:
            message = f"no grid '{name}'; {nearest(name, known)}"
            part.problems.append(Problem(part.path, message, str(part.mark), ("grid", name)))
    return names


def _labels(names: tuple[str, ...], context: _Context) -> AxisLabels | None:
    """Return the labels of the grids by axis; None if they are not checked or a grid is not valid."""
    unchecked = context.names is None or any(name not in context.grids for name in names)
    return None if unchecked else labels_of(context.grids, *names)


def _choice(part: Part, valid: Collection[str], default: str) -> str:
    chosen = part.text(default)
    if chosen not in valid:
        part.report(f"unknown word '{chosen}'; {nearest(chosen, valid)}")
    return chosen


def _checked_axis(part: Part, name: str, labels: AxisLabels | None) -> str:
    if labels is not None and name and name not in labels:
        part.report(f"no axis '{name}'; {nearest(name, labels)}")
    return name


def _best(part: Part, labels: AxisLabels | None) -> str:
    """Return the axis `best`, which has several labels to choose from."""
    name = _checked_axis(part, part.text(), labels)
    if labels is not None and len({identity(label) for label in labels.get(name, ())}) == 1:
        part.report(f"{name} has one label, {spelled(labels[name][0])}; the best of an axis is one of several")
    return name


def _across(part: Part, labels: AxisLabels | None) -> tuple[str, Label, Label] | None:
    """Read `across: {size: [350m, 1b]}`: an axis and two of its labels."""
    if part.node is None:
        return None
    parts = part.entries()
    axis = next(iter(parts), "")
    places = parts[axis].items()
    if len(parts) != 1 or len(places) != 2:
        part.report("is not an axis with two labels; write {size: [350m, 1b]}")
        return None
    _checked_axis(part, axis, labels)
    valid = labels.get(axis) if labels is not None else None
    first, second = (check_choice(each, valid) for each in places)
    return axis, first, second


def _bounds(part: Part, compare: str) -> tuple[float, float]:
    """Return the open interval of the effect that `expect` declares."""
    neutral = 1.0 if compare == "ratio" else 0.0
    words = ("negative", "positive") if compare == "value" else ("lower", "higher")
    if part.node is None:
        part.report(f"is required: {', '.join(words)}, or a bound such as {{below: {neutral:g}}}")
        return -math.inf, math.inf
    if isinstance(part.value, str) or compare == SPREAD:
        if part.value not in words:
            part.report(f"unknown word '{part.value}'; {nearest(str(part.value), words)}")
        return (-math.inf, neutral) if _SIDES.get(str(part.value), 1) < 0 else (neutral, math.inf)
    parts = part.entries(_BOUNDS)
    if isinstance(part.value, dict) and len(parts) != 1:
        part.report("needs one of below, above and between")
        return -math.inf, math.inf
    low, high = -math.inf, math.inf
    if "below" in parts:
        high = _number(parts["below"])
    if "above" in parts:
        low = _number(parts["above"])
    if "between" in parts:
        ends = parts["between"].items()
        if len(ends) == 2:
            low, high = map(_number, ends)
        else:
            part.report("between needs two numbers: [low, high]")
    if not low < high:
        part.report(f"{low:g} is not below {high:g}")
    if compare == "ratio" and (low == 0 or high <= 0 or -math.inf < low < 0):
        part.report("the bounds of a ratio are above 0")
    return low, high


def _number(part: Part) -> float:
    if isinstance(part.value, bool) or not isinstance(part.value, int | float) or not math.isfinite(part.value):
        part.report(f"'{part.node.plain() if part.node else ''}' is not a number")
        return math.nan
    return float(part.value)


def _feature(part: Part) -> Feature:
    if part.node is None:
        return Feature(metric="perplexity")
    if isinstance(part.value, str):
        return Feature(metric=part.value)
    parts = children(part.node)
    if isinstance(part.value, dict) and ("curve" not in parts or "metric" in parts) and "along" not in parts:
        part.report("needs 'curve', a name as in `gpas figure --what`; a metric is written as a word")
    listed = {own.name for own in fields(Feature) if isinstance(own.default, tuple)}
    lists = {key: replace(one, value=(one,)) for key, one in parts.items() if key in listed}
    single = {key: one for key, one in lists.items() if not isinstance(parts[key].value, tuple)}
    part = part.holding(mapping({**parts, **single}, part.mark)) if single else part
    return part.instance(Feature) or Feature()
