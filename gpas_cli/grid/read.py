"""Read one grid: its axes, labels, conditions, settings, and what leaves its cells as they are.

The values of an axis are a list, or follow a rule:

    {range: [1, 5]}              whole numbers from the first to the last, inclusive; `step: 2` takes every second one
    {linear: [0.1, 0.5], n: 5}   n numbers at equal distances from the first to the last, inclusive
    {log: [1e-4, 1e-2], n: 5}    n numbers at equal ratios from the first to the last, inclusive

The first and the last number are as written. Numbers between them are rounded to six significant digits, so that
labels, names and keys of cells are the same on every machine. If all numbers are whole, they are integers.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from gpas_cli.errors import GpasError, Problem, nearest
from gpas_cli.grid.declared import Axis, Condition, ConditionalAxes, Grid, Include, Line, Override, TableSpec, Value
from gpas_cli.grid.document import Label, Node, identity, mapping, same, spelled
from gpas_cli.grid.include import File
from gpas_cli.grid.packs import Pack, pack_named
from gpas_cli.grid.resources import read_grid_resources
from gpas_cli.grid.settings import (
    CELL_PARTS,
    Entries,
    Part,
    children,
    has_label,
    label,
    merge,
    name_fault,
    nested,
    unnamed,
)
from gpas_cli.spec.cell import NETWORK, START
from gpas_cli.spec.parse import control_character
from gpas_cli.spec.run import Cadence, Monitoring
from gpas_cli.spec.stage import PRETRAIN

_BESIDE_CELLS = ("title", "cadence", "watch", "resources", "table")
_GRID_KEYS = ("base", "axes", "when", "exclude", "override", "notes", "include", "stages", *_BESIDE_CELLS)
# Default labels: every cell has these, so that tables and conditions can use them.
_DEFAULT_LABELS: dict[str, Label] = {"norm": "pre", "gate": "none", "seed": 42}

AxisLabels = dict[str, tuple[Label, ...]]

_TABLE_KEYS = (
    *("title", "corner", "rows", "columns", "bands", "digits"), *("value", "over", "best", "against", "published"),
)  # fmt: skip
_RULES = {"range": "step", "linear": "n", "log": "n"}  # rule -> its second key, optional for range
_MAX_VALUES = 10_000  # of one axis
_SIGNIFICANT_DIGITS = 6
_SPACE = re.compile(r"(?:np\.)?(log|geom|lin)space\((.+?),(.+?),\s*(?:num=)?(\d+)\s*\)")
_ENDS = re.compile(r"(\d+)\s*(?:-|\.\.\.?|to|:)\s*(\d+)")
_CALL = re.compile(r"range\(\s*(-?\d+)\s*(?:,\s*(-?\d+)\s*)?(?:,\s*(-?\d+)\s*)?\)")


def read_grid(name: str, part: Part, stages: Sequence[str], file: File) -> tuple[Grid, bool]:
    """Return the grid that `part` of a file declares, and whether no problem of it is also one of its cells.

    Adds what is wrong to the problems. `stages` are the stages after pretraining.
    """
    aside: list[Problem] = []  # problems that leave the cells as they are
    beside = replace(part, problems=aside)
    before = len(part.problems)
    if message := name_fault(name):
        beside.report(message, part.key)
    others = beside.entries(_GRID_KEYS)
    # A key that is not known may be a misspelt part of the cells.
    if any(not get_close_matches(key, _BESIDE_CELLS) for key in children(part.node) if key not in _GRID_KEYS):
        part.problems.extend(aside)
        aside.clear()
    parts = {key: replace(others[key], problems=part.problems) for key in _GRID_KEYS}
    base = _read_base(parts["base"], parts["stages"], stages)
    axes = _read_axes(parts["axes"], stages)
    labels = _known_labels(base, axes)
    when = _read_when(parts["when"], labels, stages)
    labels = _joined(labels, *(_labels_of(step.axes) for step in when))
    title = others["title"].sentence(name)
    grid = Grid(
        name=name,
        title=title,
        mark=part.key,
        base=base,
        axes=axes,
        when=when,
        exclude=_read_exclude(parts["exclude"], labels),
        override=(*_read_override(parts["override"], labels, stages), *_read_notes(parts["notes"], labels)),
        include=_read_include(parts["include"], file.names("grids")),
        cadence=others["cadence"].instance(Cadence) or Cadence(),
        watch=others["watch"].instance(Monitoring) or Monitoring(),
        resources=read_grid_resources(others["resources"], stages),
        table=_read_table(others["table"], title, file.packs),
        table_node=others["table"].node,
    )
    if not grid.has_own_cells and not grid.include and len(part.problems) == before:
        part.report("has no cells: it needs base, axes or include", grid.mark)
    readable = len(part.problems) == before
    part.problems.extend(aside)
    return grid, readable


def _read_base(part: Part, listed: Part, stages: Sequence[str]) -> Node:
    """Return the settings of all cells, with the sections that `stages: [pretrain, finetune]` stands for."""
    tree = _read_settings(part, stages)
    if listed.node is None:
        return tree
    named = {item.text(): item for item in listed.items()}
    for stage, item in named.items():
        if stage and stage not in (PRETRAIN, *stages):
            message = f"unknown stage '{stage}'; {nearest(stage, (PRETRAIN, *stages))}"
            item.problems.append(Problem(item.path, message, str(item.mark), ("stage", stage)))
    if PRETRAIN not in named:
        listed.report(f"needs the stage '{PRETRAIN}', with which every cell starts")
    chosen = {stage: mapping({}, item.mark) for stage, item in named.items() if stage in stages}
    return merge(mapping(chosen, listed.mark), tree)


def _read_settings(part: Part, stages: Sequence[str]) -> Node:
    """Return a mapping of settings with its dotted keys expanded."""
    for name, child in part.entries().items():
        check_setting(name, child, stages)
    path = tuple(step for step in part.path if isinstance(step, str))
    return nested(part.node or mapping({}, part.mark), part.problems, path)


def check_setting(name: str, part: Part, stages: Sequence[str]) -> bool:
    """Return whether `name` is a setting or a dotted path into one. Report it if not."""
    top = name.split(".")[0]
    known = (*CELL_PARTS, *stages, NETWORK, START)
    if top not in known:
        part.report(f"unknown setting '{top}'; {nearest(top, known)}", part.key)
    elif "" in name.split("."):
        part.report(f"'{name}' is not a dotted path such as optim.lr", part.key)
    else:
        return True
    return False


def _read_axes(part: Part, stages: Sequence[str]) -> tuple[Axis, ...]:
    axes: list[Axis] = []
    for name, values in part.entries().items():
        if name == "zip":
            groups = values.items() if isinstance(values.value, tuple) else [values]
            axes.extend(axis for group in groups if (axis := _read_zip(group, stages)))
        elif check_setting(name, values, stages):
            points = tuple((value,) for value in _read_values(name, values))
            axes.extend([Axis((name,), points)] if points else [])
    seen: set[str] = set()
    for name in (name for axis in axes for name in axis.names):
        if name in seen:
            part.report("is listed as an axis twice", None, name)
        seen.add(name)
    return tuple(axes)


def _read_zip(part: Part, stages: Sequence[str]) -> Axis | None:
    columns = {}
    for name, values in part.entries().items():
        if check_setting(name, values, stages):
            columns[name] = _read_values(name, values, distinct=False)
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        part.report(f"zipped axes need the same number of values: {counts}")
    points = tuple(zip(*columns.values(), strict=False))
    return Axis(tuple(columns), points) if points else None


def _read_values(name: str, part: Part, *, distinct: bool = True) -> tuple[Value, ...]:
    found: list[Value] = []
    seen: set[tuple[bool, Label]] = set()
    for item in _listed(part):
        value_label = _read_label(name, item)
        if distinct and identity(value_label) in seen:
            item.report(f"the value '{spelled(value_label)}' is listed twice")
        seen.add(identity(value_label))
        assert item.node is not None
        found.append(Value(value_label, replace(item.node, value=unnamed(item.node).value, key=part.key)))
    return tuple(found)


def _listed(part: Part) -> list[Part]:
    """Return the values of an axis, with rules such as `{range: [1, 5]}` expanded."""
    if _is_range(part):
        return _values_of(part)
    if message := _spelling_of(part.value):
        part.report(f"'{part.value}' is not a list; {message}")
        return []
    ends = [name for name, child in children(part.node).items() if isinstance(child.value, tuple)]
    if len(ends) == 1:
        part.report(f"unknown rule '{ends[0]}'; {nearest(ends[0], _RULES)}")
        return []
    if part.value == ():
        part.report("is an empty list: the grid would have no cells")
    found: list[Part] = []
    for item in part.items():
        if message := _spelling_of(item.value):
            item.report(f"'{item.value}' is not a value; {message}")
        else:
            found.extend(_values_of(item) if _is_range(item) else [item])
    return found


def _read_label(axis: str, part: Part) -> Label:
    assert part.node is not None
    named = children(part.node).get("name")
    if named is not None and (not isinstance(named.value, str | int | float) or named.value == ""):
        part.report("is not a string", named.mark, "name")
    elif named is not None and control_character(str(named.value)):
        part.report("is more than one line", named.mark, "name")
    return label(part.node, axis)


def fixed_labels(base: Node) -> dict[str, Label]:
    """Return the labels of a grid's own settings; `size: 71m` has one, `optim: {lr: 1e-3}` has none."""
    named = {name: node for name, node in children(base).items() if has_label(node, name)}
    return _DEFAULT_LABELS | {name: label(node, name) for name, node in named.items()}


def _known_labels(base: Node, axes: tuple[Axis, ...]) -> AxisLabels:
    """Return the labels that a condition may use: of the axes and of fixed settings."""
    return {name: (value,) for name, value in fixed_labels(base).items()} | _labels_of(axes)


def _labels_of(axes: tuple[Axis, ...]) -> AxisLabels:
    return _joined(*({name: axis.labels(name) for name in axis.names} for axis in axes))


def _joined(*parts: AxisLabels) -> AxisLabels:
    """Return the labels of each axis in all parts. Cells outside the condition of conditional axes keep theirs."""
    found: AxisLabels = {}
    for name, labels in (item for part in parts for item in part.items()):
        found[name] = (*found.get(name, ()), *labels)
    return found


def labels_of(grids: Mapping[str, Grid], *names: str) -> AxisLabels:
    """Return the labels of every axis of the grids of these names and of those that they include."""
    return _joined(*map(_own_labels, reached(grids, names)))


def _own_labels(grid: Grid) -> AxisLabels:
    if not grid.has_own_cells:
        return {}
    return _joined(_known_labels(grid.base, grid.axes), *(_labels_of(step.axes) for step in grid.when))


def reached(grids: Mapping[str, Grid], names: Iterable[str]) -> list[Grid]:
    """Return the grids of these names and all that they include, directly or not."""
    found = {name: grids[name] for name in names}
    pending = list(found.values())
    while pending:
        for include in pending.pop().include:
            if include.grid in grids and include.grid not in found:
                found[include.grid] = grids[include.grid]
                pending.append(grids[include.grid])
    return list(found.values())


def read_where(part: Part, labels: AxisLabels | None) -> Condition:
    """Return a condition, of one label or a list of them for each axis, after checking that its names and labels exist;
    None leaves them unchecked."""
    terms = []
    for name, wanted in part.entries().items():
        if wanted.value == ():
            wanted.report("is an empty list: no cell matches")
        elif labels is not None and name not in labels:
            wanted.report(f"no axis '{name}'; {nearest(name, labels)}", wanted.key)
        elif wanted.node is not None:
            nodes = wanted.value if isinstance(wanted.value, tuple) else (wanted.node,)
            valid = None if labels is None else labels[name]
            terms.append((name, nodes, tuple(check_choice(wanted.holding(node), valid) for node in nodes)))
    return Condition(part.mark, tuple(terms))


def check_choice(part: Part, valid: tuple[Label, ...] | None) -> Label:
    """Return the label of `part`; a problem if the axis has no such value. None leaves it unchecked."""
    assert part.node is not None
    wanted = label(part.node, str(part.path[-1]))
    if valid is not None and not any(same(wanted, value) for value in valid):
        known = dict.fromkeys(map(spelled, valid))
        here = spelled(wanted)
        hint = f"write {here} without quotes or brackets" if here in known else nearest(here, known)
        part.report(f"'{spelled(wanted)}' is not a value of this axis; {hint}")
    return wanted


def _read_when(part: Part, labels: AxisLabels, stages: Sequence[str]) -> tuple[ConditionalAxes, ...]:
    steps = []
    for item in part.items():
        parts = item.entries(("where", "axes"))
        axes = _read_axes(parts["axes"], stages)
        if "axes" not in parts:
            item.report("needs 'axes': the further axes of the matching cells")
        steps.append(ConditionalAxes(read_where(parts["where"], labels), axes))
        labels = _joined(labels, _labels_of(axes))
    return tuple(steps)


def _read_exclude(part: Part, labels: AxisLabels) -> tuple[Condition, ...]:
    found = []
    for item in part.items():
        if item.value == {}:
            item.report("an empty condition excludes every cell")
        found.append(read_where(item, labels))
    return tuple(found)


def _read_override(part: Part, labels: AxisLabels, stages: Sequence[str]) -> tuple[Override, ...]:
    found = []
    for item in part.items():
        parts = item.entries(("where", "set", "why"))
        for name, what in (("set", "the settings to change"), ("why", "the reason, in a sentence")):
            if name not in parts and isinstance(item.value, dict):
                item.report(f"needs '{name}': {what}")
        settings = _read_settings(parts["set"], stages)
        found.append(Override(read_where(parts["where"], labels), settings, parts["why"].sentence()))
    return tuple(found)


def _read_notes(part: Part, labels: AxisLabels) -> Iterator[Override]:
    """Read `notes: [{where: {norm: post}, text: ..., tags: [appendix]}]`, as overrides without settings."""
    for item in part.items():
        parts = item.entries(("where", "text", "tags"))
        if not parts.keys() & {"text", "tags"}:
            item.report("needs 'text' or 'tags'")
        where = read_where(parts["where"], labels)
        yield Override(where, mapping({}, item.mark), parts["text"].sentence(), parts["tags"].texts())


def _read_include(part: Part, names: Mapping[str, str]) -> tuple[Include, ...]:
    """Read `include: [table2, {grid: table2, where: {size: 350m}}]`; `grid.load` checks the conditions.

    names: the grids that the file may include, with their names in all files.
    """
    found = []
    for item in part.items():
        parts = Entries(item)
        if isinstance(item.value, dict):
            parts = item.entries(("grid", "where"))
        else:
            parts["grid"] = item
        if "grid" not in parts:
            item.report("needs 'grid': the name of another grid")
        grid = parts["grid"].text()
        found.append(Include(names.get(grid, grid), read_where(parts["where"], None), item.mark))
    return tuple(found)


def listed(part: Part) -> tuple[Line, ...]:
    """Return the rows, columns or bands of `{TITLE: {AXIS: LABEL}}`; a list of labels stands for any of them."""
    return tuple(Line(title, read_where(one, None).labels) for title, one in part.entries().items())


def in_bands(rows: Sequence[Line], bands: Sequence[Line]) -> tuple[Line, ...]:
    """Return the rows with those of each band together.

    Each band has all rows, but for those with a label of their own on an axis of the bands: they are above the first
    band. Without rows there is one for each band, without a title, for any row in it.
    """
    axes = {axis for band in bands for axis in band.labels}
    above = [row for row in rows if not bands or axes & row.labels.keys()]
    below = [row for row in rows if row not in above] if rows else [Line("", {})]
    inside = [Line(row.title, {**band.labels, **row.labels}, band.title) for band in bands for row in below]
    return (*above, *inside)


def _read_table(part: Part, title: str, packs: Mapping[str, Pack]) -> TableSpec | None:
    """Return the table, or None if there is none or after reporting its problems."""
    if part.node is None:
        return None
    before = len(part.problems)
    parts = part.entries(_TABLE_KEYS)
    own = listed(parts["rows"]) if isinstance(parts["rows"].value, dict) else ()
    bands, columns = listed(parts["bands"]), parts["columns"]
    headings = listed(columns) if isinstance(columns.value, dict) else ()
    axes = [axis for line in (*bands, *own) for axis in line.labels]
    named = {axis for line in headings for axis in line.labels}
    if headings and len(named) != 1:
        columns.report(f"has labels on {' and '.join(sorted(named)) or 'no axis'}; the columns have one axis")
    table = TableSpec(
        title=parts["title"].sentence(title),
        corner=parts["corner"].text(),
        rows=tuple(dict.fromkeys([*axes, *(() if own else parts["rows"].texts() or TableSpec.rows)])),
        columns="".join(named) if headings else columns.text(TableSpec.columns),
        lines=in_bands(own, bands),
        headings=headings,
        digits=parts["digits"].count(),
        value=parts["value"].text(TableSpec.value),
        over=parts["over"].text(TableSpec.over),
        best=parts["best"].text(TableSpec.best),
        against={axis: label(one.node, axis) for axis, one in parts["against"].entries().items() if one.node},
        published=read_published(parts["published"], packs),
    )
    return table if len(part.problems) == before else None


def read_published(part: Part, packs: Mapping[str, Pack]) -> dict[Pack, str]:
    """Return the published tables `{PAPER: TABLE}`. An unknown paper is reported."""
    found = {}
    for name, table in part.text_mapping().items():
        try:
            found[pack_named(name, packs)] = table
        except GpasError as error:
            part.report(str(error), part.entries()[name].mark, name)
    return found


def _is_range(part: Part) -> bool:
    """Return whether the part is a rule for values rather than a value."""
    return isinstance(part.value, dict) and not _RULES.keys().isdisjoint(part.value)


def _values_of(part: Part) -> list[Part]:
    """Return the values of a rule, each at the rule's position; none after reporting its problems."""
    entries = part.entries()
    kind = next(name for name in _RULES if name in entries)
    for name, child in entries.items():
        if name not in (kind, _RULES[kind]):
            part.report(f"unknown key '{name}'; {nearest(name, (kind, _RULES[kind]))}", child.key)
            return []
    made = _values(kind, entries[kind].value, entries[_RULES[kind]].value)
    if isinstance(made, str):
        part.report(made)
        return []
    return [part.holding(Node(value, part.mark)) for value in made]


def _spelling_of(value: object) -> str:
    """Return the rule to write instead of Python's `range(3)` or `logspace(1e-3, 1, 4)`; "" for any other value."""
    if isinstance(value, str) and (spaced := _SPACE.fullmatch(value)):
        kind, first, last, n = (part.strip() for part in spaced.groups())
        return f"write {{{'linear' if kind == 'lin' else 'log'}: [{first}, {last}], n: {n}}}"
    if isinstance(value, str) and (ends := _ENDS.fullmatch(value)):
        return f"write {{range: [{ends[1]}, {ends[2]}]}}"
    match = _CALL.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return ""
    start, stop = (0, int(match[1])) if match[2] is None else (int(match[1]), int(match[2]))
    step = f", step: {match[3]}" if match[3] and match[3] != "1" else ""
    return f"write {{range: [{start}, {stop - 1}]{step}}}, which includes both ends"


def _values(kind: str, listed: object, second: object) -> list[int] | list[float] | str:
    """Return the values, or a message. `second`: the step of a range, or the number of values."""
    ends = [node.value for node in listed] if isinstance(listed, tuple) else []
    if len(ends) != 2 or not all(type(end) in (int, float) and math.isfinite(end) for end in ends):
        return f"write {kind}: [first, last]"
    if second is not None and (not isinstance(second, int) or isinstance(second, bool)):
        return f"{_RULES[kind]}: {second!r} is not a whole number"
    if kind == "range":
        return _whole(ends, 1 if second is None else second)
    if second is None or not 2 <= second <= _MAX_VALUES:
        return f"needs n, the number of values, from 2 to {_MAX_VALUES:,}"
    if kind == "log" and min(ends) <= 0:
        return "log: both numbers must be greater than 0"
    return _spread(kind, ends, second)


def _whole(ends: Sequence[int | float], step: int) -> list[int] | str:
    first, last = ends
    if not isinstance(first, int) or not isinstance(last, int):
        return "range: takes two whole numbers; write linear: [first, last] with n for others"
    if step < 1:
        return f"step: {step} is too small; at least 1"
    if last < first:
        return f"range: {last} is smaller than {first}; write range: [{last}, {first}]"
    values = range(first, last + 1, step)
    return list(values) if len(values) <= _MAX_VALUES else f"range: {len(values):,} values; at most {_MAX_VALUES:,}"


def _spread(kind: str, ends: Sequence[int | float], n: int) -> list[int] | list[float]:
    first, last = ends
    shares = [i / (n - 1) for i in range(1, n - 1)]
    if kind == "log":
        between = [math.exp(math.log(first) * (1 - share) + math.log(last) * share) for share in shares]
    else:
        between = [first + (last - first) * share for share in shares]
    values = [float(first), *(float(f"{value:.{_SIGNIFICANT_DIGITS}g}") for value in between), float(last)]
    return [int(value) for value in values] if all(value.is_integer() for value in values) else values
