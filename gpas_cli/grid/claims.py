"""Read `claims:`, the statements that `gpas claims` checks, and check the grids and labels that they name."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from gpas_cli.errors import Problem, nearest
from gpas_cli.grid.claim import EACH_RUN, PAIRED_T, Claim, Comparison, Feature, Source
from gpas_cli.grid.declared import Grid
from gpas_cli.grid.document import Label, Mark, Node
from gpas_cli.grid.read import AxisLabels, check_choice, read_where
from gpas_cli.grid.readers import (
    add_problem,
    read_dataclass,
    read_list,
    read_mapping,
    read_sentence,
    read_text,
    read_text_mapping,
    read_texts,
)
from gpas_cli.grid.settings import children, label, name_fault
from gpas_cli.grid.validate import labels_of
from gpas_cli.spec.parse import SettingPath

OUTER_KEYS = ("statement", "source", "parts", "toy")
COMPARISON_KEYS = (
    *("grids", "subject", "against", "value", "compare", "expect", "by", "over", "best", "across", "test"),
    *("published", "printed"),
)
KINDS = ("difference", "ratio", "value")
TESTS = (PAIRED_T, EACH_RUN)
# Words for `expect` by kind of comparison: which side of the neutral number the effect is on.
SIDES = {"lower": -1, "higher": 1, "negative": -1, "positive": 1}
BOUNDS = ("below", "above", "between")

_Layer = tuple[SettingPath, dict[str, Node]]  # settings of a comparison, and their positions in the file


@dataclass(frozen=True)
class _Context:
    """The names of the declared grids, None for the claims of papers, and the valid grids."""

    names: Collection[str] | None
    grids: Mapping[str, Grid]
    problems: list[Problem]


def read_claims(
    node: Node | None, names: Collection[str] | None, grids: Mapping[str, Grid], problems: list[Problem]
) -> dict[str, tuple[Claim, ...]]:
    """Return the claims by name, each at the size of its grids and, if it has `toy`, at toy size.

    names: declared grids; grids: the valid ones. names=None skips checking grids and labels. Claims with a problem are
    left out.
    """
    context = _Context(names, grids, problems)
    found: dict[str, tuple[Claim, ...]] = {}
    for name, child in read_mapping(node, ("claims",), problems).items():
        before = len(problems)
        claims = _read_claim(name, child, context)
        if len(problems) == before:
            found[name] = claims
    return found


def _read_claim(name: str, node: Node, context: _Context) -> tuple[Claim, ...]:
    path: SettingPath = ("claims", name)
    mark = node.key or node.mark
    if name_fault(name):
        add_problem(context.problems, path, name_fault(name).replace("a grid's", "a claim's"), mark)
    parts = read_mapping(node, path, context.problems, (*OUTER_KEYS, *COMPARISON_KEYS))
    if "statement" not in parts and isinstance(node.value, dict):
        add_problem(context.problems, path, "needs 'statement': what is claimed, in a sentence", mark)
    statement = read_sentence(parts.get("statement"), (*path, "statement"), context.problems)
    source = _read_source(parts.get("source"), (*path, "source"), context.problems)
    own = (path, {key: child for key, child in parts.items() if key in COMPARISON_KEYS})
    listed = _read_parts(parts.get("parts"), (*path, "parts"), context.problems)
    layers = [[own, part] for part in listed] or [[own]]
    claims = []
    if "toy" not in parts or "grids" in own[1] or any("grids" in part for _, part in listed):
        claims.append(Claim(name, statement, _read_all(layers, node, context), source, False, mark))
    if "toy" in parts:
        said, comparisons = _read_toy(parts["toy"], path, own, listed, context)
        claims.append(Claim(name, said or statement, comparisons, source, True, mark))
    return tuple(claims)


def _read_toy(
    node: Node, path: SettingPath, own: _Layer, listed: list[_Layer], context: _Context
) -> tuple[str, tuple[Comparison, ...]]:
    """Return the statement at toy size, "" for the claim's, and the comparisons.

    The comparisons are the claim's with the settings of `toy`, or the parts of `toy`.
    """
    path = (*path, "toy")
    parts = read_mapping(node, path, context.problems, ("statement", "parts", *COMPARISON_KEYS))
    statement = read_sentence(parts.get("statement"), (*path, "statement"), context.problems)
    settings = (path, {key: child for key, child in parts.items() if key in COMPARISON_KEYS})
    toys = _read_parts(parts.get("parts"), (*path, "parts"), context.problems)
    if toys:
        layers = [[own, settings, part] for part in toys]
    else:
        layers = [[own, part, settings] for part in listed] or [[own, settings]]
    return statement, _read_all(layers, node, context)


def _read_parts(node: Node | None, path: SettingPath, problems: list[Problem]) -> list[_Layer]:
    return [
        ((*path, place), read_mapping(item, (*path, place), problems, ("says", *COMPARISON_KEYS)))
        for place, item in enumerate(read_list(node, path, problems), 1)
    ]


def _read_source(node: Node | None, path: SettingPath, problems: list[Problem]) -> Source:
    if node is not None and isinstance(node.value, str):
        return Source(where=read_sentence(node, path, problems))
    found = (read_dataclass(Source, node, path, problems) if node is not None else None) or Source()
    return replace(found, where=" ".join(found.where.split()), quote=" ".join(found.quote.split()))


def _read_all(layers: list[list[_Layer]], node: Node, context: _Context) -> tuple[Comparison, ...]:
    return tuple(_Reader(over, node, context).comparison() for over in layers)


class _Reader:
    """Reads one comparison from layers of settings; later layers replace the settings of earlier ones."""

    def __init__(self, layers: list[_Layer], node: Node, context: _Context):
        self.parts = {key: child for _, layer in layers for key, child in layer.items()}
        self.paths = {key: (*path, key) for path, layer in layers for key in layer}
        self.own = layers[-1][0]
        self.mark = node.key or node.mark
        self.context = context
        self.problems = context.problems

    def comparison(self) -> Comparison:
        grids = self._grids()
        labels = self._labels(grids)
        subject = self._condition("subject", labels)
        against = {axis: chosen[0] for axis, chosen in self._condition("against", labels, single=True).items()}
        compare = self._choice("compare", KINDS, "difference" if against else "value")
        if (compare == "value") == bool(against):
            words = "needs 'against': the labels of the base" if not against else "compares values, without 'against'"
            self._problem("compare", words)
        low, high = self._bounds(compare)
        return Comparison(
            says=read_sentence(self.parts.get("says"), self._path("says"), self.problems),
            grids=grids,
            subject=subject,
            value=self._feature(),
            against=against,
            compare=compare,
            low=low,
            high=high,
            by=self._axes("by", labels),
            over=self._axis("over", labels, "seed"),
            best=self._axis("best", labels, ""),
            across=self._across(labels),
            test=self._choice("test", TESTS, PAIRED_T),
            published=read_text_mapping(self.parts.get("published"), self._path("published"), self.problems),
            printed=self._number(self.parts["printed"], "printed") if "printed" in self.parts else None,
            mark=self.mark,
            marks={key: node.mark for key, node in self.parts.items()},
        )

    def _path(self, key: str) -> SettingPath:
        return self.paths.get(key, (*self.own, key))

    def _problem(self, key: str, message: str, at: Node | Mark | None = None) -> None:
        node = self.parts.get(key)
        add_problem(self.problems, self._path(key), message, at or (node if node is not None else self.mark))

    def _grids(self) -> tuple[str, ...]:
        names = read_texts(self.parts.get("grids"), self._path("grids"), self.problems)
        if not names:
            self._problem("grids", "is required: the grids whose cells are compared")
        known = self.context.names
        for name in names:
            if known is not None and name not in known:
                self._problem("grids", f"no grid '{name}'; {nearest(name, known)}")
        return names

    def _labels(self, names: tuple[str, ...]) -> AxisLabels | None:
        """Return the labels of the grids by axis; None if they are not checked or a grid is not valid."""
        declared = self.context.grids
        if self.context.names is None or any(name not in declared for name in names):
            return None
        found: AxisLabels = {}
        for name in names:
            for axis, labels in labels_of(declared, declared[name]).items():
                found[axis] = (*found.get(axis, ()), *labels)
        return found

    def _condition(self, key: str, labels: AxisLabels | None, *, single: bool = False) -> dict[str, tuple[Label, ...]]:
        node = self.parts.get(key)
        path = self._path(key)
        if labels is not None:
            where = read_where(node, path, labels, self.problems, self.mark)
            found = {axis: chosen for axis, _, chosen in where.terms}
        else:
            listed = {
                axis: child.value if isinstance(child.value, tuple) else (child,)
                for axis, child in read_mapping(node, path, self.problems).items()
            }
            found = {axis: tuple(label(child, axis) for child in nodes) for axis, nodes in listed.items()}
        for axis, chosen in found.items():
            if single and len(chosen) > 1:
                self._problem(key, f"{axis} has {len(chosen)} labels; a base has one")
        return found

    def _choice(self, key: str, valid: Collection[str], default: str) -> str:
        chosen = read_text(self.parts.get(key), self._path(key), self.problems, default)
        if chosen not in valid:
            self._problem(key, f"unknown word '{chosen}'; {nearest(chosen, valid)}")
        return chosen

    def _axes(self, key: str, labels: AxisLabels | None) -> tuple[str, ...]:
        names = read_texts(self.parts.get(key), self._path(key), self.problems)
        for name in names:
            self._check_axis(key, name, labels)
        return names

    def _check_axis(self, key: str, name: str, labels: AxisLabels | None) -> None:
        if labels is not None and name and name not in labels:
            self._problem(key, f"no axis '{name}'; {nearest(name, labels)}")

    def _axis(self, key: str, labels: AxisLabels | None, usual: str) -> str:
        name = read_text(self.parts.get(key), self._path(key), self.problems, usual)
        self._check_axis(key, name, labels)
        return name

    def _across(self, labels: AxisLabels | None) -> tuple[str, Label, Label] | None:
        """Read `across: {size: [350m, 1b]}`: an axis and two of its labels."""
        node = self.parts.get("across")
        if node is None:
            return None
        parts = read_mapping(node, self._path("across"), self.problems)
        axis = next(iter(parts), "")
        nodes = read_list(parts[axis], self._path("across"), self.problems) if parts else ()
        if len(parts) != 1 or len(nodes) != 2:
            self._problem("across", "is not an axis with two labels; write {size: [350m, 1b]}")
            return None
        self._check_axis("across", axis, labels)
        valid = labels.get(axis) if labels is not None else None
        path = (*self._path("across"), axis)
        first, second = (check_choice(n, path, valid, self.problems) if valid else label(n, axis) for n in nodes)
        return axis, first, second

    def _bounds(self, compare: str) -> tuple[float, float]:
        """Return the open interval of the effect that `expect` declares."""
        node = self.parts.get("expect")
        neutral = 1.0 if compare == "ratio" else 0.0
        words = ("negative", "positive") if compare == "value" else ("lower", "higher")
        if node is None:
            self._problem("expect", f"is required: {', '.join(words)}, or a bound such as {{below: {neutral:g}}}")
            return -math.inf, math.inf
        if isinstance(node.value, str):
            if node.value not in words:
                self._problem("expect", f"unknown word '{node.value}'; {nearest(node.value, words)}")
            return (-math.inf, neutral) if SIDES.get(node.value, 1) < 0 else (neutral, math.inf)
        return self._declared_bounds(node, compare)

    def _declared_bounds(self, node: Node, compare: str) -> tuple[float, float]:
        parts = read_mapping(node, self._path("expect"), self.problems, BOUNDS)
        if isinstance(node.value, dict) and len(parts) != 1:
            self._problem("expect", "needs one of below, above and between")
            return -math.inf, math.inf
        low, high = -math.inf, math.inf
        if "below" in parts:
            high = self._number(parts["below"], "expect")
        if "above" in parts:
            low = self._number(parts["above"], "expect")
        if "between" in parts:
            ends = read_list(parts["between"], self._path("expect"), self.problems)
            if len(ends) == 2:
                low, high = (self._number(end, "expect") for end in ends)
            else:
                self._problem("expect", "between needs two numbers: [low, high]")
        if not low < high:
            self._problem("expect", f"{low:g} is not below {high:g}")
        if compare == "ratio" and (low == 0 or high <= 0 or -math.inf < low < 0):
            self._problem("expect", "the bounds of a ratio are above 0")
        return low, high

    def _number(self, node: Node, key: str) -> float:
        if isinstance(node.value, bool) or not isinstance(node.value, int | float) or not math.isfinite(node.value):
            self._problem(key, f"'{node.plain()}' is not a number", node)
            return math.nan
        return float(node.value)

    def _feature(self) -> Feature:
        node = self.parts.get("value")
        if node is None:
            return Feature(metric="perplexity")
        if isinstance(node.value, str):
            return Feature(metric=node.value)
        parts = children(node)
        if parts and ("curve" not in parts or "metric" in parts):
            self._problem("value", "needs 'curve', a name as in `gpas figure --what`; a metric is written as a word")
        layers = parts.get("layers")
        if layers is not None and not isinstance(layers.value, tuple):
            node = replace(node, value={**parts, "layers": replace(layers, value=(layers,))})
        return read_dataclass(Feature, node, self._path("value"), self.problems) or Feature()
