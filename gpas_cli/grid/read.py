"""Read one grid: its axes, labels, conditions, settings, and what leaves its cells as they are.

The values of an axis are a list, or follow a rule:

    {range: [1, 5]}              whole numbers from the first to the last, inclusive; `step: 2` takes every second one
    {linear: [0.1, 0.5], n: 5}   n numbers at equal distances from the first to the last, inclusive
    {log: [1e-4, 1e-2], n: 5}    n numbers at equal ratios from the first to the last, inclusive

The first and the last number are as written. Numbers between them are rounded to six significant digits, so that
labels, names and keys of cells are the same on every machine. If all numbers are whole, they are integers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TypeGuard

from gpas_cli.errors import Problem, nearest
from gpas_cli.grid.declared import Axis, Condition, ConditionalAxes, Grid, Include, Override, TableSpec, Value
from gpas_cli.grid.document import Label, Mark, Node, identity, mapping, same, spelled
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
from gpas_cli.grid.resources import read_grid_resources
from gpas_cli.grid.settings import CELL_PARTS, children, has_label, label, merge, name_fault, nested, unnamed
from gpas_cli.spec.parse import SettingPath, control_character
from gpas_cli.spec.run import Cadence, Monitoring
from gpas_cli.spec.stage import PRETRAIN

UNKNOWN_STAGE = "unknown stage"  # how the message about a stage that no plugin defines begins
GRID_KEYS = (
    *("title", "base", "axes", "when", "exclude", "override", "include"),
    *("stages", "cadence", "watch", "resources", "table"),
)
# Default labels: every cell has these, so that tables and conditions can use them.
_DEFAULT_LABELS: dict[str, Label] = {"norm": "pre", "gate": "none", "seed": 42}

AxisLabels = dict[str, tuple[Label, ...]]


def read_grid(name: str, node: Node, stages: Sequence[str], problems: list[Problem]) -> Grid | None:
    """Return the grid declared by `node`, or None if what is wrong with it is also wrong with its cells.

    Adds what is wrong to `problems`. `stages` are those after pretraining.
    """
    aside: list[Problem] = []  # problems that leave the cells as they are
    before = len(problems)
    path = ("grids", name)
    if message := name_fault(name):
        add_problem(aside, path, message, node.key or node.mark)
    parts = read_mapping(node, path, aside, GRID_KEYS)
    if _may_lack_cells(node, GRID_KEYS):
        problems += aside
        aside = []
    base = _read_base(parts, path, stages, problems, node.mark)
    axes = _read_axes(parts.get("axes"), (*path, "axes"), stages, problems)
    labels = known_labels(base, axes)
    when = _read_when(parts.get("when"), (*path, "when"), labels, stages, problems)
    for step in when:
        labels = with_axes(labels, step.axes)
    title = read_sentence(parts.get("title"), (*path, "title"), aside, name)
    grid = Grid(
        name=name,
        title=title,
        mark=node.key or node.mark,
        base=base,
        axes=axes,
        when=when,
        exclude=_read_exclude(parts.get("exclude"), (*path, "exclude"), labels, problems),
        override=_read_override(parts.get("override"), (*path, "override"), labels, stages, problems),
        include=_read_include(parts.get("include"), (*path, "include"), problems),
        cadence=_read_cadence(parts.get("cadence"), (*path, "cadence"), aside),
        watch=_read_watch(parts.get("watch"), (*path, "watch"), aside),
        resources=read_grid_resources(parts.get("resources"), stages, (*path, "resources"), aside),
        table=_read_table(parts.get("table"), (*path, "table"), title, aside),
        table_node=parts.get("table"),
    )
    if not grid.has_own_cells and not grid.include and len(problems) == before:
        add_problem(problems, path, "has no cells: it needs base, axes or include", grid.mark)
    readable = len(problems) == before
    problems += aside
    return grid if readable else None


def _read_base(
    parts: Mapping[str, Node], path: SettingPath, stages: Sequence[str], problems: list[Problem], mark: Mark
) -> Node:
    base = parts.get("base", mapping({}, mark))
    for name, node in read_mapping(base, (*path, "base"), problems).items():
        check_setting(name, (*path, "base", name), node.key or node.mark, stages, problems)
    tree = nested(base, problems, ("grids", str(path[1]), "base"))
    chosen = _read_stages(parts.get("stages"), (*path, "stages"), stages, problems)
    return merge(chosen, tree) if chosen else tree


def _read_stages(node: Node | None, path: SettingPath, stages: Sequence[str], problems: list[Problem]) -> Node | None:
    """Return the sections that `stages: [pretrain, finetune]` stands for, with their defaults."""
    if node is None:
        return None
    named = {read_text(item, path, problems): item for item in read_list(node, path, problems)}
    for stage, item in named.items():
        if stage and stage not in (PRETRAIN, *stages):
            add_problem(problems, path, f"{UNKNOWN_STAGE} '{stage}'; {nearest(stage, (PRETRAIN, *stages))}", item)
    if PRETRAIN not in named:
        add_problem(problems, path, "needs the stage 'pretrain', with which every cell starts", node)
    chosen = {stage: mapping({}, item.mark) for stage, item in named.items() if stage in stages}
    return mapping(chosen, node.mark)


def check_setting(name: str, path: SettingPath, mark: Mark, stages: Sequence[str], problems: list[Problem]) -> bool:
    """Return whether `name` is a setting or a dotted path into one. Add a problem if not."""
    top = name.split(".")[0]
    known = (*CELL_PARTS, *stages)
    if top not in known:
        add_problem(problems, path, f"unknown setting '{top}'; {nearest(top, known)}", mark)
    elif "" in name.split("."):
        add_problem(problems, path, f"'{name}' is not a dotted path such as optim.lr", mark)
    else:
        return True
    return False


def _read_axes(
    node: Node | None, path: SettingPath, stages: Sequence[str], problems: list[Problem]
) -> tuple[Axis, ...]:
    axes: list[Axis] = []
    for name, values in read_mapping(node, path, problems).items():
        if name == "zip":
            groups = values.value if isinstance(values.value, tuple) else (values,)
            axes.extend(axis for group in groups if (axis := _read_zip(group, (*path, name), stages, problems)))
        elif check_setting(name, (*path, name), values.key or values.mark, stages, problems):
            points = tuple((value,) for value in _read_values(name, values, (*path, name), problems))
            axes.extend([Axis((name,), points)] if points else [])
    seen: set[str] = set()
    for name in (name for axis in axes for name in axis.names):
        if name in seen and node is not None:
            add_problem(problems, (*path, name), "is listed as an axis twice", node)
        seen.add(name)
    return tuple(axes)


def _read_zip(node: Node, path: SettingPath, stages: Sequence[str], problems: list[Problem]) -> Axis | None:
    columns = {}
    for name, values in read_mapping(node, path, problems).items():
        if check_setting(name, (*path, name), values.key or values.mark, stages, problems):
            columns[name] = _read_values(name, values, (*path, name), problems, distinct=False)
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        add_problem(problems, path, f"zipped axes need the same number of values: {counts}", node)
    points = tuple(zip(*columns.values(), strict=False))
    return Axis(tuple(columns), points) if points else None


def _read_values(
    name: str, node: Node, path: SettingPath, problems: list[Problem], *, distinct: bool = True
) -> tuple[Value, ...]:
    found: list[Value] = []
    seen: set[tuple[bool, Label]] = set()
    for item in _listed(node, path, problems):
        value_label = _read_label(name, item, path, problems)
        if distinct and identity(value_label) in seen:
            add_problem(problems, path, f"the value '{spelled(value_label)}' is listed twice", item)
        seen.add(identity(value_label))
        found.append(Value(value_label, Node(unnamed(item).value, item.mark, node.key, item.depth, item.count)))
    return tuple(found)


def _listed(node: Node, path: SettingPath, problems: list[Problem]) -> list[Node]:
    """Return the values of an axis, with rules such as `{range: [1, 5]}` expanded."""
    if _is_range(node):
        return list(_values_of(node, path, problems))
    if message := _spelling_of(node):
        add_problem(problems, path, f"'{node.plain()}' is not a list; {message}", node)
        return []
    if node.value == ():
        add_problem(problems, path, "is an empty list: the grid would have no cells", node)
    found: list[Node] = []
    for item in read_list(node, path, problems):
        if message := _spelling_of(item):
            add_problem(problems, path, f"'{item.plain()}' is not a value; {message}", item)
        else:
            found.extend(_values_of(item, path, problems) if _is_range(item) else [item])
    return found


def _read_label(axis: str, node: Node, path: SettingPath, problems: list[Problem]) -> Label:
    named = children(node).get("name")
    if named is not None and (not isinstance(named.value, str | int | float) or named.value == ""):
        add_problem(problems, (*path, "name"), "is not a string", named)
    elif named is not None and control_character(str(named.value)):
        add_problem(problems, (*path, "name"), "is more than one line", named)
    return label(node, axis)


def fixed_labels(base: Node) -> dict[str, Label]:
    """Return the labels of a grid's own settings; `size: 71m` has one, `optim: {lr: 1e-3}` has none."""
    named = {name: node for name, node in children(base).items() if has_label(node, name)}
    return _DEFAULT_LABELS | {name: label(node, name) for name, node in named.items()}


def known_labels(base: Node, axes: tuple[Axis, ...]) -> AxisLabels:
    """Return the labels that a condition may use: of the axes and of fixed settings."""
    return {name: (value,) for name, value in fixed_labels(base).items()} | _labels_of(axes)


def _labels_of(axes: tuple[Axis, ...]) -> AxisLabels:
    found: AxisLabels = {}
    for axis in axes:
        for name in axis.names:
            found[name] = (*found.get(name, ()), *axis.labels(name))
    return found


def with_axes(labels: AxisLabels, axes: tuple[Axis, ...]) -> AxisLabels:
    """Return `labels` with the labels of conditional axes; cells outside the condition keep theirs."""
    return labels | {name: (*labels.get(name, ()), *values) for name, values in _labels_of(axes).items()}


def read_where(
    node: Node | None, path: SettingPath, labels: AxisLabels, problems: list[Problem], mark: Mark
) -> Condition:
    """Return a condition after checking that its names and labels exist."""
    terms = []
    for name, nodes in _condition(node, path, problems).items():
        if name not in labels:
            add_problem(
                problems, (*path, name), f"no axis '{name}'; {nearest(name, labels)}", nodes[0].key or nodes[0].mark
            )
            continue
        chosen = tuple(check_choice(item, (*path, name), labels[name], problems) for item in nodes)
        terms.append((name, nodes, chosen))
    return Condition(node.mark if node else mark, tuple(terms))


def _condition(node: Node | None, path: SettingPath, problems: list[Problem]) -> dict[str, tuple[Node, ...]]:
    """Return the allowed values of each axis: one, or a list."""
    found = {}
    for name, wanted in read_mapping(node, path, problems).items():
        if wanted.value == ():
            add_problem(problems, (*path, name), "is an empty list: no cell matches", wanted)
            continue
        listed = wanted.value if isinstance(wanted.value, tuple) else (wanted,)
        found[name] = tuple(replace(item, key=wanted.key) for item in listed)
    return found


def check_choice(node: Node, path: SettingPath, valid: tuple[Label, ...], problems: list[Problem]) -> Label:
    """Return the label of `node`; a problem if the axis has no such value."""
    wanted = label(node, str(path[-1]))
    if not any(same(wanted, value) for value in valid):
        hint = nearest(spelled(wanted), dict.fromkeys(map(spelled, valid)))
        add_problem(problems, path, f"'{spelled(wanted)}' is not a value of this axis; {hint}", node)
    return wanted


def _read_when(
    node: Node | None, path: SettingPath, labels: AxisLabels, stages: Sequence[str], problems: list[Problem]
) -> tuple[ConditionalAxes, ...]:
    steps = []
    for item in read_list(node, path, problems):
        parts = read_mapping(item, path, problems, ("where", "axes"))
        axes = _read_axes(parts.get("axes"), (*path, "axes"), stages, problems)
        if "axes" not in parts:
            add_problem(problems, path, "needs 'axes': the further axes of the matching cells", item)
        where = read_where(parts.get("where"), (*path, "where"), labels, problems, item.mark)
        steps.append(ConditionalAxes(where, axes))
        labels = with_axes(labels, axes)
    return tuple(steps)


def _read_exclude(
    node: Node | None, path: SettingPath, labels: AxisLabels, problems: list[Problem]
) -> tuple[Condition, ...]:
    found = []
    for item in read_list(node, path, problems):
        if isinstance(item.value, dict) and not item.value:
            add_problem(problems, path, "an empty condition excludes every cell", item)
        found.append(read_where(item, path, labels, problems, item.mark))
    return tuple(found)


def _read_override(
    node: Node | None, path: SettingPath, labels: AxisLabels, stages: Sequence[str], problems: list[Problem]
) -> tuple[Override, ...]:
    found = []
    for item in read_list(node, path, problems):
        parts = read_mapping(item, path, problems, ("where", "set", "why"))
        for name, what in (("set", "the settings to change"), ("why", "the reason, in a sentence")):
            if name not in parts and isinstance(item.value, dict):
                add_problem(problems, path, f"needs '{name}': {what}", item)
        changes = parts.get("set", mapping({}, item.mark))
        for name, child in read_mapping(changes, (*path, "set"), problems).items():
            check_setting(name, (*path, "set", name), child.key or child.mark, stages, problems)
        where = read_where(parts.get("where"), (*path, "where"), labels, problems, item.mark)
        settings = nested(changes, problems, ("grids", str(path[1]), "override", "set"))
        found.append(Override(where, settings, read_sentence(parts.get("why"), (*path, "why"), problems)))
    return tuple(found)


def _read_include(node: Node | None, path: SettingPath, problems: list[Problem]) -> tuple[Include, ...]:
    """Read `include: [table2, {grid: table2, where: {size: 350m}}]`; `validate` checks the conditions."""
    found = []
    for item in read_list(node, path, problems):
        parts = (
            read_mapping(item, path, problems, ("grid", "where")) if isinstance(item.value, dict) else {"grid": item}
        )
        if "grid" not in parts:
            add_problem(problems, path, "needs 'grid': the name of another grid", item)
        name = read_text(parts.get("grid"), path, problems)
        condition = _condition(parts.get("where"), (*path, "where"), problems)
        terms = tuple((axis, nodes, tuple(label(n, axis) for n in nodes)) for axis, nodes in condition.items())
        found.append(Include(name, Condition(item.mark, terms), item.mark))
    return tuple(found)


_BESIDE_CELLS = ("title", "cadence", "watch", "resources", "table")


def _may_lack_cells(node: Node, known: Collection[str]) -> bool:
    """Return whether a key of a grid that is not `known` may be a misspelt part of its cells."""
    return any(not get_close_matches(key, _BESIDE_CELLS) for key in children(node) if key not in known)


def _read_cadence(node: Node | None, path: SettingPath, problems: list[Problem]) -> Cadence:
    """Return how often a training evaluates and writes checkpoints."""
    return (read_dataclass(Cadence, node, path, problems) if node else None) or Cadence()


def _read_watch(node: Node | None, path: SettingPath, problems: list[Problem]) -> Monitoring:
    """Return when a training counts as diverged."""
    return (read_dataclass(Monitoring, node, path, problems) if node else None) or Monitoring()


def _read_table(node: Node | None, path: SettingPath, title: str, problems: list[Problem]) -> TableSpec | None:
    """Return the table, or None if there is none or after adding to `problems`."""
    if node is None:
        return None
    before = len(problems)
    known = ("title", "rows", "columns", "value", "over", "against", "published")
    parts = read_mapping(node, path, problems, known)
    table = TableSpec(
        title=read_sentence(parts.get("title"), (*path, "title"), problems, title),
        rows=read_texts(parts.get("rows"), (*path, "rows"), problems) or TableSpec.rows,
        columns=read_text(parts.get("columns"), (*path, "columns"), problems, TableSpec.columns),
        value=read_text(parts.get("value"), (*path, "value"), problems, TableSpec.value),
        over=read_text(parts.get("over"), (*path, "over"), problems, TableSpec.over),
        against=read_text_mapping(parts.get("against"), (*path, "against"), problems),
        published=read_text_mapping(parts.get("published"), (*path, "published"), problems),
    )
    return table if len(problems) == before else None


RULES = {"range": "step", "linear": "n", "log": "n"}  # rule -> its second key, optional for range
_MAX_VALUES = 10_000  # of one axis
_SIGNIFICANT_DIGITS = 6
_SPACE = re.compile(r"(?:np\.)?(log|geom|lin)space\((.+?),(.+?),\s*(?:num=)?(\d+)\s*\)")
_CALL = re.compile(r"range\(\s*(-?\d+)\s*(?:,\s*(-?\d+)\s*)?(?:,\s*(-?\d+)\s*)?\)")


def _is_range(node: Node) -> bool:
    """Return whether the node is a rule for values rather than a value."""
    return bool(RULES.keys() & children(node).keys())


def _values_of(node: Node, path: SettingPath, problems: list[Problem]) -> tuple[Node, ...]:
    """Return the values of a rule, each at the rule's position; none after adding to `problems`."""
    entries = children(node)
    kind = next(name for name in RULES if name in entries)
    for name, child in entries.items():
        if name not in (kind, RULES[kind]):
            message = f"unknown key '{name}'; {nearest(name, (kind, RULES[kind]))}"
            add_problem(problems, path, message, child.key or child.mark)
            return ()
    ends = _ends(entries[kind])
    second = entries.get(RULES[kind])
    made = _values(kind, ends, second.value if second else None) if ends else f"write {kind}: [first, last]"
    if isinstance(made, str):
        add_problem(problems, path, made, node)
        return ()
    return tuple(replace(node, value=value, depth=1, count=1) for value in made)


def _spelling_of(node: Node) -> str:
    """Return the rule to write instead of Python's `range(3)` or `logspace(1e-3, 1, 4)`; "" for any other value."""
    if isinstance(node.value, str) and (spaced := _SPACE.fullmatch(node.value)):
        kind, first, last, n = (part.strip() for part in spaced.groups())
        return f"write {{{'linear' if kind == 'lin' else 'log'}: [{first}, {last}], n: {n}}}"
    match = _CALL.fullmatch(node.value) if isinstance(node.value, str) else None
    if match is None:
        return ""
    first, stop = (0, int(match[1])) if match[2] is None else (int(match[1]), int(match[2]))
    step = f", step: {match[3]}" if match[3] and match[3] != "1" else ""
    return f"write {{range: [{first}, {stop - 1}]{step}}}, which includes both ends"


def _ends(node: Node) -> tuple[int | float, int | float] | None:
    """Return the two numbers of a list, None if the node is anything else."""
    if not isinstance(node.value, tuple) or len(node.value) != 2:
        return None
    first, last = (item.value for item in node.value)
    return (first, last) if _is_number(first) and _is_number(last) else None


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _values(kind: str, ends: tuple[int | float, int | float], second: object) -> list[int] | list[float] | str:
    """Return the values, or a message. `second`: the step of a range, or the number of values."""
    if second is not None and (not isinstance(second, int) or isinstance(second, bool)):
        return f"{RULES[kind]}: {second!r} is not a whole number"
    if kind == "range":
        return _whole(ends, 1 if second is None else second)
    if second is None or not 2 <= second <= _MAX_VALUES:
        return f"needs n, the number of values, from 2 to {_MAX_VALUES:,}"
    if kind == "log" and min(ends) <= 0:
        return "log: both numbers must be greater than 0"
    return _spread(kind, ends, second)


def _whole(ends: tuple[int | float, int | float], step: int) -> list[int] | str:
    first, last = ends
    if not isinstance(first, int) or not isinstance(last, int):
        return "range: takes two whole numbers; write linear: [first, last] with n for others"
    if step < 1:
        return f"step: {step} is too small; at least 1"
    if last < first:
        return f"range: {last} is smaller than {first}; write range: [{last}, {first}]"
    values = range(first, last + 1, step)
    return list(values) if len(values) <= _MAX_VALUES else f"range: {len(values):,} values; at most {_MAX_VALUES:,}"


def _spread(kind: str, ends: tuple[int | float, int | float], n: int) -> list[int] | list[float]:
    first, last = ends
    shares = [i / (n - 1) for i in range(1, n - 1)]
    if kind == "log":
        between = [math.exp(math.log(first) * (1 - share) + math.log(last) * share) for share in shares]
    else:
        between = [first + (last - first) * share for share in shares]
    values = [float(first), *(float(f"{value:.{_SIGNIFICANT_DIGITS}g}") for value in between), float(last)]
    return [int(value) for value in values] if all(value.is_integer() for value in values) else values
